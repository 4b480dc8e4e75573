"""Re-profiles while planning (NNV12, Algorithm 1, line 5): what a combination chooses is measured again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process.clock import Clock
from edgeplan.measurement.process.interference import PRODUCTS, Interference
from edgeplan.measurement.references import References
from edgeplan.planning.profile import Candidate, Profile
from edgeplan.profiling.first_call_costs import once_ms, work_of
from edgeplan.profiling.measure import quiet_round, undisturbed
from edgeplan.profiling.profiles import Charge, candidates_of, shares
from edgeplan.profiling.rounds import Harness, ModelToProfile, Round
from edgeplan.profiling.settings import Cores, ProfileSettings
from edgeplan.profiling.store import ProfileStore, Row
from edgeplan.profiling.subjects import signatures, touched_pages
from edgeplan.runtime.process import prepare_process
from edgeplan.support.scratch import ScratchFolder

_LOCK_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Layout:
    """Holds a model under a home layout: the signature of every step, and what each pays besides what is measured of it."""

    signed: tuple[str, ...]
    charges: tuple[Charge, ...]


class Reprofiler:
    """Measures each candidate once more when a combination first chooses it: the planners' option `reprofile`.

    Holds the machine while it is open; use it as a context manager around the planning.

    Args:
        model: the model.
        settings, cores, store: settings, cores and store of the profile.
    """

    def __init__(self, model: ModelToProfile, settings: ProfileSettings, cores: Cores, store: ProfileStore) -> None:
        self._model, self._settings, self._cores, self._store = model, settings, cores, store
        constants = store.constants()
        assert constants is not None  # noqa: S101  profiled before
        self._constants = constants
        self._once = once_ms(store.all_rows())
        self._rigs: dict[str, Harness] = {}
        self._layouts: dict[str, _Layout] = {}
        self._rows: dict[tuple[str, str], Row] = {}  # measured again: (signature, implementation)
        self._made: dict[tuple[str, int, str], Mapping[str, Candidate]] = {}  # of these: (layout, step, implementation)
        self._stack = ExitStack()
        self.measured = 0

    def __enter__(self) -> Self:
        self._stack.enter_context(machine_lock(_LOCK_SECONDS))
        # Only now: what is usual of the processors is not looked up while another process measures.
        watch = Interference(self._cores.big, PRODUCTS) if self._settings.strict else None
        self._clock = Clock(References(), self._constants.nominal, watch, self._settings.reference_runs)
        prepare_process(self._model.dnnl)
        self._scratch = Path(self._stack.enter_context(ScratchFolder("profile")))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def __call__(self, profile: Profile, combination: Sequence[int]) -> Profile:
        """Return the profile with calibrated costs of all candidates measured again, this combination's among them.

        Returns:
            The same profile if it has these costs already.
        """
        signed = self._layout(profile.layout).signed
        chosen = [layer.candidates[c].implementation for layer, c in zip(profile.layers, combination, strict=True)]
        new: dict[int, tuple[str, str]] = {}
        for index, pair in enumerate(zip(signed, chosen, strict=True)):
            if pair not in self._rows and pair not in new.values():
                new[index] = pair
        if new:
            self._measure(profile.layout, new)
        return self._calibrated(profile)

    def _layout(self, home: str) -> _Layout:
        if home not in self._layouts:
            known, dnnl, lowered = self._constants, self._model.dnnl, self._model.lowered
            signed = signatures(dnnl, lowered, home)
            pages = touched_pages(dnnl, lowered, home, known.page_bytes)
            charges = [
                Charge(
                    work_of(step, lowered.shapes), share, count * known.touch_ms_per_page, known.touch_ms_per_byte, self._once
                )
                for step, share, count in zip(lowered.steps, shares(signed), pages, strict=True)
            ]
            self._layouts[home] = _Layout(signed, tuple(charges))
        return self._layouts[home]

    def _rig(self, layout: str) -> Harness:
        if layout not in self._rigs:
            rig = self._model.harness(layout, self._cores, self._scratch)
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
                        samples.setdefault(stage, []).extend(t * scale for t in undisturbed(by_step[index]))
                self._rows[pair] = replace(old, samples_ms=samples)
        self.measured += len(new)

    def _calibrated(self, profile: Profile) -> Profile:
        layers = []
        for index, layer in enumerate(profile.layers):
            found = tuple(self._latest(profile.layout, index, candidate) for candidate in layer.candidates)
            same = all(new is old for new, old in zip(found, layer.candidates, strict=True))
            layers.append(layer if same else replace(layer, candidates=found))
        if all(new is old for new, old in zip(layers, profile.layers, strict=True)):
            return profile
        return replace(profile, layers=tuple(layers))

    def _latest(self, home: str, index: int, candidate: Candidate) -> Candidate:
        """Return the candidate of a step with the costs measured again, if they were: in any layout, for any equal step."""
        name, layout = candidate.implementation, self._layout(home)
        row = self._rows.get((layout.signed[index], name))
        if row is None:
            return candidate
        key = home, index, name
        if key not in self._made:
            made = candidates_of(row, self._cores, layout.charges[index])
            self._made[key] = {c.source: c for c in made}
        return self._made[key][candidate.source]
