"""What an ONNX node means beyond its operator's name: by the opset, by which operand is a constant, by values in other files.

The graph keeps none of the three. A node is brought to a form that means the same without them, or refused by name: otherwise
what is computed of the graph would be wrong in silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import onnx
from onnx import TensorProto, numpy_helper

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Tensor

#: From this opset on Softmax runs over one axis; before, over that axis and all behind it together.
_SOFTMAX_OF_ONE_AXIS = 13
#: Operators whose first operand is the activation: the graph keeps activations and weights apart, and not which came first.
_WEIGHTED = frozenset({"Conv", "Gemm", "MatMul", "BatchNormalization", "LSTM"})
#: Inputs whose values decide what an operator does: those that the graph keeps as attributes, and what must be zero of an LSTM.
_VALUE_INPUTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("Reshape", "Split", "ReduceMean", "Squeeze", "Unsqueeze"), (1,)),
        "Clip": (1, 2),
        "Dropout": (2,),
        "Resize": (2, 3),
        "LSTM": (5, 6),
    }
)
_LARGEST_VALUES_BYTES = 1 << 24  # an LSTM's states; nothing that decides a shape is nearly as large
_FOLD = "fold constants (onnxruntime: SessionOptions.optimized_model_filepath at the level ORT_ENABLE_BASIC)"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a model while its nodes are read.

    Attributes:
        source: where it comes from, for messages.
        opset: of ONNX's own operators.
        constants: initialisers and values of `Constant` nodes.
        tensors: shapes of all tensors.
        alias: tensors that an operator passes on unchanged -> what they are.
    """

    source: str
    opset: int
    constants: Mapping[str, TensorProto]
    tensors: Mapping[str, Tensor]
    alias: Mapping[str, str]

    def constant(self, node: onnx.NodeProto, place: int) -> TensorProto | None:
        """The constant that a node reads at a place, None if there is none."""
        name = node.input[place] if place < len(node.input) else ""
        return self.constants.get(self.alias.get(name, name))

    def refuse(self, node: onnx.NodeProto, what: str, next_step: str) -> NoReturn:
        """Raise the error that names a node."""
        where = f"{self.source}, node {node.name or next(iter(node.output), '')!r}"
        raise ModelError(f"{node.op_type} {what}", where=where, next_step=next_step)


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators; the newest where a model names none."""
    versions = [int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")]
    return min(versions, default=onnx.defs.onnx_opset_version())


def meant(node: onnx.NodeProto, known: Known) -> onnx.NodeProto:
    """A node that means the same whatever the opset, and in which activations come before weights.

    Raises:
        ModelError: there is none.
    """
    given = [name for name in node.input if name]
    if given and all(known.alias.get(name, name) in known.constants for name in given):
        known.refuse(node, "of constants alone", _FOLD)
    if node.op_type in _WEIGHTED and known.constant(node, 0) is not None:
        known.refuse(
            node, "whose first operand is a constant: only an activation times a weight is known",
            "exchange the operands (transpose both), or fold constants",
        )  # fmt: skip
    if node.op_type == "Clip":
        for place, bound in enumerate(("min", "max"), start=1):
            constant = known.constant(node, place)
            if constant is not None and math.prod(constant.dims) != 1:
                known.refuse(node, f"whose {bound} is {math.prod(constant.dims)} numbers", "give it one number for each bound")
    if node.op_type == "Softmax" and known.opset < _SOFTMAX_OF_ONE_AXIS:
        return _softmax(node, known)
    return node


def require_inference(node: onnx.NodeProto, known: Known) -> None:
    """A node that is passed over, as it changes nothing at inference, must not be one of training.

    Raises:
        ModelError: it drops elements.
    """
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:  # noqa: PLR2004  data, ratio, training_mode
        training = known.constant(node, 2)
        if training is None or training.data_location == TensorProto.EXTERNAL or numpy_helper.to_array(training).any():
            known.refuse(node, "in training mode", "export the model for inference")


def _softmax(node: onnx.NodeProto, known: Known) -> onnx.NodeProto:
    """Over all axes from `axis` on together; that is one axis where the others have size 1."""
    tensor = known.tensors.get(known.alias.get(node.input[0], node.input[0]))
    if tensor is None or any(size < 1 for size in tensor.shape):
        return node  # refused for its shape
    rank = len(tensor.shape)
    axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1)
    if not -rank <= axis < rank:
        known.refuse(node, f"over axis {axis} of {rank}", "export with opset 13 or later")
    axis %= rank
    together = [i for i in range(axis, rank) if tensor.shape[i] > 1] or [axis]
    if len(together) > 1:
        known.refuse(
            node,
            f"of opset {known.opset} over the axes {together} together",
            f"export with opset 13 or later, or convert the model (onnx.version_converter) and {_FOLD}",
        )
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    del plain.attribute[:]
    plain.attribute.append(onnx.helper.make_attribute("axis", together[0]))
    return plain


def embed_values(model: onnx.ModelProto, folder: Path, source: str) -> None:
    """Bring constants that decide what operators do into the model where they are stored in other files; weights stay there.

    Args:
        model: the model as read from its file; it is changed.
        folder: of that file, which the others are named from.
        source: the file, for messages.

    Raises:
        ModelError: such a constant cannot be read, or would be read from outside the folder.
    """
    stored = dict(_stored(model.graph))
    if not any(t.data_location == TensorProto.EXTERNAL for t in stored.values()):
        return
    alias = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "Identity" and n.input and n.output}
    for node in model.graph.node:
        for place in _VALUE_INPUTS.get(node.op_type, ()):
            name = node.input[place] if place < len(node.input) else ""
            while name not in stored and name in alias:
                name = alias.pop(name)  # a circle of aliases ends
            tensor = stored.get(name)
            if tensor is not None and tensor.data_location == TensorProto.EXTERNAL:
                where = f"{source}, node {node.name or next(iter(node.output), '')!r}"
                _embed(tensor, name, folder, where)


def _stored(graph: onnx.GraphProto) -> Iterator[tuple[str, TensorProto]]:
    yield from ((i.name, i) for i in graph.initializer)
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            yield from ((node.output[0], a.t) for a in node.attribute if a.name == "value")


def _embed(tensor: TensorProto, name: str, folder: Path, where: str) -> None:
    beside = "keep the external data beside the model, under a relative path"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        path = _inside(folder, entries.get("location", ""))
        size = math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(size)))
        data = _bytes(path, offset, length, size)
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise ModelError(f"cannot read constant {name!r}: {error}", where=where, next_step=beside) from error
    tensor.raw_data = data
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _inside(folder: Path, location: str) -> Path:
    """A file that a model names: it must lie in the model's folder, as those do that the runtime reads weights from."""
    path = (folder / location).resolve()
    if Path(location).is_absolute() or not path.is_relative_to(folder.resolve()):
        raise ValueError(f"{location!r} is outside the model's folder")
    if not path.is_file():
        raise ValueError(f"there is no file {location!r} beside the model")
    return path


def _bytes(path: Path, offset: int, length: int, size: int) -> bytes:
    if not 0 <= size <= _LARGEST_VALUES_BYTES or length != size or offset < 0:
        raise ValueError(f"its shape needs {size} bytes, the model names {length} from byte {offset} on")
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) != size:
        raise ValueError(f"{path.name} ends before byte {offset + size}")
    return data
