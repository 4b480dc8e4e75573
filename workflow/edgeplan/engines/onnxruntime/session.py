"""Runs and times models by ONNX Runtime on the CPU, and models of copies of one executed node: a description is enough.

Weights of copies are drawn, equal ones for each in memory of its own: floats from [0.05, 1), so that nothing becomes a
denormal, overflows or is no number. Integers that steer a node follow from its shapes, by the names that ONNX Runtime's schemas
give its inputs.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from edgeplan.engines.base import Array, Engine, EngineNode, ProfiledSession, Session, Times, apart, random_inputs
from edgeplan.engines.mapping import complete_members
from edgeplan.engines.onnxruntime.executed import EVENT_SUFFIX, cannot_run, executed_model, schemas, wanted_inputs
from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.kinds import kind
from edgeplan.graph.nodes import ExecutedModel, NodeConfig, Operand
from edgeplan.graph.onnx.compare import session_options
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.graph.operators.elementwise import ACTIVATIONS
from edgeplan.support.scratch import ScratchFolder

# Blocked (NCHWc) nodes are named after the last operator fused before blocking (`<output>_nchwc`); sums and activations fused
# later show as a fourth input or an attribute only, and their activations become `reorder_token_N`.
_BLOCKED_DOMAIN = "com.microsoft.nchwc"
_INPUTS_WITH_SUM = 4
_FUSING_TYPES = ("Conv", "FusedConv", "Gemm", "FusedGemm")
#: Types that hard-swish, which is no kernel of ONNX Runtime, is inlined as.
_INLINED_TYPES = ("HardSigmoid", "Mul")


def _with_names(nodes: Sequence[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """Return nodes by name; those without one (inlined functions) are called `<type>@<n>`."""
    numbers = defaultdict[str, Iterator[int]](count)
    return {node.name or f"{node.op_type}@{next(numbers[node.op_type])}": node for node in nodes}


def map_nodes(graph: Graph, nodes: Sequence[onnx.NodeProto]) -> tuple[EngineNode, ...]:
    """Return the nodes of an optimised model, in its order, with the operators of `graph` each one runs."""
    info = _with_names(nodes)
    working = {name: node for name, node in info.items() if not _is_reorder(node)}
    named = {name: _named_members(graph, name, node) for name, node in working.items()}
    for name, ops in named.items():  # the operators before a fused activation: its convolution and batch normalisation
        if working[name].op_type in _FUSING_TYPES and not name.endswith("_bn_nchwc"):
            _add_folded_predecessors(graph, working[name], ops, named)
    members = complete_members(graph, named, lambda name, op: _claims(graph, info[name], op))
    source = _original_tensors(graph, working, members)
    members |= _inlined_hard_swish(graph, working, members, source)
    found = []
    for name, node in info.items():
        if name in working:
            reads, writes = _layout(node.input[0]), _layout(node.output[0])
            implementation = f"{node.op_type.removeprefix('Fused')}.{reads if writes == 'nchw' else writes}"
            found.append(EngineNode(name, node.op_type, implementation, members[name], "", reads, writes))
            continue
        into = node.op_type == "ReorderInput"
        tensor = node.input[0] if into else node.output[0]
        tensor = source.get(tensor, tensor)
        source.setdefault(node.output[0], tensor)
        layouts = ("nchw", "nchwc") if into else ("nchwc", "nchw")
        found.append(EngineNode(name, node.op_type, node.op_type, (), tensor, *layouts))
    return tuple(found)


def _named_members(graph: Graph, name: str, node: onnx.NodeProto) -> list[str]:
    """Return the operators that a node names: its last, by output or name; if its name is an earlier one, all between."""
    stem = name.removesuffix("_nchwc").removesuffix("_bn")
    last = graph.producer.get(node.output[0]) or graph.by_name.get(stem) or graph.producer.get(stem)
    first = graph.by_name.get(name)
    if last is None:  # part of an inlined function: see _inlined_hard_swish
        return []
    if first is None or first is last:
        return [last.name]
    path = [last]
    while path[0] is not first:  # back from the last operator, along the inputs that descend from the first
        before = [p for p in graph.predecessors(path[0]) if p is first or _descends(graph, p, first)]
        if not before:
            return [last.name]
        path.insert(0, before[0])
    return [op.name for op in path]


_FUSION_DEPTH = 4


def _descends(graph: Graph, op: Operator, ancestor: Operator, depth: int = _FUSION_DEPTH) -> bool:
    """Tell whether `op` follows `ancestor` within a few operators that each have one input from there."""
    return depth > 0 and any(p is ancestor or _descends(graph, p, ancestor, depth - 1) for p in graph.predecessors(op))


def _inlined_hard_swish(
    graph: Graph, nodes: Mapping[str, onnx.NodeProto], members: Mapping[str, tuple[str, ...]], source: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return members of nodes that hard-swish was inlined as; `source` learns what they write, for conversions behind them."""
    found: dict[str, tuple[str, ...]] = {}
    for name, node in nodes.items():
        if node.op_type not in _INLINED_TYPES or (members[name] and graph.by_name[members[name][-1]].op_type != "HardSwish"):
            continue
        read = source.get(node.input[0], node.input[0])
        readers = [op for op in graph.consumers.get(read, ()) if op.op_type == "HardSwish"]
        if members[name] or len(readers) == 1:
            op = graph.by_name[members[name][-1]] if members[name] else readers[0]
            found[name] = (op.name,)
            if node.op_type == "Mul":
                source[node.output[0]] = op.outputs[0]
    return found


def _original_tensors(
    graph: Graph, nodes: Mapping[str, onnx.NodeProto], members: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """Map each engine tensor to the original activation that it carries."""
    source: dict[str, str] = {}
    for name, node in nodes.items():
        for output in node.output:
            if output in graph.tensors:
                source[output] = output
            elif members[name]:
                source[output] = graph.by_name[members[name][-1]].outputs[0]
    return source


def _layout(tensor: str) -> str:
    """Return the layout of an engine tensor: blocked activations lose their names."""
    return "nchwc" if tensor.startswith("reorder_token_") else "nchw"


def _is_reorder(node: onnx.NodeProto) -> bool:
    return node.domain == _BLOCKED_DOMAIN and node.op_type in ("ReorderInput", "ReorderOutput")


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def _add_folded_predecessors(graph: Graph, node: onnx.NodeProto, ops: list[str], named: Mapping[str, list[str]]) -> None:
    """Walk back from an activation or batch normalisation to the convolution that absorbed it, unless another node has it."""
    taken = {op for others in named.values() if others is not ops for op in others}
    while ops:
        what = kind(graph, graph.by_name[ops[0]])
        before = [p for p in graph.predecessors(graph.by_name[ops[0]]) if p.name not in taken]
        sums = what == "add" and len(node.input) >= _INPUTS_WITH_SUM
        if len(before) != 1 or not (what in ACTIVATIONS or what == "bn" or sums):
            return
        allowed = {"conv", "dwconv", "fc", "bn"} | ({"add"} if len(node.input) >= _INPUTS_WITH_SUM else set())
        if kind(graph, before[0]) not in allowed:
            return
        ops.insert(0, before[0].name)


def _claims(graph: Graph, node: onnx.NodeProto, op: Operator) -> bool:
    """Tell whether a node that runs a producer of `op` shows, by an attribute or a fourth input, that it runs `op` too."""
    what = kind(graph, op)
    if what in ACTIVATIONS:
        return bool(_attribute(node, "activation"))
    if what == "add":
        return len(node.input) >= _INPUTS_WITH_SUM and node.op_type in ("Conv", "FusedConv") and bool(node.input[3])
    return False


_PROVIDERS = ["CPUExecutionProvider"]
_FATAL_ONLY = 4
_LONGEST = 300
_IR_VERSION = 10
#: Weights of fewer bytes stand in the model itself, where ONNX Runtime reads shapes and axes.
_INSIDE_BYTES = 1024
_DRAWN = 1 << 20  # values drawn of a type; what is larger repeats them


class OnnxRuntime(Engine):
    """This engine is ONNX Runtime with its CPU execution provider, f32."""

    name = "onnxruntime"
    reports_nodes = True
    reads_files = True

    @classmethod
    def version(cls) -> str:
        return str(ort.__version__)

    def _options(self, **how: Any) -> Any:
        return session_options(self.settings.threads, self.settings.options, **how)

    def load(self, model: Path, graph: Graph) -> Session:
        session = ort.InferenceSession(str(model), self._options(), providers=_PROVIDERS)
        return _OrtSession(session, random_inputs(graph))

    def executed_file(self, path: Path, wanted: Preparation, *, fused: bool = True) -> ExecutedModel:
        return executed_model(path, self.settings.options, wanted, threads=self.settings.threads, fused=fused)

    def load_file(self, path: Path, wanted: Preparation) -> Session:
        try:
            session = ort.InferenceSession(str(path), self._options(), providers=_PROVIDERS)
            try:
                loaded = _OrtSession(session, wanted_inputs(path, wanted, 2))
                loaded.run()
            except Exception:  # noqa: BLE001  of an axis of one there is no place 1
                loaded = _OrtSession(session, wanted_inputs(path, wanted, 1))
                loaded.run()
        except ModelError:
            raise
        except Exception as error:  # the library raises what it likes
            raise cannot_run(error, str(path)) from error
        return loaded

    def load_copies(self, config: NodeConfig, copies: int) -> Session:
        options = self._options(severity=_FATAL_ONLY, optimised=False)  # what is refused is told by the error
        try:
            made = copies_model(config, copies)
            if made.weights:
                values = [ort.OrtValue.ortvalue_from_numpy(value) for value in made.weights.values()]
                options.add_external_initializers(list(made.weights), values)
            loaded = _OrtSession(ort.InferenceSession(made.model, options, providers=_PROVIDERS), made.inputs, made.weights)
            loaded.run()
        except ModelError:
            raise
        except Exception as error:  # the library raises what it likes, and a description may contradict itself
            raise _refused(config, str(error).strip().partition("\n")[0]) from error
        told = tuple(one.shape for one in config.outputs if one)[: len(loaded.shapes())]
        if loaded.shapes()[: len(told)] != told:
            raise _refused(config, f"it writes {loaded.shapes()[: len(told)]}, and its description says {told}")
        return loaded

    def load_profiled(self, model: Path, graph: Graph) -> ProfiledSession:
        options = self._options()
        options.enable_profiling = True
        folder = ScratchFolder("onnxruntime")
        optimised = Path(folder.name) / "optimised.onnx"
        options.profile_file_prefix = str(Path(folder.name) / "profile")
        options.optimized_model_filepath = str(optimised)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
        session = ort.InferenceSession(str(model), options, providers=_PROVIDERS)
        nodes = list(onnx.load(optimised, load_external_data=False).graph.node)
        (Path(folder.name) / "weights.bin").unlink(missing_ok=True)
        return _OrtProfiledSession(session, graph, nodes, folder)


class _OrtSession(Session):
    """Holds a session with its inputs bound, and the memory of weights that were handed over."""

    def __init__(
        self, session: ort.InferenceSession, inputs: Mapping[str, Array], weights: Mapping[str, Array] = MappingProxyType({})
    ) -> None:
        self._session, self._inputs, self._weights = session, inputs, weights
        self._names = [o.name for o in session.get_outputs()]
        self._binding = session.io_binding()
        for name, value in self._inputs.items():
            self._binding.bind_cpu_input(name, value)
        for name in self._names:
            self._binding.bind_output(name)

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> Mapping[str, Array]:
        return dict(zip(self._names, self._binding.copy_outputs_to_cpu(), strict=True))

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the outputs of the last run."""
        return tuple(tuple(value.shape()) for value in self._binding.get_outputs())


class _OrtProfiledSession(_OrtSession, ProfiledSession):
    def __init__(
        self, session: ort.InferenceSession, graph: Graph, nodes: Sequence[onnx.NodeProto], folder: ScratchFolder
    ) -> None:
        super().__init__(session, random_inputs(graph))
        self._graph, self._nodes, self._folder = graph, nodes, folder

    def profile(self, blocks: Sequence[tuple[int, int]]) -> tuple[tuple[EngineNode, ...], Times]:
        events = json.loads(Path(self._session.end_profiling()).read_text())
        durations: dict[str, list[float]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith(EVENT_SUFFIX):
                durations[event["name"].removesuffix(EVENT_SUFFIX)].append(float(event["dur"]))
        nodes = map_nodes(self._graph, self._nodes)
        counted = _rename_unnamed(durations, {n.name for n in nodes})
        times = np.zeros((len(blocks), len(nodes)))
        for column, node in enumerate(nodes):
            # durations are whole microseconds: the mean of the faster half has a finer grain than the minimum
            series = counted.get(node.name, [])
            for row, (start, stop) in enumerate(blocks):
                fast = np.sort(series[start:stop])[: max(1, (stop - start + 1) // 2)]
                times[row, column] = fast.mean() if len(fast) else 0.0
        return nodes, times

    def close(self) -> None:
        self._folder.cleanup()


def _refused(config: NodeConfig, why: str) -> ModelError:
    what = f"ONNX Runtime does not run a node {config.op} by its description: {why[:_LONGEST]}"
    return ModelError(what, where=f"configuration {config.key}", next_step="leave it out: it is told by the nodes around it")


def _rename_unnamed(durations: Mapping[str, list[float]], known: set[str]) -> dict[str, list[float]]:
    """Give counters of unnamed nodes, called `<type>_<index>`, the names that `_with_names` gives, in order of index."""
    renamed = {name: series for name, series in durations.items() if name in known}
    seen: Counter[str] = Counter()
    unnamed = [name.rpartition("_") for name in durations if name not in known]
    for op_type, _, index in sorted((u for u in unnamed if u[2].isdigit()), key=lambda u: int(u[2])):
        renamed[f"{op_type}@{seen[op_type]}"] = durations[f"{op_type}_{index}"]
        seen[op_type] += 1
    return renamed


# Models of copies


@dataclass(frozen=True, slots=True)
class CopiesModel:
    """A model of copies, its large weights beside it: they are handed over without a copy in between.

    The weights are those that the model, as bytes, names as external.
    """

    model: bytes
    weights: Mapping[str, Array] = field(default_factory=dict)
    inputs: Mapping[str, Array] = field(default_factory=dict)


def copies_model(config: NodeConfig, copies: int) -> CopiesModel:
    """Make a model of copies of a node: small activations are shared, large ones and weights are each copy's own.

    ModelError: this version of ONNX Runtime has no such node.
    """
    schema, graph, separate = _schema(config), onnx.GraphProto(name="copies"), apart(config)
    weights, inputs = dict[str, Array](), dict[str, Array]()
    attributes = [helper.make_attribute(name, value) for name, value in config.attributes if value != ()]
    attributes += _body(config)
    for copy in range(copies):
        node = graph.node.add(op_type=config.op, domain=config.domain, name=f"copy{copy}", attribute=attributes)
        for place, operand in enumerate(config.inputs):
            name = f"in{place}" + (f"@{copy}" if separate or (operand and operand.constant) else "") if operand else ""
            node.input.append(name)
            if not operand or name in inputs:
                continue
            values = _values(config, operand, place, _role(schema, place))
            if not operand.constant:
                inputs[name] = values
                graph.input.append(helper.make_tensor_value_info(name, _element_type(operand), operand.shape))
            elif operand.bytes < _INSIDE_BYTES:
                graph.initializer.append(numpy_helper.from_array(values, name))
            else:
                weights[name] = values
                graph.initializer.append(_outside(name, operand))
        node.output.extend(f"out{place}@{copy}" if operand else "" for place, operand in enumerate(config.outputs))
        written = [(name, one) for name, one in zip(node.output, config.outputs, strict=True) if one]
        for name, operand in written if separate else written[: not copy]:  # copies that nobody reads are run all the same
            graph.output.append(helper.make_tensor_value_info(name, _element_type(operand), None))
    opset = helper.make_opsetid(config.domain, schema.since_version)
    model = onnx.ModelProto(ir_version=_IR_VERSION, graph=graph, opset_import=[opset])
    return CopiesModel(model.SerializeToString(), weights, inputs)


def _body(config: NodeConfig) -> list[onnx.AttributeProto]:
    """Return the attributes that hold tensors and graphs."""
    return list(onnx.NodeProto.FromString(base64.b64decode(config.body)).attribute)


def _outside(name: str, operand: Operand) -> TensorProto:
    told = TensorProto(name=name, dims=operand.shape, data_type=_element_type(operand), data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "given"), ("offset", "0"), ("length", str(operand.bytes))):
        told.external_data.add(key=key, value=value)
    return told


def _element_type(operand: Operand) -> int:
    return TensorProto.STRING if operand.dtype == "str" else int(helper.np_dtype_to_tensor_dtype(np.dtype(operand.dtype)))


def _schema(config: NodeConfig) -> Any:
    """Return the newest schema that a node fits: its description does not tell the opset of its model."""
    given = {name for name, _ in config.attributes} | {one.name for one in _body(config)}
    for schema in reversed(schemas().get((config.domain, config.op), ())):
        fits = schema.min_input <= len(config.inputs) <= schema.max_input and len(config.outputs) <= schema.max_output
        if fits and given <= schema.attributes.keys() and not schema.deprecated:
            return schema
    raise ModelError(
        f"this version of ONNX Runtime has no node {config.op} with such attributes and inputs",
        where=f"domain {config.domain or 'ai.onnx'}",
        next_step="leave it out, or use the version that told it",
    )


def _role(schema: Any, place: int) -> str:
    """Return the name that a schema gives an input; the last name stands for all of a list."""
    return str(schema.inputs[min(place, len(schema.inputs) - 1)].name)


@cache
def _block(dtype: str) -> Array:
    rng = np.random.default_rng(0)
    values: Array = np.ones(_DRAWN, dtype)  # divides, and is an index, a length, and true
    if dtype in ("int8", "uint8"):  # around the usual zero point
        values = rng.integers(-28, 28, _DRAWN).astype(dtype) + np.array(_zero_point(dtype), dtype)
    elif values.dtype.kind == "f":
        values = (rng.random(_DRAWN, dtype=np.float32) * np.float32(0.95) + np.float32(0.05)).astype(dtype)
    return values


def _zero_point(dtype: str) -> int:
    return 128 if dtype == "uint8" else 0


def _values(config: NodeConfig, operand: Operand, place: int, role: str) -> Array:
    """Return values of an input that its node can run with, as fast as usual."""
    if operand.dtype == "str":
        return np.full(operand.shape, "a", object)
    known: npt.ArrayLike | None = operand.values
    if known is None:
        known = _zero_point(operand.dtype) if "zero_point" in role else _steering(config, role)
    if known is not None:
        return np.resize(np.array(known, operand.dtype), operand.shape)
    if limit := _limit(config, role):
        return np.random.default_rng(place).integers(0, limit, operand.shape, operand.dtype)
    return np.resize(_block(operand.dtype)[: operand.elements], operand.shape)


def _steering(config: NodeConfig, role: str) -> npt.ArrayLike | None:
    """Return the values of an input that shapes what a node writes, by what it writes; None of any other input."""
    first, last = config.inputs[0], config.outputs[0]
    read, written = first.shape if first else (), last.shape if last else ()
    found: npt.ArrayLike | None = None
    match config.op, role:
        case ("Reshape" | "Expand", "shape") | ("ConstantOfShape", "input") | ("Resize", "sizes"):
            found = written
        case "Tile", "repeats":
            found = [new // old for new, old in zip(written, read, strict=True)]
        case "Resize" | "Upsample", "scales":
            found = [new / old for new, old in zip(written, read, strict=True)]
        case "Range", ("start" | "limit" | "delta"):
            found = {"start": 0, "limit": written[0], "delta": 1}[role]
        case ("TopK", "K") | ("OneHot", "depth"):
            found = written[_integer(config, "axis", -1)]
        case "LSTM" | "GRU" | "RNN" | "DynamicQuantizeLSTM", "sequence_lens":
            found = read[0]
        case "Pow", "Y":
            found = 2  # the one exponent that models have; ONNX Runtime multiplies for it
    return found


def _limit(config: NodeConfig, role: str) -> int:
    """Return what the integers of an input stay below, as they are places of another; 0 of any other input."""
    if role == "input_ids" and len(config.inputs) > 2 and (table := config.inputs[2]):
        return table.shape[0]
    data = config.inputs[0]
    if role != "indices" or data is None:
        return 0
    if config.op.endswith("ND") and (indices := config.inputs[1]):
        begin = _integer(config, "batch_dims", 0)
        return min(data.shape[begin : begin + indices.shape[-1]])
    return data.shape[_integer(config, "axis", 0)]


def _integer(config: NodeConfig, name: str, default: int) -> int:
    value = config.attribute(name, default)
    assert isinstance(value, int)  # noqa: S101  by the schema
    return value
