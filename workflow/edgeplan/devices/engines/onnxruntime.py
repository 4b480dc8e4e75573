"""ONNX Runtime on the CPU.

Its blocked (NCHWc) nodes are named after the last operator fused before blocking (`<output>_nchwc`); sums and activations fused
later show as a fourth input or an attribute only, and its activations become `reorder_token_N`.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from edgeplan.devices.engines.base import Array, Engine, EngineNode, ProfiledSession, Session, Times, random_inputs
from edgeplan.devices.engines.mapping import complete_members
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.kinds import ACTIVATIONS, kind

_ERRORS_ONLY = 3
_BLOCKED_DOMAIN = "com.microsoft.nchwc"
_INPUTS_WITH_SUM = 4
_FUSING_TYPES = ("Conv", "FusedConv", "Gemm", "FusedGemm")
_EVENT_SUFFIX = "_kernel_time"


class OnnxRuntime(Engine):
    """ONNX Runtime, CPU execution provider, f32."""

    name = "onnxruntime"
    reports_nodes = True

    @classmethod
    def version(cls) -> str:
        return str(ort.__version__)

    def _options(self) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.settings.threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = _ERRORS_ONLY
        for key, value in self.settings.options.items():
            options.add_session_config_entry(key, value)
        return options

    def load(self, model: Path, graph: Graph) -> Session:
        return _OrtSession(ort.InferenceSession(str(model), self._options(), providers=["CPUExecutionProvider"]), graph)

    def load_profiled(self, model: Path, graph: Graph) -> ProfiledSession:
        options = self._options()
        options.enable_profiling = True
        folder = tempfile.TemporaryDirectory(prefix="edgeplan-ort-")
        optimised = Path(folder.name) / "optimised.onnx"
        options.profile_file_prefix = str(Path(folder.name) / "profile")
        options.optimized_model_filepath = str(optimised)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        nodes = list(onnx.load(optimised, load_external_data=False).graph.node)
        (Path(folder.name) / "weights.bin").unlink(missing_ok=True)
        return _OrtProfiledSession(session, graph, nodes, folder)


class _OrtSession(Session):
    def __init__(self, session: ort.InferenceSession, graph: Graph) -> None:
        self._session = session
        self._names = [o.name for o in session.get_outputs()]
        self._binding = session.io_binding()
        self._inputs = random_inputs(graph)
        for name, value in self._inputs.items():
            self._binding.bind_cpu_input(name, value)
        for name in self._names:
            self._binding.bind_output(name)

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> Mapping[str, Array]:
        return dict(zip(self._names, self._binding.copy_outputs_to_cpu(), strict=True))


class _OrtProfiledSession(_OrtSession, ProfiledSession):
    def __init__(
        self,
        session: ort.InferenceSession,
        graph: Graph,
        nodes: Sequence[onnx.NodeProto],
        folder: tempfile.TemporaryDirectory[str],
    ) -> None:
        super().__init__(session, graph)
        self._graph, self._nodes, self._folder = graph, nodes, folder

    def profile(self, blocks: Sequence[tuple[int, int]]) -> tuple[tuple[EngineNode, ...], Times]:
        events = json.loads(Path(self._session.end_profiling()).read_text())
        durations: dict[str, list[float]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith(_EVENT_SUFFIX):
                durations[event["name"].removesuffix(_EVENT_SUFFIX)].append(float(event["dur"]))
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


def _rename_unnamed(durations: Mapping[str, list[float]], known: set[str]) -> dict[str, list[float]]:
    """Counters of unnamed nodes are called `<type>_<index>`; give them the names `_with_names` gives, in order of index."""
    renamed = {name: series for name, series in durations.items() if name in known}
    seen: Counter[str] = Counter()
    unnamed = [name.rpartition("_") for name in durations if name not in known]
    for op_type, _, index in sorted((u for u in unnamed if u[2].isdigit()), key=lambda u: int(u[2])):
        renamed[f"{op_type}@{seen[op_type]}"] = durations[f"{op_type}_{index}"]
        seen[op_type] += 1
    return renamed


def _with_names(nodes: Sequence[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """Nodes by name; those without one (inlined functions) are called `<type>@<n>`."""
    seen: Counter[str] = Counter()
    named: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        name = node.name
        if not name:
            name = f"{node.op_type}@{seen[node.op_type]}"
            seen[node.op_type] += 1
        named[name] = node
    return named


def map_nodes(graph: Graph, nodes: Sequence[onnx.NodeProto]) -> tuple[EngineNode, ...]:
    """The nodes of an optimised model, in its order, with the operators of `graph` each one runs."""
    info = _with_names(nodes)
    working = {name: node for name, node in info.items() if not _is_reorder(node)}
    named = {name: _named_members(graph, name, node) for name, node in working.items()}
    for name, ops in named.items():  # the operators before a fused activation: its convolution and batch normalisation
        if working[name].op_type in _FUSING_TYPES and not name.endswith("_bn_nchwc"):
            _add_folded_predecessors(graph, working[name], ops, named)
    members = complete_members(graph, named, lambda name, op: _claims(graph, info[name], op))
    source = _original_tensors(graph, working, members)
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
    """The operators a node names: its last one, by its output or name, and where its name is an earlier one, all between."""
    stem = name.removesuffix("_nchwc").removesuffix("_bn")
    last = graph.producer.get(node.output[0]) or graph.by_name.get(stem) or graph.producer.get(stem)
    first = graph.by_name.get(name)
    if last is None:  # part of an inlined function: it feeds a node that is named
        owner = node.output[0].removeprefix("_inlfunc_")
        return [] if owner == node.output[0] else _inlined(graph, node)
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
    """Whether `op` follows `ancestor` within a few operators that each have one input from there."""
    return depth > 0 and any(p is ancestor or _descends(graph, p, ancestor, depth - 1) for p in graph.predecessors(op))


def _inlined(graph: Graph, node: onnx.NodeProto) -> list[str]:
    """The operator whose function body a node was inlined from: a hard-swish that reads the same activation."""
    read = node.input[0]
    return [op.name for op in graph.consumers.get(read, ()) if op.op_type == "HardSwish"][:1]


def _original_tensors(
    graph: Graph, nodes: Mapping[str, onnx.NodeProto], members: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """Engine tensor -> original activation it carries."""
    source: dict[str, str] = {}
    for name, node in nodes.items():
        for output in node.output:
            if output in graph.tensors:
                source[output] = output
            elif members[name]:
                source[output] = graph.by_name[members[name][-1]].outputs[0]
    return source


def _layout(tensor: str) -> str:
    """Layout of an engine tensor: blocked activations lose their names."""
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
    """Whether a node that runs a producer of `op` shows, by an attribute or a fourth input, that it runs `op` too."""
    what = kind(graph, op)
    if what in ACTIVATIONS:
        return bool(_attribute(node, "activation"))
    if what == "add":
        return len(node.input) >= _INPUTS_WITH_SUM and node.op_type in ("Conv", "FusedConv") and bool(node.input[3])
    return False
