"""Subjects of a profile are the steps of a model under one home layout, equal ones together, with their candidates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.operators.base import Problem
from edgeplan.graph.operators.registry import SPECS
from edgeplan.graph.steps import Lowered, Step
from edgeplan.planning.document import Target
from edgeplan.runtime.candidates import candidates
from edgeplan.runtime.constants import PLAIN_TAGS
from edgeplan.runtime.creation import Creator, Implementation
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import size_bytes
from edgeplan.runtime.program import Program, activation_layouts, laid_out, plan_buffers
from edgeplan.runtime.weights import WeightLocation
from edgeplan.support.machine import fingerprint


@dataclass(frozen=True, slots=True)
class Sizes:
    """Holds the most bytes of a candidate at any width: weights in the model file, transformed weights, working memory."""

    raw: int
    weights: int
    scratch: int


@dataclass(frozen=True, slots=True)
class Group:
    """A group consists of equal steps: they differ in names alone, so their candidates cost the same.

    Its digest is that of what makes them equal, the key of their rows; steps are positions in execution order.
    """

    digest: str
    steps: tuple[int, ...]
    implementations: tuple[Implementation, ...]
    sizes: tuple[Sizes, ...]


@dataclass(frozen=True, slots=True)
class ProfilingSubject:
    """A subject of profiling is a model under one home layout, with groups of equal steps.

    Its program has room for the scratch of any candidate; its choices are each step's first candidate.
    """

    program: Program
    groups: tuple[Group, ...]


def signature(creator: Creator, step: Step) -> str:
    """Return the digest of what decides the candidates of a step and their costs: equal where steps differ in names alone."""
    described = (
        step.kind,
        [(creator.shapes[t], creator.layouts[t]) for t in (*step.reads, *step.outputs)],
        [(role, creator.shapes[name]) for role, name in step.weights.items()],
        sorted(step.settings.items()),
        [(p.kind, p.algorithm, p.alpha, p.beta) for p in step.post_ops],
    )
    return hashlib.sha256(repr(described).encode()).hexdigest()[:24]


def signatures(dnnl: Dnnl, lowered: Lowered, home: str) -> tuple[str, ...]:
    """Return the signature of every step under a home layout."""
    creator = Creator(dnnl, lowered.shapes, activation_layouts(lowered, home), {}, lowered.types)
    return tuple(signature(creator, step) for step in lowered.steps)


def subject(dnnl: Dnnl, lowered: Lowered, home: str, weights: Mapping[str, WeightLocation], width: int) -> ProfilingSubject:
    """Ask for the candidates of every step, equal ones once: those that exist on one core and on `width` cores."""
    with dnnl.without_primitive_cache():  # what another model of this process had must not be offered
        return _subject(dnnl, lowered, home, weights, width)


def _subject(dnnl: Dnnl, lowered: Lowered, home: str, weights: Mapping[str, WeightLocation], width: int) -> ProfilingSubject:
    program = laid_out(dnnl, lowered, home, (), weights)
    creator = Creator(dnnl, lowered.shapes, program.layouts, program.offsets, lowered.types)
    equal: dict[str, list[int]] = {}
    for index, digest in enumerate(signatures(dnnl, lowered, home)):
        equal.setdefault(digest, []).append(index)
    groups: list[Group] = []
    first: dict[int, Implementation] = {}
    for digest, steps in equal.items():
        step = lowered.steps[steps[0]]
        raw = sum(weights[name].size for name in step.weights.values())
        dnnl.set_threads(width)
        wide = {i.name: i for i in candidates(creator, step)}
        sized = {name: [creator.create(step, i, generate=False)] for name, i in wide.items()}
        dnnl.set_threads(1)
        for implementation in candidates(creator, step):
            if implementation.name in sized:
                sized[implementation.name].append(creator.create(step, implementation, generate=False))
        both = {name: made for name, made in sized.items() if len(made) == 2}  # one core and all of them
        if not both:
            raise ModelError(
                f"oneDNN offers no implementation of {step.name!r} for 1 core and for {width}",
                where=f"home layout {home}",
                next_step="plan for one core only",
            )
        sizes = [Sizes(raw, max(c.weight_bytes for c in made), max(c.scratch_bytes for c in made)) for made in both.values()]
        groups.append(Group(digest, tuple(steps), tuple(wide[name] for name in both), tuple(sizes)))
        first |= dict.fromkeys(steps, groups[-1].implementations[0])
    scratch = max((size.scratch for group in groups for size in group.sizes), default=0)
    choices = tuple(first[index] for index in range(len(lowered.steps)))
    return ProfilingSubject(replace(program, choices=choices, arena_bytes=program.arena_bytes + scratch), tuple(groups))


def touched_pages(dnnl: Dnnl, lowered: Lowered, home: str, page_bytes: int) -> tuple[int, ...]:
    """Return pages of the arena that each step is the first to write, the inputs having been copied there before."""
    layouts = activation_layouts(lowered, home)
    offsets, total = plan_buffers(lowered, layouts, dnnl.info.block)
    written: npt.NDArray[np.bool_] = np.zeros(-(-total // page_bytes) + 1, dtype=np.bool_)

    def pages(tensor: str) -> slice:
        size = size_bytes(lowered.shapes[tensor], layouts[tensor], dnnl.info.block, lowered.types.get(tensor, "float32"))
        return slice(offsets[tensor] // page_bytes, -(-(offsets[tensor] + size) // page_bytes))

    for tensor in lowered.inputs:
        written[pages(tensor)] = True
    found = []
    for step in lowered.steps:
        before = int(written.sum())
        for tensor in step.outputs:
            written[pages(tensor)] = True
        found.append(int(written.sum()) - before)
    return tuple(found)


LIBRARY = "onednn"


def target_of(model: Path, dnnl: Dnnl, threads: int) -> Target:
    """Return the target of plans of a model that execute on so many threads of this machine."""
    return Target(model.name, model_sha256(model), LIBRARY, dnnl.info.version, dnnl.info.isa, fingerprint(), threads)


def require_exact(graph: Graph, source: str) -> None:
    """Refuse forms of operators that the runtime would compute otherwise than ONNX says, before anything is measured.

    `runtime.lowering` names what oneDNN lacks, by operator and shape. These forms pass it: the graph holds all that tells them
    apart, the steps made of it do not. They are no matter to predictions of latency, so a model is not refused when it is read.
    `source` says where the graph comes from, for messages.
    """
    found = list(_problems(graph))
    if found:
        names = ", ".join(dict.fromkeys(name for name, _, _ in found))
        raise ModelError(
            "the oneDNN runtime does not compute as ONNX says: " + "; ".join(what for _, what, _ in found),
            where=f"{source}, {names}",
            next_step="; ".join(dict.fromkeys(step for _, _, step in found)),
        )


def _problems(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield problems of a graph: where, what, and what to do about it."""
    for op in graph.operators:
        check = SPECS[op.op_type].inexact
        if problem := (check and check(graph, op)) or _ranks(graph, op):
            yield f"node {op.name!r}", f"{op.name} ({op.op_type}) {problem[0]}", problem[1]
    for name in graph.outputs:
        if name not in graph.producer:
            yield f"output {name!r}", f"{name}, which no operator writes", "leave it out of the outputs"


def _ranks(graph: Graph, op: Operator) -> Problem:
    ranks = {len(graph.shape(name)) for name in (*op.inputs, *op.outputs)}
    if odd := ranks - {0, *PLAIN_TAGS}:  # a number is described as of one axis
        return f"of {max(odd)} axes", f"reshape it to {min(PLAIN_TAGS)} to {max(PLAIN_TAGS)} axes"
    return None
