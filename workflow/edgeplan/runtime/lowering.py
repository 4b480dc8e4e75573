"""Graphs to steps: what oneDNN can do in one primitive becomes one step.

Batch normalisation is folded into the convolution before it; bias, activations, residual sums and products become
post-operations; the three operators of a channel shuffle, and the sigmoid and product of a swish, are recognised. Heads of an
attention are read and written where they lie (`views`). A step runs where its last member stood, when all its operands
are there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec.structs import replace

from edgeplan.errors import ModelError
from edgeplan.graph.index_limits import index_limits
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import ANY, INNER
from edgeplan.graph.operators.compiled import compiled, lacks_kernel
from edgeplan.graph.operators.elementwise import activation
from edgeplan.graph.operators.products import is_fully_connected
from edgeplan.graph.operators.registry import SPECS
from edgeplan.graph.shapes import FLOAT32, free, require_float32
from edgeplan.graph.steps import Lowered, PostOp, Setting, Step
from edgeplan.runtime.eight_bits import ByteStep, byte_steps, bytes_moved
from edgeplan.runtime.library import computes_bytes

#: Kinds that take an eltwise post-operation, and those that take a sum or product with another activation.
_TAKES_ELTWISE = frozenset({"conv", "fc", "binary", "scale", "matmul"})
_TAKES_BINARY = frozenset({"conv", "fc", "binary"})
#: Kinds that fold constants behind them into their weights.
_FOLDS = frozenset({"conv", "deconv"})
#: How many post-operations a primitive of oneDNN takes; the shift of a normalisation that stands alone is one.
_MOST_POST_OPS = 32
_OWN_POST_OPS = MappingProxyType({"scale": 1})
#: Axes and channels of a group of the convolutions that have fast kernels with a whole operand behind them.
_IMAGE_AXES, _LEAST_GROUP = 2, 8
_SWISH = PostOp("eltwise", "swish", 1.0)


@dataclass
class Draft:
    """A step that may still absorb the operators behind it."""

    name: str
    kind: str
    members: list[str]
    inputs: list[str]
    outputs: list[str]
    weights: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)
    post_ops: list[PostOp] = field(default_factory=list)
    last: int = 0

    @property
    def full(self) -> bool:
        """Tell whether no post-operation can be added."""
        return len(self.post_ops) + _OWN_POST_OPS.get(self.kind, 0) >= _MOST_POST_OPS

    def finished(self) -> Step:
        """The step as a value."""
        weights, settings = MappingProxyType(dict(self.weights)), MappingProxyType(dict(self.settings))
        members, inputs, outputs = tuple(self.members), tuple(self.inputs), tuple(self.outputs)
        return Step(self.name, self.kind, members, inputs, outputs, weights, settings, tuple(self.post_ops))


def lower(graph: Graph, *, eight_bits: bool = True) -> Lowered:
    """The steps of a graph, in execution order.

    With `eight_bits`, layers between bytes are computed so where the processor sums them up exactly; else in float32.
    """
    require_float32(graph, f"model {graph.name!r}")
    problems = [f"{op.name} ({op.op_type}): {found}" for op in graph.operators if (found := lacking(graph, op))]
    problems += [f"{name} (a constant output): {found}" for name in graph.constants if (found := _not_handed_out(graph, name))]
    if problems:
        raise ModelError(
            "the oneDNN runtime lacks: " + "; ".join(problems),
            where=f"model {graph.name!r}",
            next_step="run it on another engine, or export the model without these operators",
        )
    return _Lowering(graph, eight_bits=eight_bits).run()


def lacking(graph: Graph, op: Operator) -> str:
    """Name the part that the runtime lacks for an operator, or ""."""
    if op.op_type not in SPECS:
        return "no such operator"
    spec = SPECS[op.op_type]
    return lacks_kernel(graph, op, spec.elements) or (spec.lacks(graph, op) if spec.lacks else "")


def _not_handed_out(graph: Graph, output: str) -> str:
    """Name the part that the runtime lacks for an output that is a constant, or ""."""
    tensor = graph.tensors[output]
    if tensor.dtype not in ANY:
        return f"not {FLOAT32} but {tensor.dtype}"
    return "" if tensor.elements else "no values"


class _Lowering:
    """The walk over one graph."""

    def __init__(self, graph: Graph, *, eight_bits: bool) -> None:
        self.moved: Mapping[str, tuple[str, ...]] = {}
        self.places = {op.name: place for place, op in enumerate(graph.operators)}
        in_bytes = eight_bits and any(op.op_type == "DequantizeLinear" for op in graph.operators) and computes_bytes()
        if in_bytes:
            graph, self.moved = bytes_moved(graph)
        self.graph = graph
        self.shapes: dict[str, Shape] = {name: tensor.shape for name, tensor in graph.tensors.items()}
        self.drafts: list[Draft] = []
        self.ends: dict[str, Draft] = {}  # tensor -> the draft that writes it
        self.skipped: set[str] = set()  # operators that a recognised pattern has taken
        self.swish = dict(_swishes(graph))
        self.flattened = dict(_flattened(graph))
        self.views = views(graph, self.flattened)
        self.skipped |= {member for viewed in self.views.values() for member in viewed.members}
        held = {t.name: t for stored in graph.stored.values() for t in (stored.values, stored.scale) if t is not None}
        self.tensors = {**graph.tensors, **held}
        self.byte_steps: Mapping[str, ByteStep] = {}
        if in_bytes:
            self.byte_steps, members = byte_steps(graph, self.shapes)
            self.skipped |= members - self.byte_steps.keys()
            inner = {step.inner.name: step.inner for step in self.byte_steps.values() if step.inner is not None}
            self.tensors |= inner
            self.shapes |= {name: tensor.shape for name, tensor in {**held, **inner}.items()}

    def run(self) -> Lowered:
        graph = self.graph
        for index, op in enumerate(graph.operators):
            if op.name in self.byte_steps or not (
                op.name in self.skipped or op.name in self.flattened or self._absorbed(op, index)
            ):
                for draft in self._started(op):
                    if op.name in draft.members:
                        draft.members = sorted([*draft.members, *self.moved.get(op.name, ())], key=self.places.__getitem__)
                    draft.last = index
                    self.drafts.append(draft)
                    self.ends |= dict.fromkeys(draft.outputs, draft)
        names = set(graph.by_name)
        for draft in self.drafts:
            if draft.name not in draft.members:
                draft.name = free(draft.name, names)
                names.add(draft.name)
        steps = tuple(draft.finished() for draft in sorted(self.drafts, key=lambda d: d.last))
        steps = (*_with_sums(graph, steps, self.shapes), *self._handed_out())
        outputs = (*graph.outputs, *graph.constants)
        used = {n for s in steps for n in (*s.reads, *s.outputs, *s.weights.values())} | {*graph.inputs, *outputs}
        shapes = MappingProxyType({name: shape for name, shape in self.shapes.items() if name in used})
        known = {n: self.tensors.get(n) or self.tensors.get(n.rpartition(INNER)[0]) for n in shapes}
        types = {n: t.dtype for n, t in known.items() if t is not None and t.dtype != FLOAT32}
        limits = MappingProxyType(dict(index_limits(graph)))
        return Lowered(graph.name, steps, graph.inputs, outputs, shapes, MappingProxyType(types), limits, graph.stored)

    def _handed_out(self) -> Iterator[Step]:
        """A step for each output that is a constant, which copies it to its place; it runs no operator."""
        for output, weight in self.graph.constants.items():
            yield Step(f"{output}:constant", "constant", (), (), (output,), MappingProxyType({"value": weight}))

    def _open(self, tensor: str, readers: int = 1) -> Draft | None:
        """The draft that writes `tensor`, if nothing but the operator at hand reads it."""
        draft = self.ends.get(tensor)
        alone = len(self.graph.consumers.get(tensor, ())) == readers and tensor not in self.graph.outputs
        return draft if alone and draft is not None and draft.outputs == [tensor] else None

    def _absorb(self, draft: Draft, members: tuple[str, ...], output: str, index: int) -> bool:
        del self.ends[draft.outputs[0]]
        draft.members += members
        draft.outputs = [output]
        draft.last = index
        self.ends[output] = draft
        return True

    def _absorbed(self, op: Operator, index: int) -> bool:
        """Try to fuse an operator into the step before it."""
        if op.op_type == "BatchNormalization":
            return self._absorbed_norm(op, index)
        if op.op_type in ("Add", "Mul"):
            return self._absorbed_pair(op, index)
        if compiled(self.graph, op) is not None:
            return False
        if (found := activation(op)) is not None:
            if op.name in self.swish.values():
                self.skipped.add(op.name)  # its product does both
                return True
            return self._absorbed_eltwise(self._open(op.inputs[0]), found, (op.name,), op, index)
        return False

    def _absorbed_pair(self, op: Operator, index: int) -> bool:
        """Try to fuse a sum or product."""
        if compiled(self.graph, op) is not None:
            return False
        if op.name in self.swish:
            sigmoid = self.graph.by_name[self.swish[op.name]]
            members = (sigmoid.name, op.name)
            return self._absorbed_eltwise(self._open(sigmoid.inputs[0], 2), _SWISH, members, op, index)
        if op.weights:
            return self._absorbed_constant(op, index)
        return len(set(op.inputs)) == 2 and self._absorbed_binary(op, index)  # not with itself

    def _absorbed_norm(self, op: Operator, index: int) -> bool:
        draft = self._open(op.inputs[0])
        if draft is None or draft.kind != "conv" or draft.post_ops or not draft.weights.keys() <= {"weight", "bias"}:
            return False
        draft.weights |= dict(zip(("bn_scale", "bn_bias", "bn_mean", "bn_variance"), op.weights, strict=True))
        draft.settings["epsilon"] = op.number("epsilon", 1e-5)
        return self._absorb(draft, (op.name,), op.outputs[0], index)

    def _absorbed_constant(self, op: Operator, index: int) -> bool:
        """A factor, and then a summand, of all channels or of each are folded into the weights of the convolution before."""
        draft, role = self._open(op.inputs[0]), {"Mul": "factor", "Add": "summand"}[op.op_type]
        shape, out = self.shapes[op.weights[0]], self.shapes[op.outputs[0]]
        if draft is None or draft.kind not in _FOLDS or draft.post_ops or len(shape) > len(out):
            return False
        one_each = math.prod(shape) == 1 or (shape[-len(out) + 1 :] == (out[1], *[1] * (len(out) - 2)))
        if not one_each:
            return False
        if math.prod(shape) not in (1, out[1]) or "summand" in draft.weights or role in draft.weights:
            return False
        if role == "factor" and draft.kind == "deconv":
            return False
        draft.weights[role] = op.weights[0]
        return self._absorb(draft, (op.name,), op.outputs[0], index)

    def _absorbed_eltwise(self, draft: Draft | None, post: PostOp, members: tuple[str, ...], op: Operator, index: int) -> bool:
        if draft is None or draft.kind not in _TAKES_ELTWISE or draft.full:
            return False
        draft.post_ops.append(post)
        return self._absorb(draft, members, op.outputs[0], index)

    def _absorbed_binary(self, op: Operator, index: int) -> bool:
        shape = self.shapes[op.outputs[0]]
        pairs = [(t, other) for t, other in (op.inputs, op.inputs[::-1]) if self.shapes[t] == shape]
        choices = [(d, other) for t, other in pairs if (d := self._open(t)) and not d.full]
        choices = [(d, other) for d, other in choices if self._takes(d, shape, self.shapes[other])]
        if not choices:
            return False
        draft, other = max(choices, key=lambda choice: choice[0].last)  # the later one: its operand is there already
        draft.post_ops.append(PostOp("binary", op.op_type.lower(), tensor=other))
        return self._absorb(draft, (op.name,), op.outputs[0], index)

    def _takes(self, draft: Draft, shape: Shape, other: Shape) -> bool:
        """Tell whether a step takes in a sum or product: with an operand of the same shape, or one value for each channel."""
        if draft.kind not in _TAKES_BINARY or (draft.kind == "fc" and len(shape) != 2):  # it runs as of 2 axes
            return False
        if len(shape) > 1 and shape[0] == 1 and other == (1, shape[1], *[1] * (len(shape) - 2)) != shape:
            return True
        return other == shape and (draft.kind != "conv" or self._adds_fast(draft))

    def _adds_fast(self, draft: Draft) -> bool:
        """Tell whether oneDNN has a fast convolution with an operand of the output's shape behind it.

        It has over two axes alone, and there, without AVX-512, not for groups of 2 to 7 channels. The reference takes hundreds
        of times as long as the convolution and a step for the sum.
        """
        _, inner, *window = self.shapes[draft.weights["weight"]]
        return len(window) == _IMAGE_AXES and (draft.settings["groups"] == 1 or inner == 1 or inner >= _LEAST_GROUP)

    def _started(self, op: Operator) -> tuple[Draft, ...]:
        """A step of its own, with what a pattern adds to it."""
        if (bytes_step := self.byte_steps.get(op.name)) is not None:
            behind = () if bytes_step.behind is None else (Draft(*bytes_step.behind),)
            return (Draft(*bytes_step.part, bytes_step.post_ops), *behind)
        if (found := compiled(self.graph, op)) is not None:
            return (Draft(*found),)
        if op.name in self.swish:
            sigmoid = self.graph.by_name[self.swish[op.name]]
            draft = Draft(op.name, "eltwise", [sigmoid.name, op.name], [sigmoid.inputs[0]], list(op.outputs))
            draft.settings = {"algorithm": "swish", "alpha": 1.0, "beta": 0.0}
            return (draft,)
        if shuffle := _shuffle(self.graph, op):
            groups, members = shuffle
            self.skipped |= {m.name for m in members}
            names = [m.name for m in members]
            draft = Draft(members[1].name, "shuffle", names, list(op.inputs), list(members[-1].outputs))
            draft.settings = {"groups": groups}
            return (draft,)
        drafts = tuple(Draft(*part) for part in SPECS[op.op_type].lower(self.graph, op, self.shapes))
        before = self.graph.producer.get(op.inputs[0]) if op.inputs else None
        if before is not None and before.name in self.flattened:
            drafts[0].inputs = list(before.inputs)
            drafts[0].members.insert(0, before.name)
        if viewed := self.views.get(op.name):
            (product,) = drafts  # of two activations of one rank
            product.inputs, product.outputs = list(viewed.reads), [viewed.written]
            product.members = [o.name for o in self.graph.operators if o.name == op.name or o.name in viewed.members]
            product.settings |= viewed.settings
        return drafts


def _flattened(graph: Graph) -> Mapping[str, str]:
    """Reshapes of a 4-D activation to (N, C H W) that only a fully connected layer reads, which takes it unflattened."""
    found = {}
    for op in graph.operators:
        if op.op_type in ("Flatten", "Reshape") and len(op.inputs) == 1 and op.outputs[0] not in graph.outputs:
            before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
            readers = graph.consumers.get(op.outputs[0], ())
            flat = len(before) == 4 and after == (before[0], math.prod(before[1:]))
            if flat and len(readers) == 1 and _is_layer(graph, readers[0], op.outputs[0]):
                found[op.name] = readers[0].name
    return found


def _is_layer(graph: Graph, op: Operator, tensor: str) -> bool:
    """Tell whether a fully connected layer multiplies this activation."""
    product = op.op_type in ("Gemm", "MatMul") and op.operands[0] == tensor and op.inputs.count(tensor) == 1
    return product and is_fully_connected(graph, op)


def _swishes(graph: Graph) -> Mapping[str, str]:
    """Products x * sigmoid(x): the Mul -> its Sigmoid, where nothing else reads the sigmoid."""
    found = {}
    for op in graph.operators:
        if op.op_type == "Mul" and len(op.inputs) == 2:
            for x, gate in (op.inputs, op.inputs[::-1]):
                made = graph.producer.get(gate)
                if made is not None and made.op_type == "Sigmoid" and made.inputs == (x,) and _private(graph, gate):
                    found[op.name] = made.name
                    break
    return found


def _shuffle(graph: Graph, op: Operator) -> tuple[int, tuple[Operator, Operator, Operator]] | None:
    """A channel shuffle that starts at `op`: its groups and its three operators."""
    chain = [op]
    for op_type in ("Transpose", "Reshape"):
        last = chain[-1].outputs[0]
        if not _private(graph, last) or graph.consumers[last][0].op_type != op_type:
            return None
        chain.append(graph.consumers[last][0])
    first, swap, join = chain
    before, split, joined = graph.shape(first.inputs[0]), graph.shape(first.outputs[0]), graph.shape(join.outputs[0])
    if first.op_type != "Reshape" or len(before) != 4 or joined != before or len(split) != 5:
        return None
    if graph.tensors[first.inputs[0]].dtype != FLOAT32:
        return None
    same = split[0] == before[0] and split[1] * split[2] == before[1] and split[3:] == before[2:]
    return (split[1], (first, swap, join)) if same and swap.integers("perm", ()) == (0, 2, 1, 3, 4) else None


def _with_sums(graph: Graph, steps: tuple[Step, ...], shapes: Mapping[str, Shape]) -> tuple[Step, ...]:
    """Turn residual additions into in-place sums where nothing reads the other operand's buffer afterwards."""
    last_read = {tensor: index for index, step in enumerate(steps) for tensor in step.reads}
    shared = {t for s in steps if s.kind == "reshape" for t in (*s.inputs, *s.outputs)}  # may share a buffer
    border = {*graph.inputs, *graph.outputs, *shared}

    found = []
    for index, step in enumerate(steps):
        first = step.post_ops[0] if step.post_ops else PostOp("")
        other, output = first.tensor, step.outputs[0]
        adds = (first.kind, first.algorithm, step.kind) == ("binary", "add", "conv") and shapes[other] == shapes[output]
        if adds and not {other, output} & border and last_read[other] == index and step.reads.count(other) == 1:
            step = replace(step, post_ops=(replace(first, kind="sum", algorithm=""), *step.post_ops[1:]))  # noqa: PLW2901
        found.append(step)
    return tuple(found)


_IMAGE_RANK = 4  # such activations may lie in another layout than row-major
_LEAST_RANK = 3


@dataclass(frozen=True, slots=True)
class Viewed:
    """A product with what it takes over: operators that need not run, activations that it reads (left one first) and writes.

    Settings of its step are `read_0`, `read_1` and `written`, each the sizes and then the strides, in elements, of the
    operand's axes in the activation; left out for what is no view.
    """

    members: frozenset[str]
    reads: tuple[str, str]
    written: str
    settings: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _View:
    members: tuple[str, ...]
    tensor: str
    axes: tuple[int, ...]


def views(graph: Graph, kept: Collection[str]) -> Mapping[str, Viewed]:
    """The products that read or write views, by name; the operators `kept` are not taken over."""
    found: dict[str, Viewed] = {}
    taken = set(kept)
    for op in graph.operators:
        if op.op_type != "MatMul" or len(op.inputs) != 2 or op.inputs[0] == op.inputs[1]:
            continue
        ranks = {len(graph.shape(name)) for name in (*op.inputs, *op.outputs)}
        if len(ranks) > 1 or min(ranks) < _LEAST_RANK:
            continue
        sides = [*(_cut(graph, name) for name in op.inputs), _joined(graph, op.outputs[0])]
        free = [view if view and taken.isdisjoint(view.members) else None for view in sides]
        if not any(free):
            continue
        members = frozenset(member for view in free if view for member in view.members)
        left, right, written = (
            view.tensor if view else name for view, name in zip(free, (*op.inputs, *op.outputs), strict=True)
        )
        keys = ("read_0", "read_1", "written")
        settings = {key: view.axes for key, view in zip(keys, free, strict=True) if view}
        found[op.name] = Viewed(members, (left, right), written, settings)
        taken |= members
    return found


def _strides(shape: Shape) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _private(graph: Graph, tensor: str) -> bool:
    """Tell whether one operator alone reads an activation."""
    return len(graph.consumers.get(tensor, ())) == 1 and tensor not in graph.outputs


def _cut(graph: Graph, tensor: str) -> _View | None:
    """Return a product's input as a view of the tensor behind a Transpose, or a Reshape before that."""
    swap = graph.producer.get(tensor)
    if swap is None or swap.op_type != "Transpose" or not _private(graph, tensor):
        return None
    members: tuple[str, ...] = (swap.name,)
    source, shape = swap.inputs[0], graph.shape(swap.inputs[0])
    split = graph.producer.get(source)
    if split is not None and split.op_type == "Reshape" and len(split.inputs) == 1 and _private(graph, source):
        members, source = (split.name, swap.name), split.inputs[0]
    if len(graph.shape(source)) == _IMAGE_RANK:
        return None
    strides, order = _strides(shape), _order(swap)
    return _View(members, source, (*(shape[axis] for axis in order), *(strides[axis] for axis in order)))


def _joined(graph: Graph, tensor: str) -> _View | None:
    """Return a product's output as a view of the tensor that a Transpose behind it, or a Reshape behind that, writes."""
    swap = graph.consumers.get(tensor, (None,))[0]
    if swap is None or swap.op_type != "Transpose" or not _private(graph, tensor):
        return None
    members: tuple[str, ...] = (swap.name,)
    written = swap.outputs[0]
    shape, order = graph.shape(written), _order(swap)
    join = graph.consumers.get(written, (None,))[0]
    if join is not None and join.op_type == "Reshape" and _private(graph, written):
        members, written = (swap.name, join.name), join.outputs[0]
    if len(graph.shape(written)) == _IMAGE_RANK:
        return None
    strides = dict(zip(order, _strides(shape), strict=True))
    return _View(members, written, (*graph.shape(tensor), *(strides[axis] for axis in range(len(shape)))))


def _order(swap: Operator) -> tuple[int, ...]:
    return swap.integers("perm", ())
