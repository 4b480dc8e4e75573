"""An ONNX file's contents are checked once before a graph is made of it: later code takes all of this for granted.

ONNX's own checker looks at single nodes; names, versions, stored constants and who writes what are looked at here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

import onnx
from onnx import TensorProto

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Tensor
from edgeplan.graph.kinds import KNOWN_ONNX_TYPES
from edgeplan.graph.onnx.constants import constant_tensor, element_type, held_value, is_known_type
from edgeplan.graph.operators.base import copied
from edgeplan.graph.shapes import NEXT_STEP, of_type
from edgeplan.support.topology import topological

#: Operators that pass their input on unchanged at inference.
TRANSPARENT = frozenset({"Identity", "Dropout"})
_AGAIN = "the file may be corrupt or truncated: copy or export it again"
_DEFAULT_DOMAINS = ("", "ai.onnx")
_SHOWN_BYTES = 40
_OUTSIDE = -1
#: What to do about operators that are known to have no place here, by their name as messages have it.
_RECIPES = MappingProxyType(
    {
        "If": "it depends on data: fix the input that it tests (edgeplan prepare --set input=value), or export one branch",
        **dict.fromkeys(
            ("Loop", "Scan"),
            "it repeats its body, maybe as often as data say: export a fixed number of steps, unrolled, or recurrent layers as "
            "LSTM, GRU or RNN",
        ),
        **{
            f"ai.onnx.ml::TreeEnsemble{what}": "decision trees are no layers: write them as products of matrices, "
            'hummingbird.ml.convert(model, "onnx", inputs, extra_config={"tree_implementation": "gemm"})'
            for what in ("", "Classifier", "Regressor")
        },
    }
)
_AS_QDQ = (
    "edgeplan prepare writes the operators of docs/operators.md as plain ones; for others quantise the model as QDQ: "
    "onnxruntime.quantization.quantize_static(..., quant_format=QuantFormat.QDQ)"
)
#: What to do about operators that ONNX Runtime writes when it saves an optimised model.
BEFORE_FUSION = "give the model before that optimisation, or save it with GraphOptimizationLevel.ORT_ENABLE_BASIC"
_QUANTISED = re.compile("QLinear.*|QGemm|QAttention|DynamicQuantize.*|(Q|Deq)uantizeLinear|.*Integer.*")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
#: What is brought to other operators (`opsets`).
_REWRITTEN = frozenset({"Sum"})


@dataclass(frozen=True, slots=True)
class Contents:
    """An ONNX file in parts.

    Attributes:
        name, opset: of its graph, and the version of the operators of ONNX itself.
        nodes: in topological order, without `Constant` nodes, each named; those with operators have names of their own.
        constants: initialisers and values of `Constant` nodes.
        tensors: shape and type of the constants, without those that nothing reads and whose type is not known.
        inputs, outputs: of the graph, without those that are initialisers, and names.
        declared: what the file says of outputs, and of other tensors that nodes write.
    """

    name: str
    opset: int
    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, TensorProto]
    tensors: Mapping[str, Tensor]
    inputs: tuple[onnx.ValueInfoProto, ...]
    outputs: tuple[str, ...]
    declared: tuple[onnx.ValueInfoProto, ...]

    @property
    def names(self) -> set[str]:
        """Return the names of all tensors and nodes."""
        of_nodes = (name for node in self.nodes for name in (node.name, *node.input, *node.output))
        return {*self.constants, *(value.name for value in self.inputs), *of_nodes}


def contents_of(model: onnx.ModelProto, source: str, *, of_engine: bool = False) -> Contents:
    """Check the contents of a model and index them.

    Of a model that an engine runs, operators, and types of constants, may be others than the graph knows.
    """
    g = model.graph
    odd = next((text for text in _texts(model) if isinstance(text, bytes)), None)
    if odd is not None:
        raise ModelError(f"a name is no UTF-8 text: {odd[:_SHOWN_BYTES]!r}", where=source, next_step=_AGAIN)
    if not g.node:
        raise ModelError("the model holds no operators", where=source, next_step="export the model again")
    if not g.output:
        raise ModelError("the model has no outputs", where=source, next_step="export the model again")
    opset = _opset(model, source, of_engine=of_engine)
    if not of_engine:
        _check_operators(g, source)
    if odd_node := next((node for node in g.node if any(attribute.ref_attr_name for attribute in node.attribute)), None):
        where = f"{source}, node {odd_node.name or next(iter(odd_node.output), '')!r}"
        next_step = "inline the functions: onnx.inliner.inline_local_functions"
        raise ModelError("an attribute stands for that of a function", where=where, next_step=next_step)
    constants = _constants(g, source, of_engine=of_engine)
    read = set[str]() if of_engine else {name for n in g.node for name in n.input} | {o.name for o in g.output}
    tensors = {name: constant_tensor(name, c, source) for name, c in constants.items() if name in read or is_known_type(c)}
    for value in g.input:
        if value.name in tensors:
            _require_same(value, tensors[value.name], source)
    inputs = tuple(i for i in g.input if i.name not in constants)
    known = [*constants, *(i.name for i in inputs)]
    nodes = _sorted(_named(g.node), known, source)
    written = {o for n in nodes for o in n.output if o}
    if lost := next((o.name for o in g.output if o.name not in written.union(known)), None):
        raise ModelError(f"nothing writes the output {lost!r}", where=source, next_step=_AGAIN)
    declared = _once([*(v for v in g.value_info if v.name in written), *g.output], source)
    outputs = tuple(o.name for o in g.output)
    shared, shapes = MappingProxyType(constants), MappingProxyType(tensors)
    return Contents(g.name or "model", opset, nodes, shared, shapes, inputs, outputs, declared)


def _texts(model: onnx.ModelProto) -> Iterator[str | bytes]:
    """Everything that names something; protobuf hands out bytes where it is no text."""
    g = model.graph
    yield g.name
    yield from (opset.domain for opset in model.opset_import)
    for node in g.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output, *(a.name for a in node.attribute))
    yield from (value.name for values in (g.input, g.output, g.value_info, g.initializer) for value in values)


def _check_operators(g: onnx.GraphProto, source: str) -> None:
    unknown = {
        f"{n.domain + '::' if n.domain else ''}{n.op_type}": n.name or next(iter(n.output), "") for n in g.node if not _known(n)
    }
    if unknown:
        if quantised := next((node for node in g.node if not _known(node) and _QUANTISED.fullmatch(node.op_type)), None):
            where = f"{source}, node {quantised.name or next(iter(quantised.output), '')!r}"
            raise ModelError(f"unknown operator of 8-bit integers: {quantised.op_type}", where=where, next_step=_AS_QDQ)
        if types := other_types(g):  # such models hold casts, or operators of their own
            raise ModelError(of_type(types), where=source, next_step=NEXT_STEP)
        listed = ", ".join(f"{op} (node {name!r})" for op, name in unknown.items())
        known = sorted(KNOWN_ONNX_TYPES | TRANSPARENT | _REWRITTEN)
        near = sorted({name for op in unknown for name in get_close_matches(op.rpartition("::")[2], known)})
        alike = f"; of a similar name: {', '.join(near)}" if near else ""
        raise ModelError(
            f"unknown operator: {listed}",
            where=source,
            next_step=next(
                (_RECIPES[op] for op in unknown if op in _RECIPES),
                BEFORE_FUSION
                if any(op.startswith("com.microsoft") for op in unknown)
                else f"known operators are the {len(known)} of docs/operators.md{alike}",
            ),
        )


def reads_constants_alone(model: onnx.ModelProto) -> bool:
    """Tell whether a known operator computes something from constants: no kernel does that anew in each run."""
    known = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        held = node.op_type == "Constant" or (node.op_type == "Identity" and known.issuperset(node.input))
        if held:
            known.update(node.output)
        elif node.op_type in KNOWN_ONNX_TYPES and any(node.input) and known.issuperset(filter(None, node.input)):
            return True
    return False


def other_types(g: onnx.GraphProto) -> str:
    """Describe the element type that most numbers of a model are of, for messages; "" for float32."""
    found = Counter[int]()
    for tensor in (*g.initializer, *filter(None, map(held_value, (n for n in g.node if n.op_type == "Constant")))):
        found[tensor.data_type] += math.prod(tensor.dims)
    most = max((kind for kind in found if kind in _FLOATS), key=found.__getitem__, default=TensorProto.FLOAT)
    return "" if most == TensorProto.FLOAT else element_type(most, "", "")


def _known(node: onnx.NodeProto) -> bool:
    return node.domain in _DEFAULT_DOMAINS and node.op_type in KNOWN_ONNX_TYPES | TRANSPARENT | _REWRITTEN | {"Constant"}


def _opset(model: onnx.ModelProto, source: str, *, of_engine: bool) -> int:
    versions = {opset.version for opset in model.opset_import if opset.domain in _DEFAULT_DOMAINS}
    if of_engine and not versions and model.opset_import:  # operators of other domains alone
        versions = {1}
    newest = onnx.defs.onnx_opset_version()
    if model.ir_version > onnx.IR_VERSION or max(versions, default=0) > newest:
        raise ModelError(
            f"opset {max(versions, default=0)} in IR version {model.ir_version} is newer than what the installed onnx "
            f"{onnx.__version__} knows: opset {newest}, IR version {onnx.IR_VERSION}",
            where=source,
            next_step=f"export with an opset up to {newest}, or install a newer onnx",
        )
    if len(versions) != 1 or min(versions) < 1 or model.ir_version < 1:
        said = " and ".join(map(str, sorted(versions))) or "none"
        what = f"the model must name one opset and its IR version: it names {said} and {model.ir_version or 'none'}"
        raise ModelError(what, where=source, next_step=_AGAIN)
    return int(versions.pop())


def _constants(g: onnx.GraphProto, source: str, *, of_engine: bool) -> dict[str, TensorProto]:
    constants: dict[str, TensorProto] = {}
    for initializer in g.initializer:
        if initializer.name in constants:
            raise ModelError(f"two initialisers are named {initializer.name!r}", where=source, next_step=_AGAIN)
        constants[initializer.name] = initializer
    for node in g.node:
        if node.op_type != "Constant":
            continue
        value = held_value(node)
        if value is None and of_engine:  # text, or a sparse tensor
            value = TensorProto()
        if value is None or len(node.output) != 1 or node.output[0] in constants:
            lacks = "without numbers" if value is None else "without an output of its own"
            where = f"{source}, node {node.name or next(iter(node.output), '')!r}"
            next_step = "simplify the model: a Constant holds a tensor, a number or a list of numbers"
            raise ModelError(f"a Constant node {lacks}", where=where, next_step=next_step)
        constants[node.output[0]] = value
    return constants


def _require_same(value: onnx.ValueInfoProto, tensor: Tensor, source: str) -> None:
    """An initialiser that is also listed as an input is of the type and shape that are listed, as far as they are."""
    kind = value.type.tensor_type
    sizes = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
    listed = element_type(kind.elem_type, value.name, source) if kind.elem_type else tensor.dtype
    fits = len(sizes) == len(tensor.shape) and all(s in (-1, have) for s, have in zip(sizes, tensor.shape, strict=True))
    if value.type.WhichOneof("value") not in (None, "tensor_type"):
        listed = "no tensor"
    if listed != tensor.dtype or (kind.HasField("shape") and not fits):
        what = f"initialiser {tensor.name!r} of {tensor.dtype} and {tensor.shape} is listed as an input of {listed} and {sizes}"
        raise ModelError(what, where=source, next_step=_AGAIN)


def _once(values: Iterable[onnx.ValueInfoProto], source: str) -> tuple[onnx.ValueInfoProto, ...]:
    """Inference holds one of several against what it finds."""
    found: dict[str, onnx.ValueInfoProto] = {}
    for value in values:
        first = found.setdefault(value.name, value)
        if first.type != value.type:
            raise ModelError(f"two shapes are given for {value.name!r}", where=source, next_step=_AGAIN)
    return tuple(found.values())


def _named(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return copies without `Constant` nodes, whose values may be large."""
    found: list[onnx.NodeProto] = []
    used: set[str] = set()
    for index, node in enumerate(nodes):
        if node.op_type == "Constant":
            continue
        copy = copied(node)
        copy.domain = ""
        copy.name = name = node.name or f"{node.op_type.lower()}_{index}"
        if node.op_type not in TRANSPARENT:
            while name in used:  # ONNX allows repeated names; here they identify operators
                name = f"{name}_{index}"
            used.add(name)
            copy.name = name
        found.append(copy)
    return found


def _sorted(nodes: Sequence[onnx.NodeProto], known: Collection[str], source: str) -> tuple[onnx.NodeProto, ...]:
    """Return nodes so that each comes after those it reads from: exporters write others, which engines load."""
    writer = _writers(nodes, known, source)
    before = []
    for node in nodes:
        if missing := next((name for name in node.input if name and name not in writer), None):
            what = f"{missing!r} is read, but no node writes it and no input or initialiser has that name"
            raise ModelError(what, where=f"{source}, node {node.name!r}", next_step=_AGAIN)
        before.append({writer[name] for name in node.input if name} - {_OUTSIDE})
    order = topological(before)
    if len(order) != len(nodes):
        done = set(order)
        stuck = next(node.name for i, node in enumerate(nodes) if i not in done)
        raise ModelError("nodes wait for each other in a circle", where=f"{source}, node {stuck!r}", next_step=_AGAIN)
    return tuple(nodes[i] for i in order)


def _writers(nodes: Sequence[onnx.NodeProto], known: Collection[str], source: str) -> dict[str, int]:
    """Which node writes each tensor; `_OUTSIDE` for what is known before any runs."""
    if len(set(known)) != len(known):
        raise ModelError("two inputs have the same name", where=source, next_step=_AGAIN)
    writer = dict.fromkeys(known, _OUTSIDE)
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in writer:
                raise ModelError(f"{name!r} is written twice", where=f"{source}, node {node.name!r}", next_step=_AGAIN)
            writer[name] = i
    return writer
