"""ONNX operators of which the graph knows one form only: other forms are brought to it, or refused by name.

Without this, inputs that the graph does not keep apart (an LSTM's initial states, a Resize's region, which operand of a product
is the weight) would be lost in silence.
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
_LSTM_OUTPUTS = ("Y", "Y_h", "Y_c")
_LSTM_ATTRIBUTES = frozenset({"hidden_size", "direction"})
_LSTM_DIRECTIONS = (b"forward", b"reverse", b"bidirectional")
_RESIZE_REGION, _RESIZE_SCALES, _RESIZE_SIZES = 1, 2, 3
_OPSET_10_RESIZE_INPUTS = 2  # the second are the scales
_COORDINATES = b"half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_half_pixel_for_nn"
_RESIZE_WORDS: Mapping[str, list[bytes]] = MappingProxyType(
    {
        "mode": [b"nearest", b"linear", b"cubic"],
        "nearest_mode": [b"round_prefer_floor", b"round_prefer_ceil", b"floor", b"ceil"],
        "coordinate_transformation_mode": _COORDINATES.split(),
    }
)
_PADDINGS = (b"NOTSET", b"VALID", b"SAME_UPPER", b"SAME_LOWER")
_LARGEST_WINDOW = (1 << 31) - 1  # products of two such numbers still have 64 bits
_FOLD = "fold constants, or export with fixed weights"
_WEIGHT_INPUTS = MappingProxyType({"Conv": ("W", "B"), "BatchNormalization": ("scale", "B", "mean", "variance")})


def _refuse(node: onnx.NodeProto, source: str, what: str, next_step: str) -> NoReturn:
    raise ModelError(f"{node.op_type} {what}", where=f"{source}, node {node.name!r}", next_step=next_step)


def _input(node: onnx.NodeProto, place: int) -> str:
    return str(node.input[place]) if place < len(node.input) else ""


def _word(value: bytes) -> str:
    return repr(value.decode(errors="replace"))


def _is_zero(name: str, constants: Mapping[str, TensorProto]) -> bool:
    constant = constants.get(name)
    if constant is None or constant.data_location == TensorProto.EXTERNAL:
        return False
    return not numpy_helper.to_array(constant).any()


def _lstm(node: onnx.NodeProto, constants: Mapping[str, TensorProto], read: AbstractSet[str], source: str) -> onnx.NodeProto:
    """X, W, R and B in; Y out, and all last states where something reads one of them."""
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
    if attributes.get("direction", b"forward") not in _LSTM_DIRECTIONS:
        _refuse(node, source, f"of the unknown direction {_word(attributes['direction'])}", simplify)
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    del plain.input[_KEPT_LSTM_INPUTS:], plain.attribute[:]
    plain.attribute.extend(a for a in node.attribute if a.name in _LSTM_ATTRIBUTES)
    states = not read.isdisjoint(filter(None, node.output[1:]))
    given = [*node.output, "", "", ""]
    del plain.output[:]
    plain.output.extend(
        name or f"{node.name}:{role}" for name, role in zip(given, _LSTM_OUTPUTS[: 3 if states else 1], strict=False)
    )
    return plain


def _resize(node: onnx.NodeProto, constants: Mapping[str, TensorProto], read: AbstractSet[str], source: str) -> onnx.NodeProto:  # noqa: ARG001  one signature for all forms
    """X and constant scales or sizes; the region of `tf_crop_and_resize` is not known."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if len(node.input) == _OPSET_10_RESIZE_INPUTS and _input(node, 1) in constants:
        return node
    if attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize" or "axes" in attributes:
        _refuse(node, source, "of a region or of chosen axes", "export it with scales for every axis of the whole tensor")
    for key, known in _RESIZE_WORDS.items():
        if attributes.get(key, known[0]) not in known:
            listed = ", ".join(word.decode() for word in known)
            _refuse(node, source, f"of the unknown {key} {_word(attributes[key])}", f"correct the node: known are {listed}")
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


def _weighted(node: onnx.NodeProto, constants: Mapping[str, TensorProto], _: AbstractSet[str], source: str) -> onnx.NodeProto:
    """What is multiplied is an activation, weights are initialisers: which of several inputs is which is not kept."""
    if _input(node, 0) in constants:
        _refuse(node, source, "of a constant", "fold constants, or exchange the operands of a product")
    for place, role in enumerate(_WEIGHT_INPUTS.get(node.op_type, ()), start=1):
        name = _input(node, place)
        if role and name and name not in constants:
            _refuse(node, source, f"whose {role} is no initialiser", _FOLD)
    return node


def _norm(node: onnx.NodeProto, constants: Mapping[str, TensorProto], read: AbstractSet[str], source: str) -> onnx.NodeProto:
    attributes = {a.name: a.i for a in node.attribute}
    if attributes.get("training_mode", 0) or len(list(filter(None, node.output))) > 1:
        _refuse(node, source, "in training mode", "export the model for inference")
    if not attributes.get("spatial", 1):
        _refuse(node, source, "of each pixel for itself", "export with opset 13 or later")
    return _weighted(node, constants, read, source)


def _dropout(node: onnx.NodeProto, constants: Mapping[str, TensorProto], _: AbstractSet[str], source: str) -> onnx.NodeProto:
    training = _input(node, 2)
    if training and not _is_zero(training, constants):
        _refuse(node, source, "in training mode", "export the model for inference")
    return node


def _split(node: onnx.NodeProto, _: Mapping[str, TensorProto], __: AbstractSet[str], ___: str) -> onnx.NodeProto:
    """Every part has a name: without one it would be lost which of them the others are."""
    for place, name in enumerate(node.output):
        node.output[place] = name or f"{node.name}:part_{place}"
    return node


def _window(node: onnx.NodeProto, constants: Mapping[str, TensorProto], read: AbstractSet[str], source: str) -> onnx.NodeProto:
    """Windows of sizes that can be computed with, and padded in one way."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    least = {"kernel_shape": 1, "strides": 1, "dilations": 1, "group": 1, "pads": 0}
    for key, lowest in least.items():
        value = attributes.get(key, lowest)
        if not all(lowest <= number <= _LARGEST_WINDOW for number in (value if isinstance(value, list) else [value])):
            _refuse(node, source, f"with the impossible {key} {value}", "correct the node, or export the model again")
    padding, pads = attributes.get("auto_pad", b"NOTSET"), attributes.get("pads", [])
    if padding not in _PADDINGS or (padding != b"NOTSET" and any(pads)):
        _refuse(node, source, f"padded by auto_pad {_word(padding)} and pads {pads}", "export it with pads alone")
    plain = _weighted(node, constants, read, source)
    if padding != b"NOTSET" and pads:  # ONNX's inference would take the zeros, engines take the mode
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        del plain.attribute[:]
        plain.attribute.extend(a for a in node.attribute if a.name != "pads")
    return plain


#: By operator type: the node as the graph knows it, from the node, the constants by name, the tensors that anything reads, and
#: where the model comes from; raises ModelError for a form that the graph cannot express.
FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "LSTM": _lstm,
        "Resize": _resize,
        "Conv": _window,
        "MaxPool": _window,
        "AveragePool": _window,
        "BatchNormalization": _norm,
        "Dropout": _dropout,
        "Split": _split,
    }
)
