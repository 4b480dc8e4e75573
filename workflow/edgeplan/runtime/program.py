"""A program: which implementation each step runs, and where every activation lies. Values only, made when planning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from edgeplan.graph.ir import Graph, Shape
from edgeplan.graph.shapes import FLOAT32
from edgeplan.graph.steps import COMPILED, INT8_LINE, SIDE_BY_SIDE, Lowered, Step
from edgeplan.runtime.candidates import candidates, default
from edgeplan.runtime.creation import Creator, Implementation, aligned
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED, NCHW, NHWC, same_bytes, size_bytes
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import WeightLocation, locate_weights


@dataclass(frozen=True, slots=True)
class Program:
    """Everything that executing a model needs besides its weights' bytes.

    The home layout is that of the 4-D activations inside the model; those at its border are NCHW. Steps are in execution order,
    each with the implementation that was chosen. Activations have offsets in the arena, in bytes, the running step has its
    scratch there. Of each weight it says where its bytes are; types are those of tensors that are not of float32.
    """

    name: str
    home: str
    steps: tuple[Step, ...]
    choices: tuple[Implementation, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, Shape]
    layouts: Mapping[str, str]
    offsets: Mapping[str, int]
    scratch_offset: int
    arena_bytes: int
    weights: Mapping[str, WeightLocation]
    types: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def dtype(self, tensor: str) -> str:
        """Element type of a tensor."""
        return self.types.get(tensor, FLOAT32)


#: Kinds whose operands are of one layout, that of what is before or behind them.
_OF_ANY_RANK = frozenset({"eltwise", "binary", "scale", "softmax"})


def activation_layouts(lowered: Lowered, home: str) -> Mapping[str, str]:
    """Layout of every activation under a home layout."""
    border = {*lowered.inputs, *lowered.outputs}
    activations = {t for step in lowered.steps for t in (*step.reads, *step.outputs)} | border
    plain = {*border, *lowered.types}
    layouts = {t: NCHW if t in plain else home for t in activations}
    return MappingProxyType(layouts | dict.fromkeys(_side_by_side(lowered) - border, NHWC))


def blocked_images(lowered: Lowered) -> Mapping[str, str]:
    """Layout of every activation with images in blocks; what products of activations touch is no image, but row-major."""
    plain: set[str] = set()
    near = {t for step in lowered.steps if step.kind == "matmul" for t in (*step.reads, *step.outputs)}
    between = [{*step.reads, *step.outputs} for step in lowered.steps if step.kind in _OF_ANY_RANK]
    while not near <= plain:
        plain |= near
        near = {t for tensors in between if tensors & plain for t in tensors}
    return MappingProxyType({t: NCHW if t in plain else f for t, f in activation_layouts(lowered, BLOCKED).items()})


def _side_by_side(lowered: Lowered) -> set[str]:
    """Return the images of bytes whose channels lie side by side: convolutions of bytes want it, compiled kernels convert."""
    if all(step.kind not in SIDE_BY_SIDE for step in lowered.steps):
        return set()
    kinds = (*SIDE_BY_SIDE, INT8_LINE)
    wanted = {t for step in lowered.steps if step.kind in kinds for t in (*step.inputs, *step.outputs)}
    others = {t for step in lowered.steps if step.kind not in (*SIDE_BY_SIDE, *COMPILED) for t in (*step.reads, *step.outputs)}
    return {t for t in wanted - others if t in lowered.types}


def step_candidates(
    dnnl: Dnnl, lowered: Lowered, home: str, layouts: Mapping[str, str] | None = None
) -> tuple[tuple[Implementation, ...], ...]:
    """The candidates of every step under a home layout, or the layouts given. Equal steps are asked for once.

    They are those that a fresh process is offered, whatever this one has made before.

    What oneDNN offers may depend on the calling thread's number of threads: set it before (`Dnnl.set_threads`).
    """
    creator = Creator(dnnl, lowered.shapes, layouts or activation_layouts(lowered, home), {}, lowered.types)
    known: dict[object, tuple[Implementation, ...]] = {}
    found = []
    with dnnl.without_primitive_cache():
        for step in lowered.steps:
            key = candidates_key(creator, step)
            if key not in known:
                known[key] = candidates(creator, step)
            found.append(known[key])
    return tuple(found)


def candidates_key(creator: Creator, step: Step) -> object:
    """Return a key that decides the candidates of a step: equal for steps that differ in names alone."""
    tensors = (*step.reads, *step.outputs)
    return (
        step.kind,
        tuple((creator.shapes[t], creator.layouts[t], creator.types.get(t)) for t in tensors),
        tuple((role, creator.shapes[name]) for role, name in step.weights.items()),
        tuple(step.settings.items()),
        tuple((p.kind, p.algorithm, p.alpha, p.beta) for p in step.post_ops),
    )


def laid_out(
    dnnl: Dnnl,
    lowered: Lowered,
    home: str,
    choices: Sequence[Implementation],
    weights: Mapping[str, WeightLocation],
    layouts: Mapping[str, str] | None = None,
) -> Program:
    """Lay out the activations for chosen implementations; there is no scratch behind them yet. See `build_program`."""
    layouts = layouts or activation_layouts(lowered, home)
    offsets, end = plan_buffers(lowered, layouts, dnnl.info.block)
    return Program(
        lowered.name, home, lowered.steps, tuple(choices), lowered.inputs, lowered.outputs, lowered.shapes,
        layouts, offsets, end, end, weights, lowered.types,
    )  # fmt: skip


def build_program(
    dnnl: Dnnl,
    lowered: Lowered,
    home: str,
    choices: Sequence[Implementation],
    weights: Mapping[str, WeightLocation],
    threads: int = 1,
    layouts: Mapping[str, str] | None = None,
) -> Program:
    """Lay out the buffers for chosen implementations, one for each step, that were made for a home layout, or for layouts.

    Weights are from `locate_weights`. Scratchpads grow with the most threads that a step will run on.
    """
    program = laid_out(dnnl, lowered, home, choices, weights, layouts)
    creator = Creator(dnnl, program.shapes, program.layouts, program.offsets, program.types)
    scratch = [0]
    for width in {1, threads}:
        dnnl.set_threads(width)
        scratch += [creator.create(s, c, generate=False).scratch_bytes for s, c in zip(lowered.steps, choices, strict=True)]
    return replace(program, arena_bytes=program.arena_bytes + max(scratch))


def plan_buffers(
    lowered: Lowered, layouts: Mapping[str, str], block: int, turns: Iterable[Sequence[str]] | None = None
) -> tuple[Mapping[str, int], int]:
    """Offsets of all activations in one arena, those of disjoint lifetimes overlapping; and the bytes they take.

    Largest first, each at the lowest place that is free during its life. Views, and sums with their operand, share a buffer.
    `turns` are activations that are in use at once, in turn; None: each step is a turn.
    """
    if turns is None:
        turns = [(*step.reads, *step.outputs) for step in lowered.steps]
    root = shared_buffers(lowered, layouts, block)
    lives: dict[str, tuple[int, int]] = {}  # the first turn of each buffer, and the last
    sizes: dict[str, int] = {}
    tensors: dict[str, None] = {}
    for turn, used in enumerate((lowered.inputs, *turns, lowered.outputs)):
        for tensor in used:
            buffer = root[tensor]
            lives[buffer] = lives.get(buffer, (turn, turn))[0], turn
            tensors[tensor] = None
    for tensor in tensors:
        sizes[root[tensor]] = max(sizes.get(root[tensor], 0), aligned(_size(lowered, layouts, tensor, block)))
    placed = _placed(lives, sizes)
    total = max((placed[b] + sizes[b] for b in placed), default=0)
    return MappingProxyType({tensor: placed[root[tensor]] for tensor in tensors}), total


def _size(lowered: Lowered, layouts: Mapping[str, str], tensor: str, block: int) -> int:
    return size_bytes(lowered.shapes[tensor], layouts[tensor], block, lowered.types.get(tensor, FLOAT32))


def shared_buffers(lowered: Lowered, layouts: Mapping[str, str], block: int) -> Mapping[str, str]:
    """The activation whose buffer each activation lies in: itself, but for views and sums."""
    root = {tensor: tensor for tensor in layouts}
    for step in lowered.steps:
        sources = [p.tensor for p in step.post_ops if p.kind == "sum"]
        if step.kind == "reshape":
            both = (step.inputs[0], step.outputs[0])
            if all(same_bytes(lowered.shapes[t], layouts[t], NCHW, block) for t in both):
                sources.append(step.inputs[0])
        for source in sources:  # steps are in order: the source's own buffer is known
            root[step.outputs[0]] = root[source]
    return root


def _placed(lives: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> dict[str, int]:
    """Offsets, the largest buffers first, each at the lowest place that is free during its life."""
    placed: dict[str, int] = {}
    for buffer in sorted(sizes, key=lambda b: (-sizes[b], lives[b][0], b)):
        first, last = lives[buffer]
        rivals = [b for b in placed if lives[b][0] <= last and first <= lives[b][1]]
        at = 0
        for rival in sorted(rivals, key=placed.__getitem__):
            if at + sizes[buffer] <= placed[rival]:
                break
            at = max(at, placed[rival] + sizes[rival])
        placed[buffer] = at
    return placed


def default_program(dnnl: Dnnl, model: Path, graph: Graph, home: str, threads: int = 1) -> Program:
    """A program has the likely fastest implementations of a model's steps."""
    lowered = lower(graph)
    dnnl.set_threads(threads)
    choices = [default(offered) for offered in step_candidates(dnnl, lowered, home)]
    return build_program(dnnl, lowered, home, choices, locate_weights(model, lowered), threads)
