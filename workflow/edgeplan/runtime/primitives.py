"""Primitive descriptors of steps: how they are asked for, the activations that they take, and the weights that they read."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from edgeplan.graph.shapes import FLOAT32, Shape
from edgeplan.graph.steps import INT8_CONV, INT8_FC, INT8_KINDS, INT8_POOL, SIDES, Step
from edgeplan.runtime import constants
from edgeplan.runtime.dnnl import SCALES, ZERO_POINTS, Dnnl, Handle, Mask, Unsupported, dims
from edgeplan.runtime.layouts import NHWC, tag

#: Of what a step writes first, second, third (an LSTM's last states).
_WRITTEN = (constants.ARG_DST, constants.ARG_DST_1, constants.ARG_DST_2)
_SIDE_ARGUMENTS: Mapping[str, int] = MappingProxyType({"source": constants.ARG_SRC, "written": constants.ARG_DST})


class Variant(msgspec.Struct, frozen=True):
    """A variant says how a primitive is asked for: layouts of the 4-D activations read and written, algorithm, weights.

    Algorithms of a convolution are `direct` and `winograd`; of a fully connected step also `convolution`. Weights are `any`
    (the implementation chooses) or `plain` (as in the ONNX file).
    """

    source: str
    output: str
    algorithm: str = "direct"
    weights: str = "any"


class Operand(msgspec.Struct, frozen=True):
    """An activation that a primitive reads or writes: which argument, which tensor, with which descriptor."""

    argument: int
    tensor: str
    layout: str
    descriptor: Handle


class Slot(msgspec.Struct, frozen=True):
    """A weight a primitive reads: its argument, and the descriptor of its values in the ONNX file's order."""

    argument: int
    source: Handle
    index: int = 0  # among the weights descriptors of the primitive
    chosen: bool = False  # whether the implementation chooses the layout
    target: Handle | None = None  # descriptor of its values as the primitive reads them, where that is another and not chosen


class Described(msgspec.Struct, frozen=True):
    """A primitive descriptor with what it reads and writes."""

    descriptor: Handle
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    slots: tuple[Slot, ...] = ()
    summed: str = ""  # the activation whose values the output must hold beforehand

    def target(self, dnnl: Dnnl, slot: Slot) -> int:
        """Descriptor of a weight as the current implementation reads it."""
        if not slot.chosen:
            return (slot.target or slot.source).value
        return dnnl.queried(self.descriptor, constants.QUERY_WEIGHTS_MD, slot.index)


class Describer:
    """Makes primitive descriptors for the steps of one model; `types` are those of tensors that are not of float32."""

    def __init__(self, dnnl: Dnnl, shapes: Mapping[str, Shape], types: Mapping[str, str]) -> None:
        self.dnnl, self.shapes, self.types = dnnl, shapes, types

    def activation(self, tensor: str, layout: str) -> Handle:
        """Return the descriptor of an activation."""
        return self.plain(self.shapes[tensor], layout, self.type_of(tensor))

    def type_of(self, tensor: str) -> str:
        """Return the element type of a tensor."""
        return self.types.get(tensor, FLOAT32)

    def plain(self, shape: Shape, layout: str = "nchw", dtype: str = FLOAT32) -> Handle:
        """Descriptor of a shape, row-major unless it is 4-D and the layout another."""
        return self.dnnl.descriptor(shape, tag(shape, layout, self.dnnl.info.block), dtype)

    def primitive(self, name: str, *given: Any) -> Handle:
        """Make the descriptor of a primitive: what `dnnl_<name>_primitive_desc_create` is given behind the engine."""
        return self.dnnl.make("primitive_desc", f"dnnl_{name}_primitive_desc_create", self.dnnl.engine.value, *given)

    def per_channel(self, step: Step) -> Handle:
        """Descriptor of one value for each channel, of the rank of the step's input."""
        shape = self.shapes[step.inputs[0]]
        return self.plain((1, shape[1], *[1] * (len(shape) - 2)))

    def conv_weights(self, step: Step) -> Shape:
        """Shape of a convolution's weights as oneDNN takes them: groups first."""
        out, inner, *kernel = self.shapes[step.weights["weight"]]
        groups = step.integer("groups")
        return (out, inner, *kernel) if groups == 1 else (groups, out // groups, inner, *kernel)

    def masks(self, step: Step) -> tuple[Mask, ...]:
        """Return what is told of the scales and zero points of a step in eight bits; nothing of others."""
        return tuple(Mask(kind, argument, axes) for kind, argument, axes, _ in self._scaling(step))

    def scaling_slots(self, step: Step) -> tuple[Slot, ...]:
        """Return the slots of the scales and zero points of a step in eight bits, in the order of `transform.folded`."""
        flags = {SCALES: constants.ARG_SCALES, ZERO_POINTS: constants.ARG_ZERO_POINTS}
        types = {SCALES: FLOAT32, ZERO_POINTS: "int32"}
        return tuple(
            Slot(flags[kind] | argument, self.plain((count,), dtype=types[kind]))
            for kind, argument, _, count in self._scaling(step)
        )

    def _scaling(self, step: Step) -> Iterator[tuple[str, int, int, int]]:
        """Yield the kind, the argument, the axes of several, and the count of scales and zero points."""
        if step.kind not in INT8_KINDS:
            return
        sides = [_SIDE_ARGUMENTS[side] for side in SIDES if f"{side}_scale" in step.weights]
        yield from ((SCALES, argument, 0, 1) for argument in sides)
        count = math.prod(self.shapes[step.weights["weight_scale"]])
        axes = 1 << 1 if step.kind == INT8_FC else 1 if step.integer("groups") == 1 else 1 | 1 << 1
        yield SCALES, constants.ARG_WEIGHTS, axes if count > 1 else 0, count
        yield from ((ZERO_POINTS, argument, 0, 1) for argument in sides)

    def describe(self, step: Step, variant: Variant) -> Described:
        """The descriptor of a step's primitive, at its first implementation."""
        reads = tuple(
            Operand(argument, tensor, variant.source, self._operand(step, f"read_{place}", tensor, variant.source))
            for place, (argument, tensor) in enumerate(zip(self._source_arguments(step), step.inputs, strict=True))
        )
        writes = tuple(
            Operand(argument, tensor, variant.output, self._operand(step, "written", tensor, variant.output))
            for argument, tensor in zip(_WRITTEN, step.outputs, strict=False)
        )
        posts, attributes, summed = self._post_ops(step, variant)
        descriptor, slots = MAKERS[step.kind](self, step, variant, reads, writes[0], attributes)
        return Described(descriptor, reads + posts, writes, slots, summed)

    def _operand(self, step: Step, key: str, tensor: str, layout: str) -> Handle:
        """Descriptor of an activation, or of the view of it that a product takes."""
        if key not in step.settings:
            return self.activation(tensor, layout)
        axes = step.sizes(key)
        rank = len(axes) // 2
        return self.dnnl.strided(axes[:rank], axes[rank:])

    @staticmethod
    def _source_arguments(step: Step) -> Sequence[int]:
        if step.kind == "concat":
            places = range(len(step.inputs) + len(step.weights))
            return [constants.ARG_MULTIPLE_SRC + place for place in places if f"part_{place}" not in step.weights]
        if step.kind in ("matmul", "mix"):
            return [argument for role, argument in PRODUCT_SIDES.items() if role not in weighted_sides(step)]
        return range(constants.ARG_SRC, constants.ARG_SRC + len(step.inputs))

    def _post_ops(self, step: Step, variant: Variant) -> tuple[tuple[Operand, ...], Handle, str]:
        if not step.post_ops and step.kind != "scale":
            return (), self.dnnl.attributes(masks=self.masks(step)), ""
        dnnl, ops, operands, summed = self.dnnl, self.dnnl.post_ops(), [], ""
        if step.kind == "scale":  # y = x * scale, then + shift
            shift = self.per_channel(step)
            dnnl.append(ops, "binary", constants.BINARY["add"], shift.value)
        for position, post in enumerate(step.post_ops, start=1 if step.kind == "scale" else 0):
            if post.kind == "eltwise":
                dnnl.append(ops, "eltwise", constants.ELTWISE[post.algorithm], post.alpha, post.beta)
            elif post.kind == "sum":
                dnnl.append(ops, "sum", 1.0, 0, constants.F32)
                summed = post.tensor
            else:
                same = self.shapes[post.tensor] == self.shapes[step.outputs[0]]
                descriptor = self._operand(step, "written" if same else "", post.tensor, variant.output)
                argument = constants.ARG_POST_OP * (position + 1) | constants.ARG_SRC_1
                dnnl.append(ops, "binary", constants.BINARY[post.algorithm], descriptor.value)
                operands.append(Operand(argument, post.tensor, variant.output, descriptor))
        return tuple(operands), dnnl.attributes(ops, self.masks(step)), summed


_INFERENCE = constants.FORWARD_INFERENCE
#: Algorithm of a variant of a fully connected step: a convolution over the whole input. Its kernels are generated in a fraction
#: of the time that the first matrix product of a process takes.
AS_CONVOLUTION = "convolution"

Reads = tuple[Operand, ...]
#: A primitive descriptor, and the weights that it reads.
Made = tuple[Handle, tuple[Slot, ...]]
Maker = Callable[[Describer, Step, Variant, Reads, Operand, Handle], Made]


def _value(handle: Handle | None) -> int | None:
    return None if handle is None else handle.value


def _weighted(plain: Handle, bias: Handle | None) -> tuple[Slot, ...]:
    """Weights whose layout the implementation chooses, and a bias if there is one."""
    weights = Slot(constants.ARG_WEIGHTS, plain, 0, chosen=True)
    return (weights,) if bias is None else (weights, Slot(constants.ARG_BIAS, bias))


def _wanted(d: Describer, shape: Shape, plain: Handle, variant: Variant, dtype: str = FLOAT32) -> Handle:
    return plain if variant.weights == "plain" else d.dnnl.descriptor(shape, constants.ANY, dtype)


def _biased(step: Step) -> bool:
    return not step.weights.keys().isdisjoint(("bias", "bn_scale", "summand"))


def _conv(d: Describer, step: Step, v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    shape, dtype = d.conv_weights(step), d.type_of(step.weights["weight"])
    plain = d.plain(shape, dtype=dtype)
    bias = d.plain((d.shapes[step.weights["weight"]][0],)) if _biased(step) else None
    weights = (plain, _wanted(d, shape, plain, v, dtype), bias)
    descriptor, slots = _slid(d, step, "convolution", constants.CONVOLUTION[v.algorithm], (reads[0], out), weights, attributes)
    return descriptor, slots + d.scaling_slots(step)


def _slid(
    d: Describer, step: Step, primitive: str, algorithm: int, operands: tuple[Operand, Operand],
    weights: tuple[Handle, Handle, Handle | None], attributes: Handle,
) -> Made:  # fmt: skip
    """Describe a convolution or deconvolution; `weights` are in the file, as they are asked for, and the bias."""
    (read, written), (plain, wanted, bias) = operands, weights
    given = (read.descriptor.value, wanted.value, _value(bias), written.descriptor.value)
    descriptor = d.primitive(f"{primitive}_forward", _INFERENCE, algorithm, *given, *_window(step), attributes.value)
    return descriptor, _weighted(plain, bias)


def _window(step: Step) -> tuple[ctypes.Array[ctypes.c_int64], ...]:
    """Strides, dilations, and padding before and after."""
    dilations = [x - 1 for x in step.sizes("dilations")]
    return tuple(map(dims, (step.sizes("strides"), dilations, step.sizes("pads_before"), step.sizes("pads_after"))))


def _fc(d: Describer, step: Step, v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    source = d.shapes[step.inputs[0]]
    columns = d.shapes[step.outputs[0]][-1]
    transposed = step.integer("transposed")
    if "written" in step.settings:
        return _columns(d, step, v, reads, out, attributes)
    maps: Shape
    if len(source) == 4:  # flattened here
        rows, maps = source[0], tuple(source[1:])
        read, written = reads[0].descriptor, out.descriptor
    else:
        rows, maps = math.prod(source[:-1]), source[-1:]
        read, written = d.plain((rows, *maps)), d.plain((rows, columns))
    if v.algorithm == AS_CONVOLUTION:
        if any(post.kind == "binary" for post in step.post_ops):
            raise Unsupported("a convolution's operand of another rank")
        maps = (*maps, 1, 1)[:3]
        read = read if len(source) == 4 else d.plain((rows, *maps), NHWC)
        written = d.plain((rows, columns, 1, 1), NHWC)
    shape: Shape = (columns, *maps)
    inner = [math.prod(maps[i + 1 :]) for i in range(len(maps))]
    strides = (math.prod(maps), *inner) if transposed else (1, *(columns * s for s in inner))
    plain = d.dnnl.strided(shape, strides)
    bias = d.plain((columns,)) if "bias" in step.weights else None
    wanted = _wanted(d, shape, plain, v)  # held until the call
    given = (read.value, wanted.value, _value(bias), written.value)
    if v.algorithm == AS_CONVOLUTION:
        none, ones = dims((0, 0)), dims((1, 1))
        arguments = (constants.CONVOLUTION["direct"], *given, ones, none, none, none)
        made = d.primitive("convolution_forward", _INFERENCE, *arguments, attributes.value)
    else:
        made = d.primitive("inner_product_forward", _INFERENCE, *given, attributes.value)
    return made, _weighted(plain, bias)


def _columns(d: Describer, step: Step, v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    """Some columns of several rows: a product, whose kernels write rows that lie apart; an inner product's do not."""
    if v.algorithm == AS_CONVOLUTION:
        raise Unsupported("a convolution that writes rows that lie apart")
    source = d.shapes[step.inputs[0]]
    rows, columns, *_ = step.sizes("written")
    inner = math.prod(source) // rows
    read = reads[0].descriptor if len(source) == 2 else d.plain((rows, inner))
    return _product(d, step, v, (read, out.descriptor), (inner, columns), attributes)


def _product(d: Describer, step: Step, v: Variant, operands: tuple[Handle, Handle], shape: Shape, attributes: Handle) -> Made:
    """Describe a product with a matrix of weights, of a shape; operands are what is read and written."""
    (read, written), dtype = operands, d.type_of(step.weights["weight"])
    plain = d.dnnl.strided(shape, (1, shape[0]), dtype) if step.integer("transposed") else d.plain(shape, dtype=dtype)
    bias = d.plain((1, shape[1])) if "bias" in step.weights else None
    wanted = _wanted(d, shape, plain, v, dtype)  # held until the call
    given = (read.value, wanted.value, _value(bias), written.value)
    return d.primitive("matmul", *given, attributes.value), _weighted(plain, bias)


def _fc_in_eight_bits(d: Describer, step: Step, v: Variant, _reads: Reads, _out: Operand, attributes: Handle) -> Made:
    """Describe a product of matrices: an inner product of the library takes no zero points."""
    (read,), (written,) = step.inputs, step.outputs
    rows, columns = math.prod(d.shapes[written][:-1]), d.shapes[written][-1]
    inner = math.prod(d.shapes[read]) // rows  # axes of an image are joined
    source = d.plain((rows, inner), dtype=d.type_of(read))
    target = d.plain((rows, columns), dtype=d.type_of(written))
    descriptor, slots = _product(d, step, v, (source, target), (inner, columns), attributes)
    return descriptor, slots + d.scaling_slots(step)


def _deconv(d: Describer, step: Step, v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    """Weights are (in, out / groups, window) in the file, (groups, out / groups, in / groups, window) to oneDNN."""
    inner, each, *window = d.shapes[step.weights["weight"]]
    groups, size = step.integer("groups"), math.prod(window)
    behind = [math.prod(window[place + 1 :]) for place in range(len(window))]
    shape: Shape = (each, inner // groups, *window)
    strides = (size, each * size, *behind)
    if groups > 1:
        shape, strides = (groups, *shape), (inner // groups * each * size, *strides)
    plain = d.dnnl.strided(shape, strides)
    bias = d.plain((each * groups,)) if _biased(step) else None
    weights = (plain, _wanted(d, shape, plain, v), bias)
    return _slid(d, step, "deconvolution", constants.DECONVOLUTION_DIRECT, (reads[0], out), weights, attributes)


def _norm(d: Describer, step: Step, _v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    """Describe a normalisation of each row, with a scale and a shift where there are weights for them."""
    arguments = {"scale": constants.ARG_SCALE, "shift": constants.ARG_SHIFT}
    flags = sum({"scale": constants.USE_SCALE, "shift": constants.USE_SHIFT}[role] for role in step.weights)
    slots = tuple(Slot(arguments[role], d.plain((math.prod(d.shapes[name]),))) for role, name in step.weights.items())
    source, target, epsilon = reads[0].descriptor.value, out.descriptor.value, step.number("epsilon")
    given = (_INFERENCE, source, target, None, epsilon, flags)
    return d.primitive("layer_normalization_forward", *given, attributes.value), slots


def _pool(d: Describer, step: Step, _v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    strides, dilations, before, after = _window(step)
    given = (constants.POOLING[step.text("algorithm")], reads[0].descriptor.value, out.descriptor.value)
    window = (strides, dims(step.sizes("kernel")), dilations, before, after)
    return d.primitive("pooling_forward", _INFERENCE, *given, *window, attributes.value), ()


def _concat(d: Describer, step: Step, v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    parts = {operand.argument: operand.descriptor for operand in reads}
    slots = []
    for role, name in step.weights.items():
        argument, shape = constants.ARG_MULTIPLE_SRC + int(role.removeprefix("part_")), d.shapes[name]
        slots.append(Slot(argument, d.plain(shape), target=d.plain(shape, v.source)))
        parts[argument] = slots[-1].target or slots[-1].source
    sources = (ctypes.c_void_p * len(parts))(*[parts[argument].value for argument in sorted(parts)])
    given = (out.descriptor.value, len(parts), step.integer("axis"), sources)
    return d.primitive("concat", *given, attributes.value), tuple(slots)


#: The operands of a product by the role of their weights.
PRODUCT_SIDES: Mapping[str, int] = MappingProxyType({"left": constants.ARG_SRC, "right": constants.ARG_WEIGHTS})


def weighted_sides(step: Step) -> tuple[str, ...]:
    """Which operands of a product are weights."""
    return (step.text("side"),) if step.kind == "mix" else tuple(step.weights)


def _matmul(d: Describer, step: Step, _v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    sides = {operand.argument: operand.descriptor for operand in reads}
    slots: tuple[Slot, ...] = ()
    for role in weighted_sides(step):
        source = _matrix(d, step)
        slots = (Slot(PRODUCT_SIDES[role], source),)
        sides[PRODUCT_SIDES[role]] = source
    given = (sides[constants.ARG_SRC].value, sides[constants.ARG_WEIGHTS].value, None, out.descriptor.value)
    return d.primitive("matmul", *given, attributes.value), slots


def _matrix(d: Describer, step: Step) -> Handle:
    """Descriptor of the operand of a product that is no activation."""
    if step.kind == "mix":
        size, out = step.integer("size"), step.integer("out")
        return d.plain((1, out, size) if step.text("side") == "left" else (size, out))
    shape = step.sizes("shape")
    if not step.integer("transposed"):
        return d.plain(shape)
    return d.dnnl.strided(shape, (1, shape[0]))


def _binary(d: Describer, step: Step, _v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    slots: tuple[Slot, ...] = ()
    if step.kind == "scale":
        algorithm, second = "mul", d.per_channel(step)
        slots = (Slot(constants.ARG_SRC_1, second), Slot(constants.ARG_POST_OP | constants.ARG_SRC_1, second))
    elif "operand" in step.weights:
        shape = step.sizes("shape") if "shape" in step.settings else d.shapes[step.weights["operand"]]
        rank = len(d.shapes[step.inputs[0]])
        algorithm, second = step.text("algorithm"), d.plain((*[1] * (rank - len(shape)), *shape))
        slots = (Slot(constants.ARG_SRC_1, second),)
    else:
        algorithm, second = step.text("algorithm"), reads[1].descriptor
    given = (constants.BINARY[algorithm], reads[0].descriptor.value, second.value, out.descriptor.value)
    return d.primitive("binary", *given, attributes.value), slots


def _unary(d: Describer, step: Step, _v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    """Primitives of one activation: eltwise, lrn, softmax, shuffle, resampling."""
    source, target = reads[0].descriptor.value, out.descriptor.value
    given: tuple[int | float | None, ...]
    if step.kind == "eltwise":
        algorithm = constants.ELTWISE[step.text("algorithm")]
        given = (algorithm, source, target, step.number("alpha"), step.number("beta"))
    elif step.kind == "lrn":
        numbers = (step.integer("size"), step.number("alpha"), step.number("beta"), step.number("bias"))
        given = (constants.LRN_ACROSS_CHANNELS, source, target, *numbers)
    elif step.kind == "softmax":
        algorithm = constants.SOFTMAX[str(step.settings.get("algorithm", "accurate"))]
        given = (algorithm, source, target, step.integer("axis"))
    elif step.kind == "shuffle":
        # oneDNN's group is the number of channels that stay side by side in the input
        given = (source, target, 1, d.shapes[step.inputs[0]][1] // step.integer("groups"))
    else:
        given = (constants.RESAMPLING[step.text("algorithm")], None, source, target)
    name = "resampling" if step.kind == "resize" else step.kind
    return d.primitive(f"{name}_forward", _INFERENCE, *given, attributes.value), ()


def _recurrent(d: Describer, step: Step, _v: Variant, reads: Reads, out: Operand, attributes: Handle) -> Made:
    """Weights are (layers, directions, inputs, gates, outputs) to oneDNN, whose input axis runs fastest in the file."""
    directions, rows, inner = d.shapes[step.weights["weight"]]
    hidden = step.integer("hidden")
    gates = rows // hidden

    def weights(size: int) -> tuple[Handle, Handle]:
        strides = (directions * rows * size, rows * size, 1, hidden * size, size)
        shape = (1, directions, size, gates, hidden)
        return d.dnnl.strided(shape, strides), d.dnnl.descriptor(shape, constants.ANY)

    (layer, any_layer), (recurrence, any_recurrence) = weights(inner), weights(hidden)
    bias = d.plain((1, directions, gates + (step.kind == "lbr_gru"), hidden))
    slots = [
        Slot(constants.ARG_WEIGHTS, layer, 0, chosen=True),
        Slot(constants.ARG_WEIGHTS_1, recurrence, 1, chosen=True),
        Slot(constants.ARG_BIAS, bias),
    ]
    peepholes = d.plain((1, directions, 3, hidden)) if "peepholes" in step.weights else None
    if peepholes is not None:
        slots.append(Slot(constants.ARG_WEIGHTS_2, peepholes))
    first = [d.plain((1, *d.shapes[name])) for name in step.inputs[1:]]
    for role, argument in (("state_h", constants.ARG_SRC_1), ("state_c", constants.ARG_SRC_2)):
        if role in step.weights:
            first.append(d.plain((1, *d.shapes[step.weights[role]])))
            slots.append(Slot(argument, first[-1]))
    last = [d.plain((1, *d.shapes[name])) for name in step.outputs[1:]]
    states = 2 if step.kind == "lstm" else 1
    name = "vanilla_rnn" if step.kind == "rnn" else step.kind
    descriptor = d.primitive(
        f"{name}_forward",
        _INFERENCE,
        *([constants.ELTWISE[step.text("activation")]] if step.kind == "rnn" else []),
        constants.RNN_DIRECTION[step.text("direction")],
        reads[0].descriptor.value,
        *([state.value for state in first] or (None,) * states),
        any_layer.value,
        any_recurrence.value,
        *([_value(peepholes), None] if step.kind == "lstm" else []),
        bias.value,
        out.descriptor.value,
        *([state.value for state in last] or (None,) * states),
        0,
        *([0.0, 0.0] if step.kind == "rnn" else []),
        attributes.value,
    )
    return descriptor, tuple(slots)


#: How each kind of step is made.
MAKERS: Mapping[str, Maker] = MappingProxyType(
    {
        "conv": _conv,
        INT8_CONV: _conv,
        INT8_FC: _fc_in_eight_bits,
        "deconv": _deconv,
        "layer_norm": _norm,
        "fc": _fc,
        "pool": _pool,
        INT8_POOL: _pool,
        "concat": _concat,
        "binary": _binary,
        "scale": _binary,
        **dict.fromkeys(("lstm", "gru", "lbr_gru", "rnn"), _recurrent),
        **dict.fromkeys(("matmul", "mix"), _matmul),
        **dict.fromkeys(("eltwise", "lrn", "softmax", "shuffle", "resize"), _unary),
    }
)
