"""Makes profiles without measuring the model: execution from the predictors, preparation from steps of other models.

Execution is what the predictors of the device say about each implementation, plus the conversions around it. Preparation is
fitted over profiled steps of other models, never of the planned one: creation costs the same for any size,
reading and transforming weights a price a call and a byte. The fit is a small document, which the package ships of some devices
(`preparation.json`): it stands for the rows of a machine where too few were profiled.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.errors import StoreError
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernel_nodes import node_config, reorder_config
from edgeplan.graph.nodes import NodeConfig
from edgeplan.graph.onnx.write import weight_bytes
from edgeplan.graph.steps import Step
from edgeplan.measurement.others import DISTURBED
from edgeplan.planning.profile import Profile, kernel_name
from edgeplan.predictors.nodes.predictor import NodePredictor
from edgeplan.profiling.fresh_process_factors import START, Start, start_of, start_signature
from edgeplan.profiling.profiles import ONCE, once_ms, profile_of
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.store import Constants, ProfileStore, Row
from edgeplan.profiling.subjects import Group, ProfilingSubject, signatures, subject
from edgeplan.runtime.creation import MOVING_KINDS, Implementation
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES, same_bytes
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import locate_weights
from edgeplan.support.files import read_json, write_text
from edgeplan.support.machine import fingerprint
from edgeplan.workspace import SHIPPED

FILE_NAME = "preparation.json"
STAGES = ("read", "create", "transform", "cached_read", "cached_mmap", "create_again", "transform_again")
#: Stages whose cost depends on the kernel; the others move bytes, whatever they are for.
_BY_KIND = ("create", "create_again", "transform", "transform_again")
_LEAST_ROWS = 20
_LEAST_MS = 1e-4  # of a sample, for a relative error of it to count
#: The key of a fit over all kinds.
_ALL = ""


class PreparationCosts(BaseModel):
    """Preparation costs are fitted on one machine.

    Attributes:
        cpu, fingerprint, measured_at: the processor, the machine and the day of the rows; "" if nobody has noted it.
        start_ms_per_step: time before a program's first step, in proportion to its steps.
        once_ms: milliseconds of a kernel's first execution in a process, by kernel.
        lines: milliseconds a call and a byte, by `stage:class of core`, then by kind of kernel.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = 1
    cpu: str = ""
    fingerprint: str = ""
    measured_at: str = ""
    candidates: int = Field(ge=_LEAST_ROWS)
    constants: Constants
    start: Start
    start_ms_per_step: float = Field(ge=0)
    once_ms: Mapping[str, float]
    wide: Mapping[str, float]
    lines: Mapping[str, Mapping[str, tuple[float, float]]]

    @staticmethod
    def fitted(rows: Sequence[Row], constants: Constants, cores: Cores) -> PreparationCosts:
        """Fit the costs of preparation over profiled rows: of candidates, first calls and whole programs."""
        starts = [row for row in rows if row.signature.startswith(START)]
        candidates = [row for row in rows if not row.signature.startswith((START, ONCE))]
        shares = [start_of([row]).start_ms / row.position for row in starts]
        return PreparationCosts(
            candidates=len(candidates),
            constants=constants,
            start=start_of(starts),
            start_ms_per_step=statistics.median(shares) if shares else 0.0,
            once_ms=once_ms(rows),
            wide=_wide(candidates, cores),
            lines={f"{stage}:{core}": _lines(candidates, stage, core) for stage in STAGES for core in cores.classes},
        )

    @staticmethod
    def of_store(store: ProfileStore, own: frozenset[str], cores: Cores, *, disturbed: bool = False) -> PreparationCosts:
        """Costs fitted over what was profiled of other models: rows of `own`, the planned model's steps, are left out.

        Rows that were measured beside other work, where two cores may take longer than one, count if `disturbed`.
        """
        rows = [row for row in store.all_rows() if row.signature not in own and (disturbed or row.others <= DISTURBED)]
        candidates = sum(not row.signature.startswith((START, ONCE)) for row in rows)
        constants = store.constants()
        if candidates < _LEAST_ROWS or constants is None:
            raise StoreError(
                f"only {candidates} candidates of other models have been profiled, behind the cost of preparation",
                where=str(store.folder),
                next_step="plan a few other models with --costs profiled first",
            )
        return PreparationCosts.fitted(rows, constants, cores)

    @staticmethod
    def shipped(device: str, folder: Path = SHIPPED) -> PreparationCosts | None:
        """Return the costs that the package ships of a device, None if it ships none."""
        path = folder / device / FILE_NAME
        return read_json(path, PreparationCosts, "the costs of preparation") if path.is_file() else None

    def write(self, path: Path) -> None:
        """Write the document to a file."""
        write_text(path, self.model_dump_json(indent=1) + "\n")

    def require_classes(self, cores: Cores) -> None:
        """Refuse cores of a class that nothing is known of."""
        if missing := [core for core in cores.classes if f"create:{core}" not in self.lines]:
            raise StoreError(
                f"nothing was profiled on {missing[0]} cores, and the shipped costs of preparation know none",
                where=FILE_NAME,
                next_step="plan a few models with --costs profiled first",
            )

    def about(self) -> str:
        """Tell whose machine the costs are of, as a line of text; "" where it is this one."""
        try:
            here = not self.fingerprint or self.fingerprint == fingerprint()
        except StoreError:  # a machine without an id, and nowhere to keep one
            here = False
        if here:
            return ""
        rows = f"rows of {self.measured_at}, shipped"
        return f"preparation predicted for {self.cpu or 'another processor'} ({rows}), not for this machine"

    def stage_ms(self, stage: str, row: Row, core: str) -> float:
        """Return the cost of a stage, ms, for a candidate of known sizes: that of its kind of kernel, else of all kinds."""
        lines = self.lines[f"{stage}:{core}"]
        call, per_byte = lines.get(kernel_name(row.implementation), lines[_ALL])
        return call + per_byte * _size(stage, row)


def _typical(row: Row, stage: str) -> float | None:
    times = row.samples_ms.get(stage)
    return statistics.median(times) if times else None


def _size(stage: str, row: Row) -> int:
    """Return what a preparation stage costs in proportion to; creation costs the same for any size."""
    return 0 if stage.startswith("create") else row.raw_bytes if stage == "read" else row.weight_bytes


def _wide(rows: Sequence[Row], cores: Cores) -> dict[str, float]:
    """Return typical ratios of the time on all cores to that on one core, by kind and over all."""
    narrow, wide = cores.widths[0], cores.widths[-1]
    both = [(kernel_name(r.implementation), _typical(r, f"first:{narrow}"), _typical(r, f"first:{wide}")) for r in rows]
    ratios = [(kind, w / n) for kind, n, w in both if n and w]
    if not ratios:
        return {}
    return {kind: statistics.median(ratio for of, ratio in ratios if kind in (_ALL, of)) for kind in {_ALL, *dict(ratios)}}


def _lines(rows: Sequence[Row], stage: str, core: str) -> dict[str, tuple[float, float]]:
    """Fit milliseconds a call and a byte: by kind of kernel where that decides, and over all."""
    typical = [(row, _typical(row, f"{stage}:{core}")) for row in rows]
    points = [(_size(stage, row), time, kernel_name(row.implementation)) for row, time in typical if time is not None]
    kinds = sorted({kind for _, _, kind in points}) if stage in _BY_KIND else []
    return {_ALL: _line(points), **{kind: _line([p for p in points if p[2] == kind]) for kind in kinds}}


def _line(points: Sequence[tuple[int, float, str]]) -> tuple[float, float]:
    if not points:
        return 0.0, 0.0
    bytes_, times = np.array([p[0] for p in points], float), np.array([p[1] for p in points])
    if not np.ptp(bytes_):
        return float(np.median(times)), 0.0
    # relative errors count: the many small steps must not be drowned by a few large ones
    matrix = np.stack([np.ones_like(bytes_), bytes_], axis=1) / np.maximum(times, _LEAST_MS)[:, None]
    call, per_byte = np.linalg.lstsq(matrix, times / np.maximum(times, _LEAST_MS), rcond=None)[0]
    return max(float(call), 0.0), max(float(per_byte), 0.0)


def predicted_profiles(
    dnnl: Dnnl,
    model: Path,
    graph: Graph,
    *,
    cores: Cores,
    name: str,
    store: ProfileStore,
    predictor: NodePredictor,
    shipped: PreparationCosts | None = None,
    layouts: Sequence[str] = HOMES,
) -> tuple[tuple[Profile, ...], PreparationCosts]:
    """Predict a model's profiles under its home layouts, and tell from which costs of preparation.

    Rows of steps that the model itself has are left out; where too few steps of other models have been profiled, the `shipped`
    costs of preparation are taken.
    """
    lowered = lower(graph)
    weights = locate_weights(model, lowered)
    subjects = [subject(dnnl, lowered, home, weights, len(cores.big)) for home in layouts]
    own = {group.digest for found in subjects for group in found.groups}
    signed = [signatures(dnnl, lowered, home) for home in layouts]
    own |= set(map(start_signature, signed))
    try:
        costs = PreparationCosts.of_store(store, frozenset(own), cores)
    except StoreError:
        if shipped is not None:
            shipped.require_classes(cores)
            costs = shipped
        else:
            costs = PreparationCosts.of_store(store, frozenset(own), cores, disturbed=True)
    execution, start = _Execution(dnnl, graph, predictor), len(lowered.steps) * costs.start_ms_per_step
    about = cores, costs.constants, replace(costs.start, start_ms=start, noise=0.0), costs.once_ms
    return tuple(
        profile_of(dnnl, name, lowered, found.program.home, names, _rows(found, execution, costs, cores), *about)
        for found, names in zip(subjects, signed, strict=True)
    ), costs


def _rows(found: ProfilingSubject, execution: _Execution, costs: PreparationCosts, cores: Cores) -> dict[str, list[Row]]:
    rows = {}
    for group in found.groups:
        times_ms = execution.times_ms(found, found.program.steps[group.steps[0]], group.implementations)
        rows[group.digest] = [_row(costs, cores, group, position, time) for position, time in enumerate(times_ms)]
    return rows


class _Execution:
    """An execution asks the predictor for one implementation, not the one that an engine would dispatch."""

    def __init__(self, dnnl: Dnnl, graph: Graph, predictor: NodePredictor) -> None:
        self._dnnl, self._graph, self._predictor = dnnl, graph, predictor

    def times_ms(self, found: ProfilingSubject, step: Step, implementations: Sequence[Implementation]) -> list[float]:
        """Predict each implementation's execution on one core, ms, conversions included."""
        if step.kind == "reshape" or not step.members:
            return [0.0] * len(implementations)
        home = found.program.home
        asked: list[tuple[int, NodeConfig]] = []
        for position, choice in enumerate(implementations):
            moving = step.kind in MOVING_KINDS
            reads, writes = (home, home) if moving else (choice.variant.source, choice.variant.output)
            name = f"{step.kind}.{choice.kernel}"
            asked.append((position, node_config(self._graph, step.members, reads, writes, name)))
            if not moving:
                asked += [(position, config) for config in self._conversions(found, step, choice)]
        us = self._predictor.nodes_us([config for _, config in asked], weight_bytes(self._graph))
        total = [0.0] * len(implementations)
        for (position, _), time_us in zip(asked, us.tolist(), strict=True):
            total[position] += time_us / 1e3
        return total

    def _conversions(self, found: ProfilingSubject, step: Step, choice: Implementation) -> Iterable[NodeConfig]:
        program, block = found.program, self._dnnl.info.block
        sides = [(t, program.layouts[t], choice.variant.source) for t in step.reads]
        sides += [(t, choice.variant.output, program.layouts[t]) for t in step.outputs]
        for tensor, before, after in sides:
            shape = program.shapes[tensor]
            if tensor in self._graph.tensors and not same_bytes(shape, before, after, block):
                yield reorder_config(self._graph.tensors[tensor], before, after)


def _row(costs: PreparationCosts, cores: Cores, group: Group, position: int, execute_ms: float) -> Row:
    """Return a row of a candidate that was not measured; on all cores the speed-up of profiled steps is taken."""
    sizes, name = group.sizes[position], group.implementations[position].name
    blank = Row(group.digest, name, position, sizes.raw, sizes.weights, sizes.scratch, {}, 0.0)
    stages = STAGES if sizes.weights else ("create", "create_again")
    samples = {f"{s}:{core}": (costs.stage_ms(s, blank, core),) for s in stages for core in cores.classes}
    wide = costs.wide.get(kernel_name(name), costs.wide.get(_ALL, 1.0))
    for width in cores.widths:
        time = execute_ms * (wide if width > 1 else 1.0)
        samples |= {f"first:{width}": (time,), f"warm:{width}": (time,)}
    return replace(blank, samples_ms=samples)
