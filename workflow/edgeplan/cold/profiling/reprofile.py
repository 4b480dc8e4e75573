"""NNV12's re-profiling while planning (Algorithm 1, line 5): what a combination chooses is measured again."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from edgeplan.cold.clock import Clock
from edgeplan.cold.inputs import Array
from edgeplan.cold.interference import Interference
from edgeplan.cold.profiling.measure import quiet_round
from edgeplan.cold.profiling.memory import fix_allocator
from edgeplan.cold.profiling.once import once_ms, work_of
from edgeplan.cold.profiling.profiles import Charge, candidates_of, shares
from edgeplan.cold.profiling.rounds import Rig, Round
from edgeplan.cold.profiling.settings import Cores, ProfileSettings
from edgeplan.cold.profiling.store import ProfileStore, Row
from edgeplan.cold.profiling.subjects import signatures, subject, touched_pages
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.references import References
from edgeplan.planning.cold_start.profile import Candidate, Profile
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.steps import Lowered
from edgeplan.runtime.weights import WeightLocation

_LOCK_SECONDS = 600.0


class Reprofiler:
    """The planners' option `reprofile`: measures each candidate once more, when a combination first chooses it.

    Holds the machine while it is open; use it as a context manager around the planning.

    Args:
        dnnl: the library.
        model: the model file.
        lowered: its steps.
        weights: from `locate_weights`.
        inputs: values of the inputs.
        settings, cores, store: those of the profile.
    """

    def __init__(
        self,
        dnnl: Dnnl,
        model: Path,
        lowered: Lowered,
        weights: Mapping[str, WeightLocation],
        inputs: Mapping[str, Array],
        *,
        settings: ProfileSettings,
        cores: Cores,
        store: ProfileStore,
    ) -> None:
        self._dnnl, self._model, self._lowered, self._weights, self._inputs = dnnl, model, lowered, weights, inputs
        self._settings, self._cores, self._store = settings, cores, store
        constants = store.constants()
        assert constants is not None  # noqa: S101  profiled before
        self._constants = constants
        self._rigs: dict[str, Rig] = {}
        self._rows: dict[tuple[str, str], Row] = {}  # measured again: (signature, implementation)
        self._stack = ExitStack()
        self.measured = 0

    def __enter__(self) -> Self:
        self._stack.enter_context(machine_lock(_LOCK_SECONDS))
        # Only now: what is usual of the processors is not looked up while another process measures.
        watch = Interference(self._cores.big)
        self._clock = Clock(References(), self._constants.nominal, watch, self._settings.reference_runs)
        fix_allocator(self._dnnl)
        self._scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="edgeplan-profile-")))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def __call__(self, profile: Profile, combination: Sequence[int]) -> Profile:
        """The profile with the costs of the combination's candidates calibrated."""
        signed = signatures(self._dnnl, self._lowered, profile.layout)
        chosen = [layer.candidates[c].implementation for layer, c in zip(profile.layers, combination, strict=True)]
        new: dict[int, tuple[str, str]] = {}
        for index, pair in enumerate(zip(signed, chosen, strict=True)):
            if pair not in self._rows and pair not in new.values():
                new[index] = pair
        if not new:
            return profile
        self._measure(profile.layout, new)
        return self._calibrated(profile, signed, set(new.values()))

    def _rig(self, layout: str) -> Rig:
        if layout not in self._rigs:
            found = subject(self._dnnl, self._lowered, layout, self._weights, len(self._cores.big))
            evicted, cores = self._settings.page_cache == "evicted", self._cores
            rig = Rig(
                self._dnnl, found, self._model, self._inputs,
                classes=cores.classes, big=cores.big, scratch=self._scratch, evicted=evicted,
            )  # fmt: skip
            self._rigs[layout] = self._stack.enter_context(rig)
        return self._rigs[layout]

    def _measure(self, layout: str, new: Mapping[int, tuple[str, str]]) -> None:
        rig = self._rig(layout)
        choice = {}
        for index, (_, name) in new.items():
            names = [i.name for i in rig.group[index].implementations]
            choice[index] = names.index(name)
        for width in self._cores.widths:
            times, scale, _ = quiet_round(rig, Round(choice, width, frozenset()), self._settings, self._clock)
            for index, pair in new.items():
                old = self._rows.get(pair) or next(r for r in self._store.rows(pair[0]) if r.implementation == pair[1])
                samples = {stage: list(values) for stage, values in old.samples_ms.items()}
                for stage, by_step in times.stages.items():
                    if index in by_step:
                        samples.setdefault(stage, []).extend(t * scale for t in by_step[index])
                self._rows[pair] = replace(old, samples_ms=samples)
        self.measured += len(new)

    def _calibrated(self, profile: Profile, signed: Sequence[str], changed: set[tuple[str, str]]) -> Profile:
        known, once = self._constants, once_ms(self._store.all_rows())
        pages = touched_pages(self._dnnl, self._lowered, profile.layout, known.page_bytes)
        layers = []
        for layer, step, signature, share, count in zip(
            profile.layers, self._lowered.steps, signed, shares(signed, self._settings.charge), pages, strict=True
        ):
            fresh: dict[tuple[str, str], Candidate] = {}
            for pair in changed:
                if pair[0] == signature:
                    work, touch_ms = work_of(step, self._lowered.shapes), count * known.touch_ms_per_page
                    charge = Charge(work, share, touch_ms, known.touch_ms_per_byte, once)
                    made = candidates_of(self._rows[pair], self._settings, self._cores, charge)
                    fresh |= {(c.implementation, c.source): c for c in made}
            updated = tuple(fresh.get((c.implementation, c.source), c) for c in layer.candidates)
            layers.append(replace(layer, candidates=updated))
        return replace(profile, layers=tuple(layers))
