"""Plan folders of cold starts: a plan with everything that a cold start needs, so that it parses no model and decides nothing.

`program.json` is the linked program of the plan, `program.tape` its C calls, `reserve.json` what is needed for raw weights,
where the cache fails and in later runs, `weights.cache` the transformed weights. The raw model stays where it is, or beside
these files, and is known by its size, time stamp and hash.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict
from msgspec.structs import replace as changed

from edgeplan.errors import FormatError
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.planning.document import Plan, check_fits, plan_of
from edgeplan.planning.profile import SOURCES
from edgeplan.runtime.candidates import default
from edgeplan.runtime.creation import Implementation, aligned
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import COLD_START, PLAN_NAME, PROGRAM_NAME, MadeFor, PlanFolder, encoded, replacing, write_plan
from edgeplan.runtime.lanes import narrow_width
from edgeplan.runtime.linked import AGAIN, Linked, Reserve, Stamps
from edgeplan.runtime.linking import Linker, Recorder
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.memory import checksum
from edgeplan.runtime.placement import placed
from edgeplan.runtime.preparation import CACHE_NAME, RESERVE_NAME, Preparer, Shared
from edgeplan.runtime.program import Program, activation_layouts, plan_buffers, step_candidates
from edgeplan.runtime.raw_weights import file_sha256
from edgeplan.runtime.tape_file import TAPE_NAME, tape_of, write_tape
from edgeplan.runtime.weight_cache import header, key_of, settled_stamp, write_cache
from edgeplan.runtime.weights import WeightLocation, locate_weights
from edgeplan.support.files import write_atomically

#: What a plan document says of its target and its prediction: the rest is the schedule.
_TARGET = ("model", "model_sha256", "library", "library_version", "isa", "machine", "threads")
_PREDICTED = ("makespan_ms", "lower_bound_ms", "gap", "planning_ms", "noise", "others")


def build_plan_folder(
    dnnl: Dnnl,
    model: Path,
    plan: Plan,
    folder: Path,
    *,
    limit_bytes: int | None = None,
    warm: Sequence[str] | None = None,
) -> Path:
    """Write a plan folder of a cold start.

    Args:
        dnnl: the library.
        model: the ONNX file.
        plan: what to run.
        folder: where to write; made if it is not there.
        limit_bytes: most bytes of weights in the cache. Beyond it the largest are transformed at every start instead; the
            prediction of the plan then no longer holds, which is logged.
        warm: the implementation of each step in later runs (section 3.5), in place of those that the plan names; without either
            those of the cold start. Later runs are on all cores, so steps that the cold start executes on fewer are made again
            in any case.

    Returns:
        The folder.
    """
    plan = plan if warm is None else plan.with_later(warm)
    lowered = _lowered(model, plan)
    target = replace(plan.target, library_version=dnnl.info.version, isa=dnnl.info.isa)
    check_fits(plan, target, tuple(step.name for step in lowered.steps), str(folder / PLAN_NAME))
    locations = locate_weights(model, lowered)
    with dnnl.without_primitive_cache():  # the tables must hold in a fresh process
        document = _linked(lowered, plan, locations)
    document |= {"files": _files(model, plan, document["files"])}
    linked = placed(document, plan, limit_bytes)
    with replacing(folder) as building:
        _write(dnnl, linked, plan, model, building)
    return folder


def cold_plan(folder: PlanFolder) -> Plan:
    """The plan document of a plan folder."""
    made = folder.made_for
    target = (Path(made.model).name, made.model_sha256, "onednn", made.library, made.isa, made.machine, made.threads)
    parts = folder.scheduled(dict) | folder.predicted(dict) | dict(zip(_TARGET, target, strict=True))
    parts = {name: value for name, value in parts.items() if name not in Stamps.__struct_fields__}
    return plan_of(json.dumps(parts), str(folder.path / PLAN_NAME))


def _write(dnnl: Dnnl, linked: Linked, plan: Plan, model: Path, work: Path) -> None:
    """Write all files of the folder."""
    tape, program, reserve = tape_of(linked), linked.program, linked.reserve
    write_tape(tape, work / TAPE_NAME)
    with Shared(dnnl, program, work, tape=tape, reserve=lambda: reserve, cached=False) as shared:
        preparer = Preparer(shared)
        steps = tuple(
            changed(step, checksum=checksum(preparer.transformed(k))) if step.cached else step
            for k, step in enumerate(reserve.steps)
        )
        if program.cache_bytes:
            program = changed(program, cache_key=key_of(header(program, steps)))
            write_cache(program, steps, work / CACHE_NAME, preparer.transformed)
    stamps = Stamps(program.files, settled_stamp(work / CACHE_NAME) if program.cache_bytes else ())
    documents = {PROGRAM_NAME: changed(program, files=()), RESERVE_NAME: Reserve(steps, reserve.later).without_calls()}
    for name, content in documents.items():
        write_atomically(work / name, partial(Path.write_bytes, data=encoded(content)))
    document = plan.model_dump(mode="json")
    predicted = {name: document.pop(name) for name in _PREDICTED if name in document}
    scheduled = {name: value for name, value in document.items() if name not in _TARGET} | asdict(stamps)
    path = str(model.parent.resolve() / model.name)  # a link keeps its name
    made_for = MadeFor(path, plan.model_sha256, plan.machine, plan.library_version, plan.isa, plan.threads)
    write_plan(work, COLD_START, made_for, scheduled, predicted, (PROGRAM_NAME, RESERVE_NAME, TAPE_NAME))


def _lowered(model: Path, plan: Plan) -> Lowered:
    """The steps that the plan speaks of: plans are made from models as they are, or simplified."""
    graph = load_onnx(model)
    lowered = lower(graph)
    if tuple(step.name for step in lowered.steps) != plan.steps:
        lowered = lower(simplify(graph))
    return lowered


def _files(model: Path, plan: Plan, names: Sequence[str]) -> list[dict[str, Any]]:
    """The files that weights are in; the model must be the one that was planned."""
    found = model_sha256(model)
    if found != plan.model_sha256:
        raise FormatError(
            f"the plan is for another model: this one's hash is {found}, the plan's {plan.model_sha256}",
            where=str(model),
            next_step=AGAIN,
        )
    # a link keeps its name: a copy of the model beside the plan is found by it. A model without weights is named, too: only so
    # the plan knows what its outputs are checked against.
    return [_file(model.parent.resolve() / name) for name in names or (model.name,)]


def _file(path: Path) -> dict[str, Any]:
    found = settled_stamp(path)  # first: whatever is written while the file is hashed must not have this stamp
    with path.open("rb") as file:
        return {"path": str(path), "size": file.seek(0, os.SEEK_END), "stamp": found, "sha256": file_sha256(file.fileno())}


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
                next_step=AGAIN,
            )
        found.append(by_name[name])
    return tuple(found)


def _offered(recorder: Recorder, lowered: Lowered, plan: Plan) -> list[tuple[Implementation, ...]]:
    """The candidates of every step. What the library offers may depend on the number of threads."""
    found: list[dict[str, Implementation]] = [{} for _ in lowered.steps]
    for threads in dict.fromkeys((1, narrow_width(plan), plan.threads)):
        recorder.set_threads(threads)
        for known, candidates in zip(found, step_candidates(recorder, lowered, plan.layout), strict=True):
            known.update({c.name: known.get(c.name, c) for c in candidates})
    recorder.set_threads(1)
    return [tuple(known.values()) for known in found]


def _linked(lowered: Lowered, plan: Plan, locations: Mapping[str, WeightLocation]) -> dict[str, Any]:
    """The tables of a plan, without places for its weights."""
    recorder = Recorder()
    offered = _offered(recorder, lowered, plan)
    chosen = _chosen(lowered, offered, [plan.implementations[i] for i in plan.implementation], plan.library_version)
    later = _chosen(lowered, offered, plan.warm, plan.library_version) if plan.later else chosen
    program = _buffers(recorder, lowered, plan.layout, chosen, locations)
    linker = Linker(recorder, program, plan.threads)
    narrow = narrow_width(plan)
    steps: list[dict[str, Any]] = []
    switched: list[dict[str, Any] | None] = []
    for k, (step, cold, warmer) in enumerate(zip(lowered.steps, chosen, later, strict=True)):
        width = narrow if k < plan.widen_from else plan.threads
        row, created = linker.step(step, cold, SOURCES[plan.source[k]], width)
        steps.append(row)
        if (width, cold) == (plan.threads, warmer):
            switched.append(None)
            continue
        again, recreated = linker.step(step, warmer, "raw", plan.threads)
        if cold == warmer and created.slots and linker.same_weights(created, recreated):
            again["source"] = "shared"
        switched.append(again)

    def border(names: Sequence[str], limits: Mapping[str, int]) -> list[dict[str, Any]]:
        return [
            {"name": n, "shape": program.shapes[n], "offset": program.offsets[n], "dtype": program.dtype(n)}
            | ({"below": limits[n]} if n in limits else {})
            for n in names
        ]

    return {
        **linker.tables(),
        "steps": steps,
        "later": switched,
        "inputs": border(lowered.inputs, lowered.limits),
        "outputs": border(lowered.outputs, {}),
        "files": linker.files,
        "arena_bytes": aligned(program.scratch_offset + linker.scratch_bytes),
    }


def _buffers(
    dnnl: Dnnl,
    lowered: Lowered,
    home: str,
    chosen: tuple[Implementation, ...],
    locations: Mapping[str, WeightLocation],
) -> Program:
    """The program with places for its activations; its scratch lies behind them, and how much there is the linker finds."""
    layouts = activation_layouts(lowered, home)
    offsets, scratch = plan_buffers(lowered, layouts, dnnl.info.block)
    border = (lowered.inputs, lowered.outputs, lowered.shapes)
    return Program(
        lowered.name, home, lowered.steps, chosen, *border, layouts, offsets, scratch, scratch, locations, lowered.types
    )
