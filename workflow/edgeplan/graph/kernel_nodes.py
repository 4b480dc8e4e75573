"""Kernels of graphs as executed nodes: their description, and graphs of copies that time one.

Engines that run our own graphs name the operators that run as one; a kernel is described by its anchor, as ONNX writes it,
and holds all that it takes to build it again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from edgeplan.errors import FormatError
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.graph.kernels import make_kernel, member_outputs, split_members
from edgeplan.graph.nodes import MOST_VALUES, AttributeValue, ExecutedModel, ExecutedNode, NodeConfig, Operand
from edgeplan.graph.onnx.write import Constant, placed, plain_attributes, weight_bytes
from edgeplan.graph.operators.registry import SPECS
from edgeplan.graph.shapes import FLOAT32

if TYPE_CHECKING:
    from edgeplan.engines.base import Engine, EngineNode
    from edgeplan.graph.fusion_rules import FusionRules

#: Type of a layout conversion, and the domain of kernels of several operators.
REORDER, FUSED = "Reorder", "fused"
#: How names of operators begin that bring copies their inputs, and join their outputs.
AROUND = "around."
#: Channels that a convolution reads which hands on an activation in the engine's layout.
_LEAD_CHANNELS = 16
_IMAGE_AXES = 4
#: The layout in which our own runtime is given images, and never keeps any that it computes.
_PLAIN = "nchw"
#: How weights are drawn (`weight_chunks`), by place; those of other operators are operands.
_ROLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "BatchNormalization": ("scale", "bias", "mean", "variance"),
        **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), ("weight", "bias")),
        **dict.fromkeys(("LSTM", "GRU", "RNN"), ("input_weight", "recurrence_weight", "bias")),
        **dict.fromkeys(("LayerNormalization", "GroupNormalization", "InstanceNormalization"), ("scale", "bias")),
        **dict.fromkeys(("RMSNormalization", "QuantizeLinear", "DequantizeLinear"), ("scale",)),
    }
)


def node_config(
    graph: Graph, members: Sequence[str], input_layout: str = "", output_layout: str = "", implementation: str = ""
) -> NodeConfig:
    """Describe operators that run as one.

    Inputs are the operands of the anchor in ONNX's order, then what other members read beside. Attributes are the anchor's,
    `fused` with the types of the others, and layouts and the kernel's implementation where the engine tells these.
    """
    kernel = make_kernel(graph, members)
    anchor = graph.by_name[kernel.name]
    fused = tuple(graph.by_name[name].op_type for name in members if name != kernel.name)
    attributes: dict[str, AttributeValue] = {**dict(_plain(plain_attributes(anchor))), **({"fused": fused} if fused else {})}
    told = {"implementation": implementation, "input_layout": input_layout, "output_layout": output_layout}
    attributes |= {key: value for key, value in told.items() if value}
    known = _before(graph, anchor, members)
    beside = [Operand(graph.tensors[name].dtype, graph.shape(name)) for name in kernel.inputs if name not in known]
    return NodeConfig(
        anchor.op_type,
        FUSED if fused else "",
        tuple(sorted(attributes.items())),
        (*(_operand(graph, anchor, operand) for operand in placed(graph, anchor)), *beside),
        tuple(Operand(graph.tensors[name].dtype, graph.shape(name)) for name in kernel.outputs),
        _written(_cut(graph, members)),
    )


def reorder_config(tensor: Tensor, before: str, after: str) -> NodeConfig:
    """Describe the conversion of an activation from one memory layout to another.

    Its body is a convolution that reads the activation, and one behind it that writes such a one: around these engines convert.
    """
    n, channels, *space = tensor.shape
    inner = Tensor("k0", (n, min(channels, _LEAD_CHANNELS), *space), tensor.dtype)
    steps = (_pointwise("k0", tensor.shape, "x0", inner.shape), _pointwise("k1", inner.shape, "k0", tensor.shape))
    given = {tensor.name: tensor for tensor in (replace(tensor, name="x0"), inner, replace(tensor, name="k1"))}
    body = Graph(REORDER, tuple(op for op, _ in steps), ("x0",), ("k1",), given | {w.name: w for _, w in steps})
    operand = Operand(tensor.dtype, tensor.shape)
    return NodeConfig(REORDER, "", (("from", before), ("to", after)), (operand,), (operand,), _written(body))


def copies_graph(config: NodeConfig, copies: int, *, apart: bool = False, around: bool = False) -> Graph:
    """Put copies of a kernel, or layout conversion, side by side, each with weights of its own; FormatError for others.

    With `apart` no copies share an input. With `around` the graph reads and writes no more than one copy would, as each input
    and output costs a call time: inputs are repeated, and outputs joined, by operators whose names begin with `AROUND`. Where
    the kernel reads a layout that is not ONNX's, its inputs then come from a convolution, behind which engines keep theirs;
    what our runtime reads as it is given is an input of the graph.
    """
    body, made = _read(config), _Made()
    layout = str(config.attribute("input_layout", ""))
    led = _axes(layout)
    names = [{name: f"c{copy}.{name}" for name in body.tensors} for copy in range(copies)]
    for name in body.inputs:
        tensor = body.tensors[name]
        as_read = around and len(tensor.shape) == led and tensor.dtype == FLOAT32
        pooled = as_read and name not in body.operators[0].inputs
        if not apart and not pooled and _tells_copies_apart(body, name):
            for own in names:
                own[name] = name
        given = [replace(tensor, name=own) for own in dict.fromkeys(own[name] for own in names)]
        made.tensors |= {one.name: one for one in given}
        if around and tensor.shape and not (layout == _PLAIN and len(tensor.shape) == _IMAGE_AXES):
            made.bring(given, led=as_read, pooled=pooled)
        else:
            made.inputs += [one.name for one in given]
    for own, prefix in zip(names, (f"c{copy}." for copy in range(copies)), strict=True):
        made.tensors |= {own[name]: replace(tensor, name=own[name]) for name, tensor in body.tensors.items()}
        made.operators += [_renamed(op, prefix + op.name, own) for op in body.operators]
    for name in body.outputs:
        made.hand_out([made.tensors[own[name]] for own in names], joined=around and copies > 1)
    return Graph("copies", tuple(made.operators), tuple(made.inputs), tuple(made.outputs), MappingProxyType(made.tensors))


def executed_graph(engine: Engine | None, graph: Graph, rules: FusionRules) -> ExecutedModel:
    """Return what an engine runs of a graph; nothing is timed. Where no engine tells its nodes, the rules say what runs as one.

    Operators that are only views, or repeat others, are listed with the node before them and are no part of its configuration.
    """
    if engine is None or not engine.reports_nodes:
        kernels = split_members(graph, rules)
        found = [ExecutedNode(m[0], node_config(graph, m), (*m, *duplicates)) for m, duplicates in kernels]
        return ExecutedModel.of(graph.name, tuple(found), weight_bytes(graph), f"fusion rules of {rules.provenance.device}")
    plain = replace(graph, stored=MappingProxyType({}))  # the engine is given it anew, with weights as operators read them
    found = [ExecutedNode(name, config, members) for name, config, members, _ in described(graph, engine.told(plain))]
    told_by = f"{engine.name} {engine.version_for(engine.settings)}"
    return ExecutedModel.of(graph.name, _with_views(graph, found), weight_bytes(graph), told_by)


def operators_graph(graph: Graph) -> ExecutedModel:
    """Return a model in which each operator is a node of its own: what nn-Meter's sum of operators adds up."""
    found = tuple(ExecutedNode(op.name, node_config(graph, (op.name,)), (op.name,)) for op in graph.operators)
    return ExecutedModel.of(graph.name, found, weight_bytes(graph), "operators")


def described(graph: Graph, nodes: Sequence[EngineNode]) -> Iterator[tuple[str, NodeConfig, tuple[str, ...], tuple[int, ...]]]:
    """Yield name, configuration and operators of each executed node, and which of the nodes told it is.

    Nodes that share operators are one; conversions of what the graph does not know are left out.
    """
    order = {op.name: place for place, op in enumerate(graph.operators)}
    groups: list[list[int]] = []
    of_member: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        group = next((of_member[name] for name in node.members if name in of_member), None)
        if group is None:
            groups.append(group := [])
        group.append(index)
        of_member |= dict.fromkeys(node.members, group)
    for group in groups:
        first, last = nodes[group[0]], nodes[group[-1]]
        members = sorted({name for index in group for name in nodes[index].members}, key=order.__getitem__)
        if members:
            config = node_config(graph, members, first.input_layout, last.output_layout, first.implementation)
        elif first.tensor in graph.tensors and first.input_layout != first.output_layout:
            config = reorder_config(graph.tensors[first.tensor], first.input_layout, first.output_layout)
        else:
            continue
        yield first.name, config, tuple(members), tuple(group)


def _with_views(graph: Graph, nodes: Sequence[ExecutedNode]) -> tuple[ExecutedNode, ...]:
    """Add operators that no node runs to the node of what they read, else of what reads them."""
    place = {name: index for index, node in enumerate(nodes) for name in node.operators}
    held = [list(node.operators) for node in nodes]
    for ops, near in ((graph.operators, graph.predecessors), (graph.operators[::-1], graph.successors)):
        for op in ops:
            beside = next((place[other.name] for other in near(op) if other.name in place), None)
            if op.name not in place and beside is not None:
                place[op.name] = beside
                held[beside].append(op.name)
    return tuple(replace(node, operators=tuple(names)) for node, names in zip(nodes, held, strict=True))


def _plain(attributes: Mapping[str, Attribute]) -> Iterator[tuple[str, Attribute]]:
    for key, value in attributes.items():
        values = value if isinstance(value, tuple) else (value,)
        if len(values) <= MOST_VALUES and all(isinstance(one, str) or math.isfinite(one) for one in values):
            yield key, value


def _before(graph: Graph, anchor: Operator, members: Sequence[str]) -> set[str]:
    """Return what the anchor reads, and what members read to compute that."""
    known, waiting = set[str](), [*anchor.inputs]
    while waiting:
        name = waiting.pop()
        producer = graph.producer.get(name)
        if name not in known and producer is not None and producer.name in members:
            waiting += producer.inputs
        known.add(name)
    return known


def _operand(graph: Graph, anchor: Operator, operand: str | Constant) -> Operand | None:
    if isinstance(operand, Constant):
        values = operand.value if isinstance(operand.value, tuple) else (operand.value,)
        told = tuple(int(v) for v in values) if operand.dtype == "int64" and len(values) <= MOST_VALUES else None
        return Operand(operand.dtype, operand.shape, constant=True, values=told)
    if not operand:
        return None
    tensor = graph.tensors[operand]
    return Operand(tensor.dtype, tensor.shape, constant=operand in anchor.weights)


def _cut(graph: Graph, members: Sequence[str]) -> Graph:
    """Return the operators as a graph of their own, with names that are alike in equal kernels."""
    ops, names = [graph.by_name[name] for name in members], dict[str, str]()
    written = {name for op in ops for name in op.outputs}
    for name in (name for op in ops for name in op.inputs):
        if name not in written:
            names.setdefault(name, f"x{len(names)}")
    for index, op in enumerate(ops):
        roles = _ROLES.get(op.op_type, ())
        for place, name in enumerate(op.weights):
            role = roles[min(place, len(roles) - 1)] if roles else "operand"
            names.setdefault(name, f"k{index}.{place}.{role}")
        names |= {name: f"k{index}" + (f".{place}" if place else "") for place, name in enumerate(op.outputs)}

    operators = tuple(_renamed(op, f"k{index}", names) for index, op in enumerate(ops))
    outside = {name for op in ops for name in op.inputs} - written
    inputs = tuple(new for old, new in names.items() if old in outside)
    outputs = tuple(names[name] for name in member_outputs(graph, members))
    tensors = {new: replace(graph.tensors[old], name=new) for old, new in names.items()}
    return Graph("kernel", operators, inputs, outputs, tensors)


def _written(graph: Graph) -> str:
    document = {
        "inputs": graph.inputs,
        "operators": [
            [op.op_type, op.inputs, op.weights, op.outputs, dict(sorted(op.attributes.items()))] for op in graph.operators
        ],
        "outputs": graph.outputs,
        "tensors": {tensor.name: [tensor.dtype, *tensor.shape] for tensor in graph.tensors.values()},
    }
    return json.dumps(document, separators=(",", ":"))


def _read(config: NodeConfig) -> Graph:
    if config.op in SPECS and not (config.body or config.domain or config.weight_bytes):  # it reads activations alone
        told = [[one for one in part if one] for part in (config.inputs, config.outputs)]
        inputs, outputs = (tuple(f"{letter}{i}" for i in range(len(part))) for letter, part in zip("xk", told, strict=True))
        shapes = zip((*inputs, *outputs), (*told[0], *told[1]), strict=True)
        attributes = cast("Mapping[str, Attribute]", dict(config.attributes))
        op = Operator("k0", config.op, inputs, outputs, (), attributes)
        return Graph("kernel", (op,), inputs, outputs, {name: Tensor(name, one.shape, one.dtype) for name, one in shapes})
    try:
        document = json.loads(config.body)
        operators = list[Operator]()
        for op_type, inputs, weights, outputs, attributes in document["operators"]:
            values = {key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()}
            names = tuple(inputs), tuple(outputs), tuple(weights)
            operators.append(Operator(f"k{len(operators)}", op_type, *names, values))
        tensors = {name: Tensor(name, tuple(shape), dtype) for name, (dtype, *shape) in document["tensors"].items()}
        return Graph("kernel", tuple(operators), tuple(document["inputs"]), tuple(document["outputs"]), tensors)
    except (KeyError, TypeError, ValueError) as error:
        what = f"the node {config.op} is no kernel of a graph: {error}"
        raise FormatError(what, where=config.body[:80], next_step="tell the nodes of the model again on this engine") from error


@dataclass
class _Made:
    operators: list[Operator] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def bring(self, tensors: Sequence[Tensor], *, led: bool, pooled: bool) -> None:
        """Give tensors alike the value of one input.

        Led, it comes from a convolution, which is fused with none of several that read it. Pooled, each comes from a window
        besides: engines add to what a kernel reads where that is memory of its own, and no part of another tensor.
        """
        first, parts = tensors[0], tuple(f"{AROUND}{tensor.name}" if pooled else tensor.name for tensor in tensors)
        read = f"{AROUND}{first.name}.one" if len(tensors) > 1 else parts[0]
        self.tensors |= {name: replace(first, name=name) for name in (read, *parts)}
        n, *rest = first.shape
        if led:
            given = Tensor(f"{read}.x", (n, min(rest[0], _LEAD_CHANNELS), *rest[1:]))
            op, weight = _pointwise(f"{AROUND}conv.{first.name}", given.shape, given.name, first.shape)
            self.operators.append(replace(op, outputs=(read,)))
            self.tensors |= {given.name: given, weight.name: weight}
            self.outputs += [read] if len(tensors) == 1 else []
        self.inputs.append(f"{read}.x" if led else read)
        if len(tensors) > 1:
            self._join((read,) * len(tensors), first, f"{read}.all")
            split: dict[str, Attribute] = {"axis": 0, "split": (n,) * len(tensors)}
            self.operators.append(Operator(f"{read}.split", "Split", (f"{read}.all",), parts, (), split))
        axes = len(rest) - 1
        window: dict[str, Attribute] = {"kernel_shape": (3,) * axes, "strides": (1,) * axes, "pads": (1,) * 2 * axes}
        for part, tensor in zip(parts, tensors if pooled else (), strict=pooled):
            self.operators.append(Operator(f"{part}.pool", "MaxPool", (part,), (tensor.name,), (), window))

    def hand_out(self, tensors: Sequence[Tensor], *, joined: bool) -> None:
        """Make tensors alike outputs of the graph, or join them and make the first part the output."""
        names, first = tuple(tensor.name for tensor in tensors), tensors[0]
        if not joined or not first.shape:
            self.outputs += names
            return
        out = replace(first, name=f"{AROUND}{first.name}")
        self._join(names, first, f"{out.name}.all")
        cut: dict[str, Attribute] = {"starts": (0,), "ends": first.shape[:1], "axes": (0,), "steps": (1,)}
        self.operators.append(Operator(f"{out.name}.cut", "Slice", (f"{out.name}.all",), (out.name,), (), cut))
        self.tensors[out.name] = out
        self.outputs.append(out.name)

    def _join(self, names: tuple[str, ...], one: Tensor, whole: str) -> None:
        self.tensors[whole] = Tensor(whole, (len(names) * one.shape[0], *one.shape[1:]), one.dtype)
        self.operators.append(Operator(f"{whole}.joined", "Concat", names, (whole,), (), {"axis": 0}))


def _renamed(op: Operator, name: str, names: Mapping[str, str]) -> Operator:
    inputs, outputs, weights = (tuple(names[one] for one in part) for part in (op.inputs, op.outputs, op.weights))
    return Operator(name, op.op_type, inputs, outputs, weights, op.attributes)


def _pointwise(name: str, before: tuple[int, ...], read: str, after: tuple[int, ...]) -> tuple[Operator, Tensor]:
    weight = Tensor(f"{name}.weight", (after[1], before[1], *(1 for _ in before[2:])))
    return Operator(name, "Conv", (read,), (name,), (weight.name,), {"kernel_shape": weight.shape[2:]}), weight


def _tells_copies_apart(body: Graph, name: str) -> bool:
    """Tell whether all that reads an input has weights, or reads what has: else engines compute equal copies once."""
    return all(op.weights or any(other in body.producer for other in op.inputs) for op in body.consumers[name])


def _axes(layout: str) -> int:
    """Return how many axes a layout orders otherwise than ONNX; 0 for a plain one, as `abcd` is."""
    letters = re.split(r"[0-9]", layout)[0]
    if layout == _PLAIN or (letters == layout and letters == "".join(sorted(letters))):
        return 0
    return _IMAGE_AXES if layout.startswith("blocked") else len(letters)
