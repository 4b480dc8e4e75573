"""Steps to primitives ready to be bound to memory: the main one, and the conversions around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from edgeplan.errors import DeviceError
from edgeplan.graph import blocks
from edgeplan.graph.blocks import AT_OPERANDS, span_bytes
from edgeplan.graph.shapes import BYTES_PER_ELEMENT, FLOAT32, Shape
from edgeplan.graph.steps import INT8_LINE, Step
from edgeplan.runtime import constants
from edgeplan.runtime.dnnl import Dnnl, Handle
from edgeplan.runtime.layouts import BLOCKED, NCHW, NHWC, same_bytes
from edgeplan.runtime.primitives import Described, Describer, Variant

ALIGNMENT, PAGE_BYTES = 64, 4096
ROWS_KERNEL = "rows_by_"  # and the type of indices: no kernel, but a read of the file (`runtime.streaming.build`)
_FLOAT_BYTES = _INTEGER_BYTES = 4
_CHANNELS_LAST = (0, 2, 3, 1)
#: What names of the compiled kernels between bytes and numbers begin with.
_BETWEEN = ("quantised_to_", "dequantised_")


def aligned(size: int) -> int:
    """The next multiple of a cache line."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def paged(size: int) -> int:
    """The next multiple of a page, at which segments of weights begin in files."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


class Implementation(msgspec.Struct, frozen=True):
    """One way to run a step: a candidate's kernel.

    Its name is unique among the step's candidates: oneDNN's name, `@source>output` where it takes other layouts than the
    activations have (the conversions are then part of it), `+plain` where it reads the weights as they lie in the file. The
    kernel is oneDNN's name; "" for a step without a primitive, `reorder` for one of conversions only.
    """

    name: str
    kernel: str
    variant: Variant


class Place(msgspec.Struct, frozen=True):
    """Where a memory lies: `arena` (an activation), `scratch` or `weights`, and the offset there in bytes."""

    region: str
    offset: int


class Argument(msgspec.Struct, frozen=True):
    """An argument of a call: its number, its descriptor (owned by a handle that the call keeps) and where it lies."""

    number: int
    descriptor: int
    place: Place


class Call(msgspec.Struct, frozen=True):
    """One execution of a primitive. `converts` names the activation that a conversion converts."""

    descriptor: Handle
    primitive: Handle | None
    arguments: tuple[Argument, ...]
    converts: str
    keep: tuple[object, ...]


class WeightSlot(msgspec.Struct, frozen=True):
    """One weight of a created step: where it lies in the step's weights, its layout there and in the file."""

    offset: int
    size: int
    target: int
    source: Handle


class KernelCall(msgspec.Struct, frozen=True):
    """One call of a compiled kernel: its name, its block (`graph.blocks`) and where its operands lie."""

    kernel: str
    block: tuple[int, ...]
    places: tuple[Place, ...]
    converts: str = ""


class Created(msgspec.Struct, frozen=True):
    """A step whose primitives exist, bound to no memory yet.

    Execution is one C call for each of `calls`; `slots` are in the order in which `transform` makes the weights, which lie in
    one buffer. Scratch is scratchpad and converted activations.
    """

    calls: tuple[Call | KernelCall, ...]
    slots: tuple[WeightSlot, ...]
    weight_bytes: int
    scratch_bytes: int


def same_weights(dnnl: Dnnl, one: Created, other: Created) -> bool:
    """Tell whether two created steps read their weights in the same layouts."""
    if len(one.slots) != len(other.slots) or one.weight_bytes != other.weight_bytes:
        return False
    pairs = zip(one.slots, other.slots, strict=True)
    return all(a.offset == b.offset and dnnl.equal(a.target, b.target) for a, b in pairs)


class Creator:
    """Creates the primitives of one model's steps: offsets lie in the arena, `types` are of tensors that are not of float32."""

    def __init__(
        self,
        dnnl: Dnnl,
        shapes: Mapping[str, Shape],
        layouts: Mapping[str, str],
        offsets: Mapping[str, int],
        types: Mapping[str, str],
    ) -> None:
        self.dnnl, self.layouts, self.offsets, self.types = dnnl, layouts, offsets, types
        self.shapes = {name: shape or (1,) for name, shape in shapes.items()}  # the library knows no number without an axis
        self.describer = Describer(dnnl, self.shapes, types)

    def create(self, step: Step, implementation: Implementation, *, generate: bool = True) -> Created:
        """Create the primitives of a step under one of its candidates; where they are not generated, only sizes are known."""
        work = _Work(self, generate)
        if step.kind in _MOVES:
            _MOVES[step.kind](work, step, implementation.variant)
            return work.created()
        described = self.describer.describe(step, implementation.variant)
        # Found by name: a warm primitive cache repeats implementations in the walk, so positions shift.
        while (found := self.dnnl.implementation(described.descriptor.value)) != implementation.kernel:
            if not self.dnnl.next_implementation(described.descriptor):
                raise DeviceError(
                    f"this oneDNN does not offer {implementation.kernel!r} (the last it offers is {found!r})",
                    where=f"step {step.name!r}, oneDNN {self.dnnl.info.version} ({self.dnnl.info.isa})",
                    next_step="plan again on this machine",
                )
        work.primitive(described)
        return work.created()

    def size(self, tensor: str) -> int:
        """Bytes of a row-major tensor."""
        return BYTES_PER_ELEMENT[self.types.get(tensor, FLOAT32)] * math.prod(self.shapes[tensor])

    def same(self, tensor: str, layout: str) -> bool:
        """Tell whether an activation needs no conversion to be read or written in a layout."""
        return same_bytes(self.shapes[tensor], self.layouts[tensor], layout, self.dnnl.info.block)


class _Work:
    """The calls of one step, being put together."""

    def __init__(self, creator: Creator, generate: bool) -> None:
        self.creator, self.dnnl, self.generate = creator, creator.dnnl, generate
        self.calls: list[Call | KernelCall] = []
        self.slots: list[WeightSlot] = []
        self.weight_bytes = 0
        self.scratch = 0

    def created(self) -> Created:
        return Created(tuple(self.calls), tuple(self.slots), self.weight_bytes, self.scratch)

    def temporary(self, size: int) -> Place:
        place = Place("scratch", self.scratch)
        self.scratch += aligned(size)
        return place

    def arena(self, tensor: str) -> Place:
        return Place("arena", self.creator.offsets.get(tensor, 0))

    def actual(self, tensor: str) -> Handle:
        return self.creator.describer.activation(tensor, self.creator.layouts[tensor])

    def call(self, descriptor: Handle, arguments: list[Argument], converts: str, *keep: object) -> None:
        scratch = self.dnnl.queried(descriptor, constants.QUERY_SCRATCHPAD_MD)
        if size := self.dnnl.size(scratch):
            arguments = [*arguments, Argument(constants.ARG_SCRATCHPAD, scratch, self.temporary(size))]
        primitive = self.dnnl.primitive(descriptor) if self.generate else None
        self.calls.append(Call(descriptor, primitive, tuple(arguments), converts, keep))

    def move(self, source: Handle, read: Place, target: Handle, written: Place, converts: str) -> None:
        """A conversion between two descriptors of the same shape."""
        arguments = [Argument(constants.ARG_SRC, source.value, read), Argument(constants.ARG_DST, target.value, written)]
        self.call(self.dnnl.reorder(source.value, target.value), arguments, converts, source, target)

    def laid(self, tensor: str, layout: str) -> Place:
        """Where a tensor lies in a layout without blocks, converted if need be."""
        place, creator = self.arena(tensor), self.creator
        if creator.same(tensor, layout):
            return place
        converted = self.temporary(creator.size(tensor))
        self.move(self.actual(tensor), place, creator.describer.activation(tensor, layout), converted, tensor)
        return converted

    def kernel(self, name: str, block: tuple[int, ...], places: Sequence[Place], outputs: Sequence[str], order: str) -> None:
        """A call of a compiled kernel, which writes outputs in an order behind its other operands; they are converted then."""
        creator = self.creator
        written = [self.arena(one) if creator.same(one, order) else self.temporary(creator.size(one)) for one in outputs]
        self.calls.append(KernelCall(name, block, (*places, *written)))
        for one, place in zip(outputs, written, strict=True):
            if not creator.same(one, order):
                self.move(creator.describer.activation(one, order), place, self.actual(one), self.arena(one), one)

    def order_of(self, step: Step) -> str:
        """Row-major, or that of images of bytes where a kernel between bytes and numbers by one scale works in any order."""
        tensors = (*step.inputs, *step.outputs)
        by_one = step.text("kernel").startswith(_BETWEEN) and len(step.inputs) == 1
        by_one = by_one and all(math.prod(self.creator.shapes[name]) == 1 for name in step.weights.values())
        return NHWC if by_one and any(self.creator.layouts[t] == NHWC and t in self.creator.types for t in tensors) else NCHW

    def weight(self, size: int) -> Place:
        """Where a weight of as many bytes lies as it is made or the file holds it."""
        place = Place("weights", self.weight_bytes)
        described = self.dnnl.bytes_of(size)
        self.slots.append(WeightSlot(self.weight_bytes, size, described.value, described))
        self.weight_bytes += aligned(size)
        return place

    def primitive(self, described: Described) -> None:
        """The main primitive, with the conversions its layouts need."""
        arguments, after = [], []
        for operand in described.reads:
            place = self.arena(operand.tensor)
            if not self.creator.same(operand.tensor, operand.layout):
                place = self.temporary(self.dnnl.size(operand.descriptor.value))
                self.move(self.actual(operand.tensor), self.arena(operand.tensor), operand.descriptor, place, operand.tensor)
            arguments.append(Argument(operand.argument, operand.descriptor.value, place))
        for operand in described.writes:
            place = self.arena(operand.tensor)
            if not self.creator.same(operand.tensor, operand.layout):
                place = self.temporary(self.dnnl.size(operand.descriptor.value))
                target = self.actual(operand.tensor)
                after.append((operand.descriptor, place, target, self.arena(operand.tensor), operand.tensor))
                if described.summed:
                    summed = self.actual(described.summed)
                    self.move(summed, self.arena(described.summed), operand.descriptor, place, described.summed)
            arguments.append(Argument(operand.argument, operand.descriptor.value, place))
        for slot in described.slots:
            target_md = described.target(self.dnnl, slot)
            size = self.dnnl.size(target_md)
            self.slots.append(WeightSlot(self.weight_bytes, size, target_md, slot.source))
            arguments.append(Argument(slot.argument, target_md, Place("weights", self.weight_bytes)))
            self.weight_bytes += aligned(size)
        self.call(described.descriptor, arguments, "", described)
        for source, place, target, written, tensor in after:
            self.move(source, place, target, written, tensor)


def _reshape(work: _Work, step: Step, _variant: Variant) -> None:
    """A view where the bytes stay; else through row-major order."""
    creator, plain = work.creator, work.creator.describer.plain
    source, output = step.inputs[0], step.outputs[0]
    read, written = work.arena(source), work.arena(output)
    if source in creator.types:
        if read != written:
            whole = work.dnnl.bytes_of(creator.size(source))
            work.move(whole, read, whole, written, source)
        return
    before, after = creator.shapes[source], creator.shapes[output]
    flat_before, flat_after = creator.same(source, NCHW), creator.same(output, NCHW)
    if flat_before and flat_after:
        if read != written:  # one of them lies at the model's border
            count = (math.prod(before),)
            work.move(plain(count), read, plain(count), written, source)
    elif flat_before:
        work.move(plain(after), read, work.actual(output), written, output)
    elif flat_after:
        work.move(work.actual(source), read, plain(before), written, source)
    else:
        place = work.temporary(4 * math.prod(before))
        work.move(work.actual(source), read, plain(before), place, source)
        work.move(plain(after), place, work.actual(output), written, output)


def _transpose(work: _Work, step: Step, _variant: Variant) -> None:
    source, output = step.inputs[0], step.outputs[0]
    permutation = step.sizes("permutation")
    inverse = [permutation.index(axis) for axis in range(len(permutation))]
    read = work.dnnl.permuted(work.actual(source), inverse)
    work.move(read, work.arena(source), work.actual(output), work.arena(output), source)


def _split(work: _Work, step: Step, variant: Variant) -> None:
    """Each part is copied out of the whole, which is converted first where blocks would be cut."""
    source, axis = step.inputs[0], step.integer("axis")
    whole, place = work.actual(source), work.arena(source)
    if not work.creator.same(source, variant.source):
        converted = work.creator.describer.activation(source, variant.source)
        place = work.temporary(work.dnnl.size(converted.value))
        work.move(whole, work.arena(source), converted, place, source)
        whole = converted
    start = step.integer("start") if "start" in step.settings else 0
    for output in step.outputs:
        shape = work.creator.shapes[output]
        offsets = [0] * len(shape)
        offsets[axis] = start
        part = work.dnnl.submemory(whole, shape, offsets)
        work.move(part, place, work.actual(output), work.arena(output), output)
        start += shape[axis]


def _compiled(work: _Work, step: Step, _variant: Variant) -> None:
    """A kernel on operands in one order, what is not converted around it: activations and weights, tables, what it writes."""
    creator, inputs, block = work.creator, list(step.inputs), step.sizes("block")
    places, order = [], work.order_of(step)
    for place in range(len(inputs) + len(step.weights)):
        weight = step.weights.get(f"operand_{place}")
        places.append(work.weight(creator.size(weight)) if weight is not None else work.laid(inputs.pop(0), order))
    for _ in range(block[AT_OPERANDS] - len(places) - len(step.outputs)):  # `axis_matrices.tables` makes them
        places.append(work.weight(span_bytes(block, len(places))))
    work.kernel(step.text("kernel"), block, places, step.outputs, order)


def _line(work: _Work, step: Step, _variant: Variant) -> None:
    """From bytes to bytes, of images in the order that any of them has."""
    creator, form, (output,) = work.creator, step.text("form"), step.outputs
    images = [name for name in (*step.inputs, output) if len(creator.shapes[name]) == len(_CHANNELS_LAST)]
    last = any(creator.layouts[name] == NHWC for name in images)
    order = NHWC if last else NCHW

    def shape_of(name: str) -> Shape:
        shape = creator.shapes[name]
        return tuple(shape[axis] for axis in _CHANNELS_LAST) if last and name in images else shape

    shapes, out = [shape_of(name) for name in step.inputs], shape_of(output)
    places = [work.laid(name, order) for name in step.inputs]
    if form == "table":
        count = math.prod(out)
        block = blocks.looked_up(count, "uint8", "uint8")
        places.append(work.weight(constants.BYTE_VALUES))
    elif form == "mean":
        size, after = step.integer("size"), out[-1] if last else step.integer("after")
        block = blocks.averaged(math.prod(out) // after, size, after, constants.NUMBERS)
        places += [work.weight(_FLOAT_BYTES * constants.NUMBERS), work.temporary(_INTEGER_BYTES * after)]
    elif form == "concat":
        axis = step.integer("axis")
        axis, numbers = _CHANNELS_LAST.index(axis) if last else axis, constants.NUMBERS * len(places)
        block = blocks.byte_runs([*shapes, out], axis, numbers)
        places.append(work.weight(_FLOAT_BYTES * numbers))
    else:
        block = blocks.paired(out, shapes, constants.NUMBERS)
        places.append(work.weight(_FLOAT_BYTES * constants.NUMBERS))
    work.kernel(f"bytes_{form}_uint8", block, places, step.outputs, order)


def _rows(work: _Work, step: Step, _variant: Variant) -> None:
    """Rows copied out of an image (`cut_rows`) or to their place in one (`paste_rows`).

    The descriptor is that of the first rows, whichever they are: where they begin is part of the place, so that copies of as
    many rows share a primitive.
    """
    source, output = step.inputs[0], step.outputs[0]
    cut = step.kind == "cut_rows"
    whole, part = (source, output) if cut else (output, source)
    creator = work.creator
    view = work.dnnl.submemory(work.actual(whole), creator.shapes[part], (0,) * len(creator.shapes[part]))
    _, channels, _, width = creator.shapes[whole]
    side_by_side = {NCHW: 1, NHWC: channels, BLOCKED: work.dnnl.info.block}[creator.layouts[whole]]
    place = work.arena(whole)
    place = Place(place.region, place.offset + step.integer("start") * _FLOAT_BYTES * width * side_by_side)
    if cut:
        work.move(view, place, work.actual(output), work.arena(output), source)
    else:
        work.move(work.actual(source), work.arena(source), view, place, source)


def _from_file(work: _Work, step: Step, _variant: Variant) -> None:
    """Rows of a table that are read from the file; see `runtime.streaming.build`."""
    (indices,), (output,), creator = step.inputs, step.outputs, work.creator
    block = (step.integer("at"), step.integer("rows"), step.integer("row_bytes"), math.prod(creator.shapes[indices]))
    work.calls.append(KernelCall(ROWS_KERNEL + creator.types[indices], block, (work.arena(indices), work.arena(output))))


def _constant(work: _Work, step: Step, _variant: Variant) -> None:
    """A weight copied to where the caller finds it, whatever its elements are."""
    (output,) = step.outputs
    size = work.creator.size(output)
    whole = work.dnnl.bytes_of(size)
    work.move(whole, work.weight(size), whole, work.arena(output), output)


def _keep(work: _Work, step: Step, _variant: Variant) -> None:
    """Weights of several steps copied to where they stay while these run."""
    plain = work.creator.describer.plain((step.integer("size"),))
    size = work.dnnl.size(plain.value)
    work.slots.append(WeightSlot(0, size, plain.value, plain))
    work.weight_bytes = size
    work.move(plain, Place("weights", 0), plain, work.arena(step.outputs[0]), "")


_MOVES: dict[str, Callable[[_Work, Step, Variant], None]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "split": _split,
    "compiled": _compiled,
    INT8_LINE: _line,
    "cut_rows": _rows,
    "paste_rows": _rows,
    "constant": _constant,
    "keep": _keep,
    "rows": _from_file,
}
MOVING_KINDS = frozenset(_MOVES)
