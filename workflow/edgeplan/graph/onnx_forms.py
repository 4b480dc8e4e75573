"""ONNX operators of which the graph knows one form only: other forms are brought to it, or refused by name.

Without this, inputs that the graph does not keep apart (an LSTM's initial states, a Resize's region) would be lost in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import NoReturn

import onnx
from onnx import TensorProto, numpy_helper

from edgeplan.errors import ModelError

Form = Callable[[onnx.NodeProto, Mapping[str, TensorProto], AbstractSet[str], str], onnx.NodeProto]

_LSTM_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_KEPT_LSTM_INPUTS = 4
_LSTM_ATTRIBUTES = frozenset({"hidden_size", "direction"})
_RESIZE_REGION, _RESIZE_SCALES, _RESIZE_SIZES = 1, 2, 3
_OPSET_10_RESIZE_INPUTS = 2


def _refuse(node: onnx.NodeProto, source: str, what: str, next_step: str) -> NoReturn:
    raise ModelError(f"{node.op_type} {what}", where=f"{source}, node {node.name or node.output[0]!r}", next_step=next_step)


def _input(node: onnx.NodeProto, place: int) -> str:
    return str(node.input[place]) if place < len(node.input) else ""


def _is_zero(name: str, constants: Mapping[str, TensorProto]) -> bool:
    constant = constants.get(name)
    if constant is None or constant.data_location == TensorProto.EXTERNAL:
        return False
    return not numpy_helper.to_array(constant).any()


def _lstm(node: onnx.NodeProto, constants: Mapping[str, TensorProto], read: AbstractSet[str], source: str) -> onnx.NodeProto:
    """X, W, R and B in; Y and, where something reads them, the last states out."""
    simplify = "export it with zero initial states, whole sequences and the default activations"
    for place, role in enumerate(_LSTM_INPUTS):
        name = _input(node, place)
        if role in ("W", "R", "B") and (name not in constants) and (name or role != "B"):
            _refuse(node, source, f"whose {role} is no initialiser", "fold constants, or export with fixed weights")
        if name and role in ("initial_h", "initial_c") and not _is_zero(name, constants):
            _refuse(node, source, f"with an {role} that is not known to be zero", simplify)
        if name and role in ("sequence_lens", "P"):
            _refuse(node, source, f"with the input {role}", simplify)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    directions = 2 if attributes.get("direction") == b"bidirectional" else 1
    defaults = {"layout": 0, "input_forget": 0, "activations": [b"Sigmoid", b"Tanh", b"Tanh"] * directions}
    for key, value in attributes.items():
        if key not in _LSTM_ATTRIBUTES and defaults.get(key) != value:
            _refuse(node, source, f"with the attribute {key}", simplify)
    if not node.output[0]:
        _refuse(node, source, "without its output Y", "export it with the sequence of its states")
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    del plain.input[_KEPT_LSTM_INPUTS:], plain.attribute[:]
    plain.attribute.extend(a for a in node.attribute if a.name in _LSTM_ATTRIBUTES)
    if read.isdisjoint(node.output[1:]):
        del plain.output[1:]
    return plain


def _resize(node: onnx.NodeProto, constants: Mapping[str, TensorProto], read: AbstractSet[str], source: str) -> onnx.NodeProto:  # noqa: ARG001  one signature for all forms
    """X and constant scales or sizes; the region of `tf_crop_and_resize` is not known."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if len(node.input) == _OPSET_10_RESIZE_INPUTS:
        _refuse(node, source, "in the form of opset 10", "export with opset 13 or later")
    if attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize" or "axes" in attributes:
        _refuse(node, source, "of a region or of chosen axes", "export it with scales for every axis of the whole tensor")
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    given = []
    for place in (_RESIZE_SCALES, _RESIZE_SIZES):
        name = _input(node, place)
        if name in constants and not any(constants[name].dims[:1]):  # exporters write an absent input as an empty tensor
            plain.input[place] = name = ""
        given += [name] if name else []
    if len(given) != 1 or given[0] not in constants:
        _refuse(node, source, "whose scales or sizes are no constant", "fix the input shape and fold constants")
    plain.input[_RESIZE_REGION] = ""
    return plain


#: By operator type: the node as the graph knows it, from the node, the constants by name, the tensors that anything reads, and
#: where the model comes from; raises ModelError for a form that the graph cannot express.
FORMS: Mapping[str, Form] = MappingProxyType({"LSTM": _lstm, "Resize": _resize})
