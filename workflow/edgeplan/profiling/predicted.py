"""Profiles without measuring the model: execution from the predictors, preparation from steps of other models.

Execution is what the predictors of the device say about each implementation, plus the conversions around it. Preparation is
fitted over profiled steps of other models, never of the planned one: creation by implementation kind, transformation and
reading per call and byte.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgeplan.errors import FormatError, PredictionError, StoreError
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import KernelConfig, make_kernel
from edgeplan.graph.steps import Step
from edgeplan.planning.profile import Profile
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.kernel_tables import reorder_config
from edgeplan.predictors.latency import Evaluator
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.stand_ins import stand_ins
from edgeplan.profiling.first_call_costs import ONCE, once_ms
from edgeplan.profiling.fresh_process_factors import START, start_of, start_signature
from edgeplan.profiling.profiles import profile_of
from edgeplan.profiling.settings import Cores, ProfileSettings
from edgeplan.profiling.store import Constants, ProfileStore, Row
from edgeplan.profiling.subjects import Group, Subject, signatures, subject, touched_pages
from edgeplan.runtime.creation import MOVING_KINDS, Implementation
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES, same_bytes
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import locate_weights

_LEAST_ROWS = 20
_STAGES = ("read", "create", "transform", "cached_read", "cached_mmap", "create_again", "transform_again")
#: What a preparation stage costs in proportion to; creation costs the same for any size.
_BYTES: Mapping[str, Callable[[Row], int]] = {
    "read": lambda row: row.raw_bytes,
    "transform": lambda row: row.weight_bytes,
    "transform_again": lambda row: row.weight_bytes,
    "cached_read": lambda row: row.weight_bytes,
    "cached_mmap": lambda row: row.weight_bytes,
}


def predicted_profiles(
    dnnl: Dnnl,
    model: Path,
    graph: Graph,
    settings: ProfileSettings,
    *,
    cores: Cores,
    name: str,
    store: ProfileStore,
    predictors: Path,
    layouts: Sequence[str] = HOMES,
) -> tuple[Profile, ...]:
    """Predict a model's profiles.

    Args:
        dnnl: the library.
        model: the model file.
        graph: its graph.
        settings: of the profiles that preparation is learnt from.
        cores: of the device.
        name: of the model.
        store: profiled rows; those of steps that the model itself has are left out.
        predictors: folder of the device's predictors.
        layouts: home layouts.

    Raises:
        FormatError: there are no predictors, or they do not fit.
        StoreError: too few steps of other models have been profiled.
        PredictionError: no candidate of a step has a predictor.
    """
    if not (predictors / "card.json").is_file():
        raise FormatError(
            "there are no predictors to plan from",
            where=str(predictors),
            next_step=f"train them (make reproduce DEVICE={predictors.parent.name}), or plan with --costs profiled",
        )
    predictor = DevicePredictor.load(predictors)
    lowered = lower(graph)
    weights = locate_weights(model, lowered)
    subjects = [subject(dnnl, lowered, home, weights, len(cores.big)) for home in layouts]
    own = {group.digest for found in subjects for group in found.groups}
    signed = [signatures(dnnl, lowered, home) for home in layouts]
    own |= {start_signature(s) for s in signed}
    rows = [row for row in store.all_rows() if row.signature not in own]
    candidates = sum(not row.signature.startswith((START, ONCE)) for row in rows)
    constants = store.constants()
    if candidates < _LEAST_ROWS or constants is None:
        raise StoreError(
            f"only {candidates} candidates of other models have been profiled; the cost of preparation is learnt from those",
            where=str(store.folder),
            next_step="plan a few other models with --costs profiled first",
        )
    execution = _Execution(dnnl, graph, predictor)
    preparation = _Preparation(rows, settings, cores)
    return tuple(
        _profile(
            found,
            name,
            execution,
            preparation,
            constants,
            touched_pages(dnnl, lowered, found.program.home, constants.page_bytes),
        )
        for found in subjects
    )


def _profile(
    found: Subject, name: str, execution: _Execution, preparation: _Preparation, constants: Constants, pages: Sequence[int]
) -> Profile:
    steps = found.program.steps
    rows: dict[str, list[Row]] = {}
    for group in found.groups:
        step = steps[group.steps[0]]
        times_ms = execution.times_ms(found, step, group.implementations)
        rows[group.digest] = [
            preparation.row(group, position, time) for position, time in enumerate(times_ms) if np.isfinite(time)
        ]
        if not rows[group.digest]:
            raise PredictionError(
                f"no implementation of {step.kind} {step.name!r} has a predictor",
                where=f"model {name}, home layout {found.program.home}",
                next_step="train the predictors on kernels of this kind, or plan with --costs profiled",
            )
    digest = {index: group.digest for group in found.groups for index in group.steps}
    named = [(step, digest[i], pages[i] * constants.touch_ms_per_page) for i, step in enumerate(steps)]
    return profile_of(
        name, found.program.home, named, found.program.shapes, rows, preparation.settings, preparation.cores,
        preparation.start.contention, touch_ms_per_byte=constants.touch_ms_per_byte, start_ms=preparation.start_ms(len(steps)),
        once_ms=preparation.once_ms, fresh=preparation.start.fresh,
    )  # fmt: skip


class _Execution:
    """The predictors, asked for one implementation rather than the one that an engine would dispatch."""

    def __init__(self, dnnl: Dnnl, graph: Graph, predictor: DevicePredictor) -> None:
        card, forest = predictor.card, predictor.packed
        assert forest is not None  # noqa: S101  loaded from a folder
        self._dnnl, self._graph = dnnl, graph
        self._evaluator = Evaluator(card, forest)
        self._code = {name: code for code, name in enumerate(card.implementations)}
        self._states = self._evaluator.states

    def times_ms(self, found: Subject, step: Step, implementations: Sequence[Implementation]) -> list[float]:
        """Execution of each implementation on one core, conversions included; NaN without a predictor."""
        if step.kind == "reshape" or not step.members:
            return [0.0] * len(implementations)
        kernel = make_kernel(self._graph, step.members).config
        config = replace(kernel, model_bytes=self._graph.footprint_bytes)
        home = found.program.home
        asked: list[tuple[int, KernelConfig, str, str]] = []
        for position, choice in enumerate(implementations):
            moving = step.kind in MOVING_KINDS
            reads = home if moving else choice.variant.source
            asked.append((position, config, f"{step.kind}.{choice.kernel}", reads))
            if not moving:
                asked += [(position, *c) for c in self._conversions(found, step, choice)]
        table = stand_ins(ConfigTable.of(c for _, c, _, _ in asked), self._evaluator.kinds).table
        codes = np.array([self._code.get(name, -1) for _, _, name, _ in asked], dtype=np.int64)
        states = np.array([self._states.get(state, 0) for _, _, _, state in asked], dtype=np.int64)
        latency_us, _ = self._evaluator.latency(table, codes, states)
        if (fit := self._evaluator.card.bandwidth) is not None:
            latency_us = np.where(np.isnan(latency_us), fit.latency_us(table), latency_us)
        total = [0.0] * len(implementations)
        for (position, _, _, _), time_us in zip(asked, latency_us.tolist(), strict=True):
            total[position] += time_us / 1e3
        return total

    def _conversions(self, found: Subject, step: Step, choice: Implementation) -> Iterable[tuple[KernelConfig, str, str]]:
        program, block = found.program, self._dnnl.info.block
        sides = [(t, program.layouts[t], choice.variant.source) for t in step.reads]
        sides += [(t, choice.variant.output, program.layouts[t]) for t in step.outputs]
        for tensor, before, after in sides:
            shape = program.shapes[tensor]
            if tensor in self._graph.tensors and not same_bytes(shape, before, after, block):
                yield reorder_config(self._graph.tensors[tensor]), f"{before}>{after}", before


class _Preparation:
    """Models of the preparation stages, fitted over rows."""

    def __init__(self, rows: Sequence[Row], settings: ProfileSettings, cores: Cores) -> None:
        self.settings, self.cores = settings, cores
        self._starts = [row for row in rows if row.signature.startswith(START)]
        self.once_ms = once_ms(rows)
        self.start = start_of(self._starts)
        self._rows = rows = [row for row in rows if not row.signature.startswith((START, ONCE))]
        self._lines: dict[tuple[str, str], tuple[float, float]] = {}
        narrow, wide = cores.widths[0], cores.widths[-1]
        both = [(r, self._typical(r, f"first:{narrow}"), self._typical(r, f"first:{wide}")) for r in rows]
        self._wide = {
            kind: statistics.median(w / n for r, n, w in both if n and w and kind in ("", _kind(r.implementation)))
            for kind in {"", *(_kind(r.implementation) for r, n, w in both if n and w)}
        }

    def start_ms(self, steps: int) -> float:
        """What a program of so many steps pays before any of them: in proportion to their number, as in other models."""
        shares = [start_of([row]).start_ms / row.position for row in self._starts]
        return steps * statistics.median(shares) if shares else 0.0

    def _typical(self, row: Row, stage: str) -> float | None:
        times = row.samples_ms.get(stage)
        return statistics.median(times) if times else None

    def row(self, group: Group, position: int, execute_ms: float) -> Row:
        """A row of a candidate that was not measured.

        Args:
            group: the candidate's steps.
            position: of the candidate.
            execute_ms: predicted on one core; on all cores the speed-up of profiled steps is taken.
        """
        sizes, name = group.sizes[position], group.implementations[position].name
        blank = Row(group.digest, name, position, sizes.raw, sizes.weights, sizes.scratch, {}, 0.0)
        stages = _STAGES if sizes.weights else ("create", "create_again")
        samples = {f"{s}:{core}": (self._stage_ms(s, blank, core),) for s in stages for core in self.cores.classes}
        wide = self._wide.get(_kind(name), self._wide.get("", 1.0))
        for width in self.cores.widths:
            time = execute_ms * (wide if width > 1 else 1.0)
            samples |= {f"first:{width}": (time,), f"warm:{width}": (time,)}
        return replace(blank, samples_ms=samples)

    def _stage_ms(self, stage: str, row: Row, core: str) -> float:
        kind = _kind(row.implementation)
        key = (f"{stage}:{core}", kind)
        if key not in self._lines:
            self._lines[key] = self._line(stage, core, kind)
        call, per_byte = self._lines[key]
        return call + per_byte * _size(stage, row)

    def _line(self, stage: str, core: str, kind: str) -> tuple[float, float]:
        """Milliseconds per call and per byte: over implementations of the kind, else over all."""
        by_kind = stage in ("create", "create_again", "transform", "transform_again")
        typical = [(row, self._typical(row, f"{stage}:{core}")) for row in self._rows]
        points = [(_size(stage, row), time, _kind(row.implementation)) for row, time in typical if time is not None]
        own = [p for p in points if p[2] == kind] if by_kind else points
        points = own or points
        if not points:
            return 0.0, 0.0
        bytes_, times = np.array([p[0] for p in points], float), np.array([p[1] for p in points])
        if not np.ptp(bytes_):
            return float(np.median(times)), 0.0
        # relative errors count: the many small steps must not be drowned by a few large ones
        matrix = np.stack([np.ones_like(bytes_), bytes_], axis=1) / np.maximum(times, 1e-4)[:, None]
        call, per_byte = np.linalg.lstsq(matrix, times / np.maximum(times, 1e-4), rcond=None)[0]
        return max(float(call), 0.0), max(float(per_byte), 0.0)


def _size(stage: str, row: Row) -> int:
    return _BYTES[stage](row) if stage in _BYTES else 0


def _kind(implementation: str) -> str:
    """The family of an implementation: `brgconv:avx512_core@nhwc+plain` is of `brgconv:avx512_core`, with conversions."""
    return implementation.partition("+")[0].partition("@")[0]
