"""The primitive descriptor of each kind of step, and the weights it reads."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from edgeplan.graph.shapes import FLOAT32, Shape
from edgeplan.graph.steps import INT8_CONV, INT8_FC, INT8_POOL, Step
from edgeplan.runtime import constants
from edgeplan.runtime.descriptors import Described, Descriptors, Operand, Slot, Variant
from edgeplan.runtime.dnnl import Handle, Unsupported, dims
from edgeplan.runtime.layouts import NHWC

_INFERENCE = constants.FORWARD_INFERENCE
#: Algorithm of a variant of a fully connected step: a convolution over the whole input. Its kernels are generated in a fraction
#: of the time that the first matrix product of a process takes.
AS_CONVOLUTION = "convolution"

Maker = Callable[[Descriptors, Step, Variant, tuple[Operand, ...], Operand, Handle], tuple[Handle, tuple[Slot, ...]]]


def _wanted(d: Descriptors, shape: Shape, plain: Handle, variant: Variant, dtype: str = FLOAT32) -> Handle:
    return plain if variant.weights == "plain" else d.dnnl.descriptor(shape, constants.ANY, dtype)


def _biased(step: Step) -> bool:
    return not step.weights.keys().isdisjoint(("bias", "bn_scale", "summand"))


def _conv(
    d: Descriptors, step: Step, v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
    shape, dtype = d.conv_weights(step), d.type_of(step.weights["weight"])
    plain = d.plain(shape, dtype=dtype)
    bias = d.plain((d.shapes[step.weights["weight"]][0],)) if _biased(step) else None
    weights = (plain, _wanted(d, shape, plain, v, dtype), bias)
    descriptor, slots = _slid(d, step, "convolution", constants.CONVOLUTION[v.algorithm], (reads[0], out), weights, attributes)
    return descriptor, slots + d.scaling_slots(step)


def _slid(
    d: Descriptors,
    step: Step,
    primitive: str,
    algorithm: int,
    operands: tuple[Operand, Operand],
    weights: tuple[Handle, Handle, Handle | None],
    attributes: Handle,
) -> tuple[Handle, tuple[Slot, ...]]:
    """Describe a convolution or deconvolution to the library.

    Args:
        d: descriptors of the model.
        step: whose window it is.
        primitive: oneDNN's name.
        algorithm: its number.
        operands: read and written.
        weights: descriptors of the weights in the file, as they are asked for, and of the bias.
        attributes: of the primitive.
    """
    (read, written), (plain, wanted, bias) = operands, weights
    slots: tuple[Slot, ...] = (Slot(constants.ARG_WEIGHTS, plain, 0, chosen=True),)
    if bias is not None:
        slots += (Slot(constants.ARG_BIAS, bias),)
    descriptor = d.dnnl.make(
        "primitive_desc",
        f"dnnl_{primitive}_forward_primitive_desc_create",
        d.dnnl.engine.value,
        _INFERENCE,
        algorithm,
        read.descriptor.value,
        wanted.value,
        bias.value if bias is not None else None,
        written.descriptor.value,
        dims(step.sizes("strides")),
        dims([x - 1 for x in step.sizes("dilations")]),
        dims(step.sizes("pads_before")),
        dims(step.sizes("pads_after")),
        attributes.value,
    )
    return descriptor, slots


def _fc(
    d: Descriptors, step: Step, v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
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
        rows, maps = _rows(source), source[-1:]
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
    slots: tuple[Slot, ...] = (Slot(constants.ARG_WEIGHTS, plain, 0, chosen=True),)
    bias = d.plain((columns,)) if "bias" in step.weights else None
    if bias is not None:
        slots += (Slot(constants.ARG_BIAS, bias),)
    wanted = _wanted(d, shape, plain, v)
    given = (read.value, wanted.value, bias.value if bias is not None else None, written.value)
    engine = d.dnnl.engine.value
    if v.algorithm == AS_CONVOLUTION:
        function = "dnnl_convolution_forward_primitive_desc_create"
        none, ones = dims((0, 0)), dims((1, 1))
        direct = constants.CONVOLUTION["direct"]
        arguments = (engine, _INFERENCE, direct, *given, ones, none, none, none, attributes.value)
        return d.dnnl.make("primitive_desc", function, *arguments), slots
    function = "dnnl_inner_product_forward_primitive_desc_create"
    return d.dnnl.make("primitive_desc", function, engine, _INFERENCE, *given, attributes.value), slots


def _columns(
    d: Descriptors, step: Step, v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
    """Some columns of several rows: a product, whose kernels write rows that lie apart; an inner product's do not."""
    if v.algorithm == AS_CONVOLUTION:
        raise Unsupported("a convolution that writes rows that lie apart")
    source = d.shapes[step.inputs[0]]
    rows, columns, *_ = step.sizes("written")
    inner = math.prod(source) // rows
    read = reads[0].descriptor if len(source) == 2 else d.plain((rows, inner))
    shape = (inner, columns)
    plain = d.dnnl.strided(shape, (1, inner)) if step.integer("transposed") else d.plain(shape)
    bias = d.plain((1, columns)) if "bias" in step.weights else None
    slots: tuple[Slot, ...] = (Slot(constants.ARG_WEIGHTS, plain, 0, chosen=True),)
    if bias is not None:
        slots += (Slot(constants.ARG_BIAS, bias),)
    wanted = _wanted(d, shape, plain, v)
    given = (read.value, wanted.value, bias.value if bias is not None else None, out.descriptor.value)
    function = "dnnl_matmul_primitive_desc_create"
    return d.dnnl.make("primitive_desc", function, d.dnnl.engine.value, *given, attributes.value), slots


def _fc_in_eight_bits(
    d: Descriptors, step: Step, v: Variant, _reads: tuple[Operand, ...], _out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
    """Describe a product of matrices: an inner product of the library takes no zero points."""
    (read,), (written,), weight = step.inputs, step.outputs, d.type_of(step.weights["weight"])
    rows, columns = _rows(d.shapes[written]), d.shapes[written][-1]
    inner = math.prod(d.shapes[read]) // rows  # axes of an image are joined
    source = d.plain((rows, inner), dtype=d.type_of(read))
    target = d.plain((rows, columns), dtype=d.type_of(written))
    shape = (inner, columns)
    plain = d.dnnl.strided(shape, (1, inner), weight) if step.integer("transposed") else d.plain(shape, dtype=weight)
    bias = d.plain((1, columns)) if "bias" in step.weights else None
    slots: tuple[Slot, ...] = (Slot(constants.ARG_WEIGHTS, plain, 0, chosen=True),)
    if bias is not None:
        slots += (Slot(constants.ARG_BIAS, bias),)
    wanted = _wanted(d, shape, plain, v, weight)
    given = (source.value, wanted.value, bias.value if bias is not None else None, target.value)
    function = "dnnl_matmul_primitive_desc_create"
    made = d.dnnl.make("primitive_desc", function, d.dnnl.engine.value, *given, attributes.value)
    return made, slots + d.scaling_slots(step)


def _rows(shape: Shape) -> int:
    count = 1
    for size in shape[:-1]:
        count *= size
    return count


def _deconv(
    d: Descriptors, step: Step, v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
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


def _norm(
    d: Descriptors, step: Step, _v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
    """Describe a normalisation of each row, with a scale and a shift where there are weights for them."""
    arguments = {"scale": constants.ARG_SCALE, "shift": constants.ARG_SHIFT}
    flags = sum({"scale": constants.USE_SCALE, "shift": constants.USE_SHIFT}[role] for role in step.weights)
    slots = tuple(Slot(arguments[role], d.plain((math.prod(d.shapes[name]),))) for role, name in step.weights.items())
    source, target, epsilon = reads[0].descriptor.value, out.descriptor.value, step.number("epsilon")
    function = "dnnl_layer_normalization_forward_primitive_desc_create"
    given = (d.dnnl.engine.value, _INFERENCE, source, target, None, epsilon, flags)
    return d.dnnl.make("primitive_desc", function, *given, attributes.value), slots


def _pool(
    d: Descriptors, step: Step, _v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
    descriptor = d.dnnl.make(
        "primitive_desc",
        "dnnl_pooling_forward_primitive_desc_create",
        d.dnnl.engine.value,
        _INFERENCE,
        constants.POOLING[step.text("algorithm")],
        reads[0].descriptor.value,
        out.descriptor.value,
        dims(step.sizes("strides")),
        dims(step.sizes("kernel")),
        dims([x - 1 for x in step.sizes("dilations")]),
        dims(step.sizes("pads_before")),
        dims(step.sizes("pads_after")),
        attributes.value,
    )
    return descriptor, ()


def _concat(
    d: Descriptors, step: Step, v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
    parts = {operand.argument: operand.descriptor for operand in reads}
    slots = []
    for role, name in step.weights.items():
        argument, shape = constants.ARG_MULTIPLE_SRC + int(role.removeprefix("part_")), d.shapes[name]
        slots.append(Slot(argument, d.plain(shape), target=d.plain(shape, v.source)))
        parts[argument] = slots[-1].target or slots[-1].source
    sources = (ctypes.c_void_p * len(parts))(*[parts[argument].value for argument in sorted(parts)])
    function = "dnnl_concat_primitive_desc_create"
    engine, axis = d.dnnl.engine.value, step.integer("axis")
    made = d.dnnl.make("primitive_desc", function, engine, out.descriptor.value, len(parts), axis, sources, attributes.value)
    return made, tuple(slots)


#: The operands of a product by the role of their weights.
PRODUCT_SIDES: Mapping[str, int] = MappingProxyType({"left": constants.ARG_SRC, "right": constants.ARG_WEIGHTS})


def weighted_sides(step: Step) -> tuple[str, ...]:
    """Which operands of a product are weights."""
    return (step.text("side"),) if step.kind == "mix" else tuple(step.weights)


def _matmul(
    d: Descriptors, step: Step, _v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
    sides = {operand.argument: operand.descriptor for operand in reads}
    slots: tuple[Slot, ...] = ()
    for role in weighted_sides(step):
        source = _matrix(d, step)
        slots = (Slot(PRODUCT_SIDES[role], source),)
        sides[PRODUCT_SIDES[role]] = source
    given = (sides[constants.ARG_SRC].value, sides[constants.ARG_WEIGHTS].value, None, out.descriptor.value)
    function = "dnnl_matmul_primitive_desc_create"
    return d.dnnl.make("primitive_desc", function, d.dnnl.engine.value, *given, attributes.value), slots


def _matrix(d: Descriptors, step: Step) -> Handle:
    """Descriptor of the operand of a product that is no activation."""
    if step.kind == "mix":
        size, out = step.integer("size"), step.integer("out")
        return d.plain((1, out, size) if step.text("side") == "left" else (size, out))
    shape = step.sizes("shape")
    if not step.integer("transposed"):
        return d.plain(shape)
    return d.dnnl.strided(shape, (1, shape[0]))


def _binary(
    d: Descriptors, step: Step, _v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
    slots: tuple[Slot, ...] = ()
    if step.kind == "scale":
        algorithm, second = "mul", d.per_channel(step)
        slots = (
            Slot(constants.ARG_SRC_1, second),
            Slot(constants.ARG_POST_OP | constants.ARG_SRC_1, second),
        )
    elif "operand" in step.weights:
        shape = step.sizes("shape") if "shape" in step.settings else d.shapes[step.weights["operand"]]
        rank = len(d.shapes[step.inputs[0]])
        algorithm, second = step.text("algorithm"), d.plain((*[1] * (rank - len(shape)), *shape))
        slots = (Slot(constants.ARG_SRC_1, second),)
    else:
        algorithm, second = step.text("algorithm"), reads[1].descriptor
    descriptor = d.dnnl.make(
        "primitive_desc",
        "dnnl_binary_primitive_desc_create",
        d.dnnl.engine.value,
        constants.BINARY[algorithm],
        reads[0].descriptor.value,
        second.value,
        out.descriptor.value,
        attributes.value,
    )
    return descriptor, slots


def _unary(
    d: Descriptors, step: Step, _v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
    """Primitives of one activation: eltwise, lrn, softmax, shuffle, resampling."""
    engine, source, target = d.dnnl.engine.value, reads[0].descriptor.value, out.descriptor.value
    given: tuple[int | float | None, ...]
    if step.kind == "eltwise":
        function = "dnnl_eltwise_forward_primitive_desc_create"
        algorithm = constants.ELTWISE[step.text("algorithm")]
        given = (engine, _INFERENCE, algorithm, source, target, step.number("alpha"), step.number("beta"))
    elif step.kind == "lrn":
        function = "dnnl_lrn_forward_primitive_desc_create"
        numbers = (step.integer("size"), step.number("alpha"), step.number("beta"), step.number("bias"))
        given = (engine, _INFERENCE, constants.LRN_ACROSS_CHANNELS, source, target, *numbers)
    elif step.kind == "softmax":
        function = "dnnl_softmax_forward_primitive_desc_create"
        given = (
            engine,
            _INFERENCE,
            constants.SOFTMAX[str(step.settings.get("algorithm", "accurate"))],
            source,
            target,
            step.integer("axis"),
        )
    elif step.kind == "shuffle":
        function = "dnnl_shuffle_forward_primitive_desc_create"
        # oneDNN's group is the number of channels that stay side by side in the input
        given = (engine, _INFERENCE, source, target, 1, d.shapes[step.inputs[0]][1] // step.integer("groups"))
    else:
        function = "dnnl_resampling_forward_primitive_desc_create"
        given = (engine, _INFERENCE, constants.RESAMPLING[step.text("algorithm")], None, source, target)
    return d.dnnl.make("primitive_desc", function, *given, attributes.value), ()


def _recurrent(
    d: Descriptors, step: Step, _v: Variant, reads: tuple[Operand, ...], out: Operand, attributes: Handle
) -> tuple[Handle, tuple[Slot, ...]]:
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
    descriptor = d.dnnl.make(
        "primitive_desc",
        f"dnnl_{name}_forward_primitive_desc_create",
        d.dnnl.engine.value,
        _INFERENCE,
        *([constants.ELTWISE[step.text("activation")]] if step.kind == "rnn" else []),
        constants.RNN_DIRECTION[step.text("direction")],
        reads[0].descriptor.value,
        *([state.value for state in first] or (None,) * states),
        any_layer.value,
        any_recurrence.value,
        *([peepholes.value if peepholes is not None else None, None] if step.kind == "lstm" else []),
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


#: Of what a step writes first, second, third (an LSTM's last states).
_WRITTEN = (constants.ARG_DST, constants.ARG_DST_1, constants.ARG_DST_2)


class Describer(Descriptors):
    """Makes primitive descriptors for the steps of one model."""

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
