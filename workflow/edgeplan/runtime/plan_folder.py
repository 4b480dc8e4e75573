"""Plan folders of cold starts: a plan with everything that a cold start needs, so that it parses no model and decides nothing.

`program.bin` is the linked program of the plan, with the calls of its steps and how raw weights are made; `weights.cache` holds
transformed weights. The model stays where it is, or beside these files, and is known by its stamp.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgeplan.errors import FormatError
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.planning.document import Plan, check_fits
from edgeplan.planning.profile import SOURCES
from edgeplan.runtime.candidates import default
from edgeplan.runtime.creation import Created, Implementation, aligned, paged, same_weights
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable, Worker, transformed
from edgeplan.runtime.folder import CACHE_NAME, COLD_START, PLAN_NAME, MadeFor, plan_again, replacing, write_plan
from edgeplan.runtime.linking import LinkedStep, Linker, can_be_raw
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.packed_programs import ColdProgram, ModelFile, cold_program
from edgeplan.runtime.program import laid_out, step_candidates
from edgeplan.runtime.program_file import PROGRAM_BIN, Border, checksum
from edgeplan.runtime.tape import Recorder
from edgeplan.runtime.weights import WeightLocation, locate_weights
from edgeplan.support.files import settled_stamp, write_atomically

_LOG = logging.getLogger(__name__)
#: What a program is told of the plan.
_FACTS = ("model", "threads", "layout", "equal_cores", "little_ratio", "widen_from")
#: What a plan document says of its target and its prediction: the rest is the schedule.
_TARGET = ("model", "model_sha256", "library", "library_version", "isa", "machine", "threads")
_PREDICTED = ("makespan_ms", "lower_bound_ms", "gap", "planning_ms", "noise", "others")


def build_plan_folder(
    dnnl: Dnnl, model: Path, plan: Plan, folder: Path, *, limit_bytes: int | None = None, warm: Sequence[str] | None = None
) -> Path:
    """Write a plan folder of a cold start and return it; see `write_linked`."""
    write_linked(dnnl, model, plan, folder, limit_bytes=limit_bytes, warm=warm)
    return folder


def write_linked(
    dnnl: Dnnl, model: Path, plan: Plan, folder: Path, *, limit_bytes: int | None = None, warm: Sequence[str] | None = None
) -> ColdProgram:
    """Write a plan folder of a cold start.

    Args:
        dnnl: the library.
        model: the ONNX file.
        plan: what to run.
        folder: where to write; made if it is not there.
        limit_bytes: most bytes of weights in the cache. Beyond it the largest are made from the model's at every start instead,
            those that can be (`linking.can_be_raw`); the prediction of the plan then no longer holds, which is logged.
        warm: the implementation of each step in later runs (section 3.5), in place of those that the plan names; without either
            those of the cold start. Later runs are on all cores, so steps that the cold start executes on fewer are made again
            in any case.

    Returns:
        The program that is in it.
    """
    plan = plan if warm is None else plan.with_later(warm)
    lowered = _lowered(model, plan)
    target = replace(plan.target, library_version=dnnl.info.version, isa=dnnl.info.isa)
    check_fits(plan, target, tuple(step.name for step in lowered.steps), str(folder / PLAN_NAME))
    with dnnl.without_primitive_cache():  # the tables must hold in a fresh process
        linking = _Linking(lowered, plan, locate_weights(model, lowered))
    linked = linking.placed(_files(model, plan, linking.linker.files), limit_bytes)
    with replacing(folder) as building, Executable(linking.recorder, linking.program, model.parent) as executable:
        _write(linking, linked, executable, model, building)
    return linked


def _write(linking: _Linking, linked: ColdProgram, executable: Executable, model: Path, work: Path) -> None:
    """Write all files of the folder, with what is known of its weights then."""
    plan, cache = linking.plan, work / CACHE_NAME
    if linked.facts["cache_bytes"]:
        write_atomically(cache, lambda temporary: _write_cache(linking, linked, executable, temporary))
        linked.facts["stamp"] = settled_stamp(cache)
    content = cold_program(linked, linking.recorder.info, continuous=bool(plan.later))
    write_atomically(work / PROGRAM_BIN, lambda temporary: temporary.write_bytes(content))
    document = plan.model_dump(mode="json")
    predicted = {name: document.pop(name) for name in _PREDICTED if name in document}
    scheduled = {name: value for name, value in document.items() if name not in _TARGET}
    path = str(model.parent.resolve() / model.name)  # a link keeps its name
    made_for = MadeFor(path, plan.model_sha256, plan.machine, plan.library_version, plan.isa, plan.threads)
    write_plan(work, COLD_START, made_for, scheduled, predicted, (PROGRAM_BIN,))


def _write_cache(linking: _Linking, linked: ColdProgram, executable: Executable, path: Path) -> None:
    """Write the transformed weights of all steps that have theirs in the cache, and note their checksums."""
    worker = Worker(linking.recorder)
    with path.open("wb") as file:
        for k, step in enumerate(linked.steps):
            if step.cached:
                made, given = linking.created[k], executable.read(k)
                data = transformed(linking.recorder, executable.program.steps[k], made, given, worker).data
                file.seek(step.segment)
                file.write(data.data)
                step.checksum = checksum(data)
        file.truncate(linked.facts["cache_bytes"])


def _lowered(model: Path, plan: Plan) -> Lowered:
    """The steps that the plan speaks of: plans are made from models as they are, or simplified."""
    graph = load_onnx(model)
    lowered = lower(graph)
    if tuple(step.name for step in lowered.steps) != plan.steps:
        lowered = lower(simplify(graph))
    return lowered


def _files(model: Path, plan: Plan, names: Sequence[str]) -> tuple[ModelFile, ...]:
    """The files that weights are in; the model must be the one that was planned."""
    # first: whatever is written while a file is hashed must not have this stamp. A link keeps its name: a copy of the model
    # beside the plan is found by it.
    paths = [model.parent.resolve() / name for name in names]
    known = [(str(path), settled_stamp(path)) for path in paths]
    found = model_sha256(model)
    if found != plan.model_sha256:
        raise FormatError(
            f"the plan is for another model: this one's hash is {found}, the plan's {plan.model_sha256}",
            where=str(model),
            next_step=plan_again(COLD_START),
        )
    return tuple(ModelFile(path, stamp[2], stamp, checksum(np.memmap(path, np.uint8, "r"))) for path, stamp in known)


def _chosen(
    lowered: Lowered, offered: Sequence[Sequence[Implementation]], names: Sequence[str], version: str
) -> tuple[Implementation, ...]:
    found = []
    for step, candidates, name in zip(lowered.steps, offered, names, strict=True):
        by_name = {c.name: c for c in candidates} | {"": default(tuple(candidates))}
        if name not in by_name:
            raise FormatError(
                f"this oneDNN offers no {name!r} for step {step.name!r}, only {', '.join(filter(None, by_name))}",
                where=f"oneDNN {version}",
                next_step=plan_again(COLD_START),
            )
        found.append(by_name[name])
    return tuple(found)


def _offered(recorder: Recorder, lowered: Lowered, plan: Plan) -> list[tuple[Implementation, ...]]:
    """The candidates of every step. What the library offers may depend on the number of threads."""
    found: list[dict[str, Implementation]] = [{} for _ in lowered.steps]
    for threads in dict.fromkeys((1, _narrow_width(plan), plan.threads)):
        recorder.set_threads(threads)
        for known, candidates in zip(found, step_candidates(recorder, lowered, plan.layout), strict=True):
            known.update({c.name: known.get(c.name, c) for c in candidates})
    recorder.set_threads(1)
    return [tuple(known.values()) for known in found]


class _Linking:
    """A plan being linked by a library that keeps what was made: its steps, and places for activations, not for weights."""

    def __init__(self, lowered: Lowered, plan: Plan, locations: Mapping[str, WeightLocation]) -> None:
        self.plan, self.recorder, self._lowered = plan, Recorder(), lowered
        offered = _offered(self.recorder, lowered, plan)
        names = [plan.implementations[i] for i in plan.implementation]
        chosen = _chosen(lowered, offered, names, plan.library_version)
        warm = _chosen(lowered, offered, plan.warm, plan.library_version) if plan.later else chosen
        self.program = laid_out(self.recorder, lowered, plan.layout, chosen, locations)  # scratch: see `placed`
        self.linker = Linker(self.recorder, self.program, plan.threads)
        self.created: list[Created] = []
        self._raw = [can_be_raw(step, lowered.types) for step in lowered.steps]
        self._steps: list[LinkedStep] = []
        self._later: list[LinkedStep | None] = []
        for k, (cold, warmer) in enumerate(zip(chosen, warm, strict=True)):
            self._link(k, cold, warmer)

    def _link(self, k: int, cold: Implementation, warmer: Implementation) -> None:
        """A step of the cold start, and of later runs where these execute it in another way."""
        plan, step, linker = self.plan, self._lowered.steps[k], self.linker
        width = _narrow_width(plan) if k < plan.widen_from else plan.threads
        linked, created = linker.step(step, cold, SOURCES[plan.source[k]], width)
        if linked.source == "raw" and not self._raw[k]:
            linked.source = "cached_read"
        self._steps.append(linked)
        self.created.append(created)
        self._later.append(None)
        if (width, cold) == (plan.threads, warmer):
            return
        again, recreated = linker.step(step, warmer, "raw", plan.threads)
        if cold == warmer and created.slots and same_weights(self.recorder, created, recreated):
            again.source = "shared"
        if again.source != "raw" or self._raw[k]:  # else the kernel of the cold start stays
            self._later[k] = again

    def placed(self, files: Sequence[ModelFile], limit_bytes: int | None) -> ColdProgram:
        """The program with places for its weights, in memory and, in the order of execution, in the cache."""
        self._limit(limit_bytes)
        at = end = 0
        for step in (*self._steps, *filter(None, self._later)):
            if step.source in ("raw", "cached_read"):  # what is mapped or shared has a place
                step.place = at
                at += aligned(step.weight_bytes)
        for step in self._steps:
            if step.cached:
                step.segment = end
                end += paged(step.weight_bytes)
        lowered, program, plan = self._lowered, self.program, self.plan

        def border(names: Sequence[str], limits: Mapping[str, int]) -> list[Border]:
            shapes, offsets = program.shapes, program.offsets
            return [Border(n, shapes[n], offsets[n], program.dtype(n), limits.get(n, 2)) for n in names]

        facts = {name: getattr(plan, name) for name in _FACTS} | {"weights_bytes": at, "cache_bytes": end}
        facts["arena_bytes"] = aligned(program.scratch_offset + self.linker.scratch_bytes)
        borders = border(lowered.inputs, lowered.limits), border(lowered.outputs, {})
        return ColdProgram(facts, (plan.main, *plan.queues), *borders, files, self.linker.tape, self._steps, self._later)

    def _limit(self, limit_bytes: int | None) -> None:
        """Keep the smallest weights in the cache while they fit, so that most steps are spared their making; others always."""
        if limit_bytes is None:
            return
        cached = sorted((k for k, step in enumerate(self._steps) if step.cached), key=lambda k: self._steps[k].weight_bytes)
        leaving = [self._steps[k] for k in cached if self._raw[k]]
        total = sum(paged(self._steps[k].weight_bytes) for k in cached)
        dropped = 0
        while leaving and total > limit_bytes:
            step = leaving.pop()
            step.source = "raw"
            total -= paged(step.weight_bytes)
            dropped += 1
        if dropped:
            what = "%d of %d steps do not fit into a cache of %d bytes: slower than planned"
            _LOG.warning(what, dropped, len(cached), limit_bytes)
        if total > limit_bytes:
            _LOG.warning("the cache has %d bytes: the rest cannot be made from the model's weights at a start", total)


def _narrow_width(plan: Plan) -> int:
    """Cores that execute while others prepare."""
    return max(1, plan.threads - len(plan.queues)) if plan.equal_cores else plan.threads
