"""Preparation turns an exporter's file into a model of static shape without shape arithmetic.

Symbolic axes get sizes, inputs that steer the graph get values, half precision becomes single, and what follows from
constants is computed once (by onnxscript). Models that can be read as they are stay untouched.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeplan.errors import ModelError, ParamsError
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import messages_of, outside, read_message
from edgeplan.graph.onnx import rewriting
from edgeplan.graph.onnx.constants import (
    as_files_say,
    leave_outside,
    read_when_needed,
    require_in_range,
    save,
)
from edgeplan.graph.onnx.contents import reads_constants_alone
from edgeplan.graph.onnx.functions import is_composed, plain_functions
from edgeplan.graph.onnx.quantised import is_quantised, plain_constants, plain_operators
from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.onnx.stored import has_odd_output, is_half, narrow_to_halves, store_constants_as_bytes, widen
from edgeplan.support.lazy import lazily

# They take a second to import, and most models need none of them.
onnx_ir, common, optimizer = lazily("onnx_ir"), lazily("onnx_ir.passes.common"), lazily("onnxscript.optimizer")

Shapes = Mapping[str, Sequence[int]]
_Texts = Iterable[str] | None

log = logging.getLogger(__name__)
#: Operators that disappear once shapes are known.
ARITHMETIC = frozenset({"Shape", "Size", "ConstantOfShape", "Range", "NonZero", "If", "Cast", "Equal", "Where", "Floor"})
#: Results of constant arithmetic above this size stay operators: a file of a few bytes may ask for any amount of memory.
_LARGEST_FOLDED_ELEMENTS = 1 << 27
_LARGEST_INPUT_BYTES = 1 << 32
_ROUNDS = 4
_SETTING = re.compile(r"(?P<name>.+?)=(?P<value>.*)", re.DOTALL)
#: What exporters call the axis of examples, wherever it stands.
_BATCH = re.compile(r"N|bs|batch(_?size)?", re.IGNORECASE)
#: What a first axis is called that is one of examples: a batch of some kind, or nothing (TensorFlow's unk__12, PyTorch's s0).
_FIRST_BATCH = re.compile(
    r"B|(num_)?batch(es)?([_.]?(size|dim|axis|\d+))*"
    r"|\??|-1|None|unk(nown)?(__)?\d*|(.*_)?dynamic_axes_\d+|s\d+|(.*\.)?DynamicDimension\.\d+",
    re.IGNORECASE,
)
_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8})
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


@dataclass(frozen=True)
class Preparation:
    """What a model's file leaves open: shapes of inputs, and values, as text, of those that steer it, which are inputs no more.

    The batch is the size of the open axis of examples, which one of the inputs has to have. ModelError for a size below 1.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise ModelError(f"a batch of {self.batch}", where="--batch", next_step="give a positive number")
        for name, sizes in self.shapes.items():
            if any(size < 1 for size in sizes):
                raise _no_shape(name, ",".join(map(str, sizes)))

    def __bool__(self) -> bool:
        return bool(self.shapes or self.values or self.batch)

    @staticmethod
    def parsed(shapes: _Texts = None, values: _Texts = None, batch: int | None = None) -> Preparation:
        """By texts of the command line, `input=1,3,224,224` and `sr=16000`; ModelError for others, or an input named twice."""
        sizes = {name: _sizes(name, text) for name, text in _named(shapes or (), "--shape", "input=1,3,224,224")}
        return Preparation(MappingProxyType(sizes), MappingProxyType(dict(_named(values or (), "--set", "sr=16000"))), batch)

    @staticmethod
    def given(
        preparation: Preparation | None = None,
        shape: Shapes | None = None,
        set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
        batch: int | None = None,
    ) -> Preparation:
        """Collect what functions are given (`OpenParts`); ParamsError where it is given twice, or a shape holds no sizes."""
        if preparation is None:
            try:
                sizes = {name: tuple(map(int, given)) for name, given in (shape or {}).items()}
            except (TypeError, ValueError) as error:
                how = "give sizes by input, as in {'x': (1, 3, 224, 224)}"
                raise ParamsError(f"{shape!r} holds no sizes", where="shape", next_step=how) from error
            return Preparation(sizes, {name: _text(value) for name, value in (set or {}).items()}, batch)
        if shape or set or batch is not None:
            what = "shapes, values and the batch are given twice"
            raise ParamsError(what, where="preparation", next_step="leave out preparation, or shape, set and batch")
        return preparation


class OpenParts(TypedDict, total=False):
    """What functions are given of a model that its file leaves open: a whole preparation, or in its place the other three.

    Attributes:
        preparation: one that may serve several calls.
        shape: sizes of inputs with open axes, by name.
        set: values of inputs that steer the graph, by name: numbers, truth values, or sequences of them.
        batch: size of the open axis of examples.
    """

    preparation: Preparation | None
    shape: Shapes | None
    set: Mapping[str, Any] | None
    batch: int | None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    plain = np.asarray(value).tolist()
    return ",".join(map(str, plain)) if isinstance(plain, list) else str(plain)


def _named(texts: Iterable[str], option: str, example: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for text in texts:
        found = _SETTING.fullmatch(text)
        if found is None:
            what = f"{text!r} names no input and what it is"
            raise ModelError(what, where=option, next_step=f"for example {option} {example}")
        if found["name"] in seen:
            raise ModelError(f"the input {found['name']!r} is given twice", where=option, next_step="leave one of them out")
        seen.add(found["name"])
        yield found["name"], found["value"]


def _sizes(name: str, text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in text.split(",")) if text.strip() else ()
    except ValueError:
        sizes = (0,)
    if any(size < 1 for size in sizes):
        raise _no_shape(name, text)
    return sizes


def _no_shape(name: str, text: str) -> ModelError:
    what, next_step = f"{text!r} is no shape for the input {name!r}", "give positive sizes, as in 1,3,224,224"
    return ModelError(what, where="--shape", next_step=next_step)


def needs_preparation(model: onnx.ModelProto) -> bool:
    """Tell whether a file leaves shapes open, or holds arithmetic on shapes, subgraphs, functions or half precision."""
    open_shapes = any(dim.dim_value <= 0 for value in _given(model).values() for dim in value.type.tensor_type.shape.dim)
    told = (is_half, has_odd_output, reads_constants_alone, _is_written_anew, is_composed)
    arithmetic = any(node.op_type in ARITHMETIC for node in model.graph.node)
    return open_shapes or bool(model.functions) or arithmetic or any(tells(model) for tells in told)


def _is_written_anew(model: onnx.ModelProto) -> bool:
    return is_quantised(model) or any(node.op_type in ("Einsum", "Scaler") for node in model.graph.node)


def prepared_model(model: onnx.ModelProto, wanted: Preparation, source: str, path: Path | None = None) -> onnx.ModelProto:
    """Return a model of static shape that computes the same; the one that was exported is changed.

    Large constants of other files stay where they are (`constants`): `save` writes such a model.

    Raises:
        ModelError: an axis stays open, what is wanted does not fit the file (a batch that is fixed), or the model cannot be
            simplified.
    """
    leave_outside(model, path)
    model = _inlined(model, source)
    for tensor in messages_of(model, TensorProto):
        require_in_range(tensor, tensor.name, source)
    if types := widen(model):
        log.info("%s numbers are taken as float32: predictions and plans are of single precision", types)
    # old files list stored tensors among the inputs, too, which could be given anew: here they are constants
    given = list(_given(model).values())
    del model.graph.input[:]
    model.graph.input.extend(given)
    _give_values(model, wanted.values, source)
    _give_sizes(model, wanted, source)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")  # said in symbols: inferred again
    del model.graph.value_info[:]
    plain_operators(model, source)
    found = _folded(model, source)
    if branches := rewriting.plain_branches(found, source):
        log.info("both branches of %d nodes If are computed, since which one is taken depends on data", branches)
    found = _written_out(found, source)
    if _is_written_anew(found):
        known = rewriting.known_tensors(found, source)
        rewriting.plain_scalers(found, source)
        plain_operators(found, source)
        plain_constants(found, known, source)
        rewriting.plain_products(found, known, source)
        found = _folded(found, source)
    if all(node.op_type == "Constant" for node in found.graph.node):
        what = "the model computes nothing: its outputs follow from constants alone"
        raise ModelError(what, where=source, next_step="export the model again, its inputs left open")
    del found.graph.value_info[:]
    store_constants_as_bytes(found)
    if types:
        narrow_to_halves(found)
    return found


def _written_out(model: onnx.ModelProto, source: str) -> onnx.ModelProto:
    if not is_composed(model):
        return model
    plain_functions(model, source)
    found = _folded(model, source)
    return _folded(found, source) if rewriting.drop_idle(found, source) else found


def _folded(model: onnx.ModelProto, source: str) -> onnx.ModelProto:
    found = _folded_once(model, source)
    while rewriting.fold_choices(found, source):  # what follows from one may be sorted again
        found = _folded_once(found, source)
    return found


def _folded_once(model: onnx.ModelProto, source: str) -> onnx.ModelProto:
    def fold(simple: Any) -> None:
        common.InlinePass()(simple)
        common.TopologicalSortPass()(simple)
        read_when_needed(simple)
        for _ in range(_ROUNDS):
            # Folding alone: the rewriting of `optimizer.optimize` takes a summand of 1e-10 for zero.
            folded = optimizer.fold_constants_ir(
                simple,
                onnx_shape_inference=True,
                input_size_limit=_LARGEST_FOLDED_ELEMENTS,
                output_size_limit=_LARGEST_FOLDED_ELEMENTS,
                should_fold=lambda node: node.op_type == "ConstantOfShape" or None,  # it leaves these alone unless told
            )
            if not folded.modified:
                break
        for clean in (
            common.RemoveUnusedNodesPass(),
            common.RemoveUnusedFunctionsPass(),
            common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            common.LiftSubgraphInitializersToMainGraphPass(),
            common.DeduplicateInitializersPass(),
            common.OutputFixPass(),
            common.NameFixPass(),
        ):
            clean(simple)

    return _by_library(model, fold, source)


def _inlined(model: onnx.ModelProto, source: str) -> onnx.ModelProto:
    def inline(simple: Any) -> None:
        common.InlinePass()(simple)
        common.RemoveUnusedFunctionsPass()(simple)

    return _by_library(model, inline, source) if model.functions else model


def _by_library(model: onnx.ModelProto, change: Callable[[Any], None], source: str) -> onnx.ModelProto:
    for name in ("onnx_ir", "onnxscript"):  # their warnings are of initialisers and of what is folded, not of what users do
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        simple = onnx_ir.serde.deserialize_model(model)
        change(simple)
        return onnx_ir.serde.serialize_model(simple)
    except Exception as error:  # a library over untrusted graphs: whatever it meets is the model's fault
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ModelError):  # a constant cannot be read
                raise cause from error
            cause = cause.__cause__
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = f"the model cannot be simplified: {reason}"
        raise ModelError(what, where=source, next_step="export it again with static shapes") from error


def prepare_file(path: Path, wanted: Preparation, target: Path) -> Path:
    """Return the file of a model that can be read: its own, or `target` if it had to be prepared.

    Raises:
        ModelError: as `prepared_model`, or the model cannot be read.
        StoreError: the prepared model cannot be written.
    """
    model = read_message(path)
    if not wanted and not needs_preparation(model):
        return path
    return save(prepared_model(model, wanted, str(path), path), target)


def in_single_precision(path: Path, target: Path) -> Path:
    """Return the file of a model that ONNX Runtime computes in single precision: its own, or `target` if it holds halves.

    It is `target`, too, if nodes hold external data, of which ONNX Runtime refuses hard links.
    """
    model = read_message(path)
    if not is_half(model) and not any(True for node in messages_of(model, onnx.NodeProto) for _ in outside(node)):
        return path
    leave_outside(model, path)
    model = _inlined(model, str(path))
    widen(model)
    return save(model, target)


def load_prepared(path: Path, wanted: Preparation) -> Graph:
    """Return the graph of a model, prepared if it cannot be read as it is."""
    model = read_message(path)
    if not wanted and not needs_preparation(model):
        return from_onnx(model, str(path), path)
    found = prepared_model(model, wanted, str(path), path)
    as_files_say(found)
    return from_onnx(found, str(path), path)


def _given(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return {value.name: value for value in model.graph.input if value.name not in constants}


def _require_input(name: str, inputs: Mapping[str, object], option: str, source: str) -> None:
    if name not in inputs:
        listed = ", ".join(repr(known) for known in inputs) or "none"
        raise ModelError(f"the model has no input {name!r}", where=f"{option}, {source}", next_step=f"its inputs are {listed}")


def given_values(model: onnx.ModelProto, values: Mapping[str, str], source: str) -> dict[str, npt.NDArray[Any]]:
    """Return the values of inputs that steer the graph, by name; ModelError where a text is none of an input."""
    inputs = _given(model)
    for name in values:
        _require_input(name, inputs, "--set", source)
    return {name: _value(inputs[name], text, source) for name, text in values.items()}


def give_inputs(model: onnx.ModelProto, wanted: Preparation, source: str) -> dict[str, npt.NDArray[Any]]:
    """Give every axis of every input a size, and return the values of inputs that steer the graph; all stay inputs."""
    values, inputs = given_values(model, wanted.values, source), _given(model)
    for name, value in values.items():
        shape = onnx.TensorShapeProto(dim=[onnx.TensorShapeProto.Dimension(dim_value=size) for size in value.shape])
        inputs[name].type.tensor_type.shape.CopyFrom(shape)
    _give_sizes(model, wanted, source)
    return values


def _give_values(model: onnx.ModelProto, values: Mapping[str, str], source: str) -> None:
    inputs = _given(model)
    for name, value in given_values(model, values, source).items():
        model.graph.input.remove(inputs[name])
        model.graph.initializer.append(numpy_helper.from_array(value, name))


_TRUTH = {"true": True, "false": False, "1": True, "0": False}
#: How a text of each element type is read.
_READERS: Mapping[int, Callable[[str], Any]] = MappingProxyType(
    {
        TensorProto.BOOL: lambda text: _TRUTH[text.strip().lower()],
        **dict.fromkeys(_INTEGERS, int),
        **dict.fromkeys(_FLOATS, float),
    }
)


def _value(value: onnx.ValueInfoProto, text: str, source: str) -> npt.NDArray[Any]:
    kind, where = value.type.tensor_type.elem_type, f"--set {value.name}, {source}"
    kind_name = TensorProto.DataType.Name(kind).lower()
    if (read := _READERS.get(kind)) is None:
        what = f"input {value.name!r} is of {kind_name}, which no text is a value of"
        raise ModelError(what, where=where, next_step="export the model with that value fixed")
    try:
        array = np.array([read(part) for part in text.split(",")], helper.tensor_dtype_to_np_dtype(kind))
    except (ValueError, KeyError, OverflowError) as error:
        next_step = f"give numbers of {kind_name}, as in 1,2"
        raise ModelError(f"{text!r} is no {kind_name}", where=where, next_step=next_step) from error
    sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    if not sizes and array.size == 1:
        return array.reshape(())
    if len(sizes) == 1 and sizes[0] in (0, array.size):
        return array
    if sizes and all(sizes) and array.size in (1, math.prod(sizes)) and math.prod(sizes) <= _LARGEST_FOLDED_ELEMENTS:
        return np.broadcast_to(array if array.size == 1 else array.reshape(sizes), sizes).copy()
    what = f"{array.size} numbers for an input of shape {tuple(d or '?' for d in sizes)}"
    raise ModelError(what, where=where, next_step="give one, or as many")


def _give_sizes(model: onnx.ModelProto, wanted: Preparation, source: str) -> None:
    """Give every axis of every input a size; one symbol has one size wherever it stands."""
    inputs = _given(model)
    for name in wanted.shapes:
        _require_input(name, inputs, "--shape", source)
    symbols = _sizes_of_symbols(inputs, wanted)
    if wanted.batch is not None:
        _require_batch(wanted.batch, inputs, wanted.shapes, source)
    batches = {axis: size for axis, size in _open_batches(inputs, wanted).items() if axis not in symbols}
    for name, value in inputs.items():
        _give_shape(name, value, wanted, batches | symbols, source)
    if found := sorted((batches | symbols).items()):
        taken = " (a batch: --batch)" if wanted.batch is None else ""
        log.info("open axes: %s", ", ".join(f"{axis!r} is {size}{taken if axis in batches else ''}" for axis, size in found))


def _sizes_of_symbols(inputs: Mapping[str, onnx.ValueInfoProto], wanted: Preparation) -> dict[str, int]:
    """Return the sizes of named axes that the wanted shapes imply."""
    symbols: dict[str, int] = {}
    for name, sizes in wanted.shapes.items():
        kind = inputs[name].type.tensor_type
        dims = kind.shape.dim
        fits = len(sizes) == len(dims) and all(d.dim_value <= 0 or d.dim_value == s for d, s in zip(dims, sizes, strict=True))
        if not fits and kind.HasField("shape"):
            has = ",".join(map(_size_text, dims))
            what = f"the input {name!r} is of shape {has}"
            raise ModelError(what, where="--shape", next_step="give its open axes sizes alone")
        for dim, size in zip(dims, sizes, strict=False):
            if dim.dim_value <= 0 and _named_axis(dim) and symbols.setdefault(dim.dim_param, size) != size:
                what = f"the axis {dim.dim_param!r} is given {symbols[dim.dim_param]} and {size}"
                raise ModelError(what, where=f"--shape {name}", next_step="one symbol has one size in all inputs")
    return symbols


def _require_batch(
    batch: int, inputs: Mapping[str, onnx.ValueInfoProto], shapes: Mapping[str, tuple[int, ...]], source: str
) -> None:
    """Refuse a batch that the file has fixed at another size, that no input is open to, or that a shape contradicts."""
    is_open, fixed = False, dict[str, int]()
    for name, value in inputs.items():
        dims = value.type.tensor_type.shape.dim or [onnx.TensorShapeProto.Dimension() for _ in shapes.get(name, ())]
        if not dims:
            continue
        if dims[0].dim_value > 0:
            fixed[name] = dims[0].dim_value
        axes = [axis for axis, dim in enumerate(dims) if _is_batch(axis, dim)]
        if not axes:
            continue
        is_open, axis = True, axes[-1]  # a first one without a name is none where another has one
        if (size := shapes[name][axis] if name in shapes else batch) != batch:
            raise ModelError(
                f"the batch of {name} is {size} by its shape and {batch} by --batch",
                where=f"--shape {name}={','.join(map(str, shapes[name]))}, --batch {batch}",
                next_step="leave one of the two out",
            )
    if not is_open and (not fixed or set(fixed.values()) != {batch}):
        other = next((name for name, size in fixed.items() if size != batch), "")
        what = f"the batch of {other} is fixed at {fixed[other]}" if other else "no input has a batch"
        next_step = "leave --batch out, or export the model with an open first axis or with that batch"
        raise ModelError(what, where=f"--batch {batch}, {source}", next_step=next_step)


def _open_batches(inputs: Mapping[str, onnx.ValueInfoProto], wanted: Preparation) -> dict[str, int]:
    """Axes of examples without a size: by name, or by input where they have none."""
    found: dict[str, int] = {}
    for name, value in inputs.items():
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if name not in wanted.shapes and _is_batch(axis, dim):
                found[dim.dim_param if _named_axis(dim) else f"{name}, axis 0"] = wanted.batch or 1
    return found


def _is_batch(axis: int, dim: onnx.TensorShapeProto.Dimension) -> bool:
    names = (_BATCH, _FIRST_BATCH) if axis == 0 else (_BATCH,)
    return dim.dim_value <= 0 and any(name.fullmatch(dim.dim_param) for name in names)


def _give_shape(name: str, value: onnx.ValueInfoProto, wanted: Preparation, symbols: Mapping[str, int], source: str) -> None:
    kind, sizes = value.type.tensor_type, wanted.shapes.get(name)
    if value.type.WhichOneof("value") != "tensor_type" or (not kind.HasField("shape") and sizes is None):
        raise ModelError(f"the input {name!r} has no rank", where=source, next_step=f"--shape {name}=1,3,224,224")
    if sizes is not None and not kind.HasField("shape"):
        kind.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in sizes)
    missing = []
    for axis, dim in enumerate(kind.shape.dim):
        if dim.dim_value > 0:
            continue
        known = symbols.get(dim.dim_param if _named_axis(dim) else f"{name}, axis {axis}")
        if (size := sizes[axis] if sizes is not None else known) is None:
            missing.append(_size_text(dim))
        else:
            dim.dim_value = size
    if missing:
        example = ",".join(map(_size_text, kind.shape.dim))
        what = f"the input {name!r} leaves {', '.join(dict.fromkeys(missing))} open"
        raise ModelError(what, where=source, next_step=f"give sizes: --shape {name}={example}, with numbers for the names")
    bytes_each = helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize if kind.elem_type else 4
    if math.prod(d.dim_value for d in kind.shape.dim) * bytes_each > _LARGEST_INPUT_BYTES:
        raise ModelError(f"the input {name!r} takes more than 4 GB", where=source, next_step="give it a smaller shape")


def _size_text(dim: onnx.TensorShapeProto.Dimension) -> str:
    return str(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or "?"


def _named_axis(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Tell whether an axis has a name that other inputs may share; exporters write "?" for none."""
    return dim.dim_param not in ("", "?")
