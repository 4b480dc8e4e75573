"""ONNX Runtime on the CPU.

Its blocked (NCHWc) nodes are named after the last operator fused before blocking (`<output>_nchwc`); sums and activations fused
later show as a fourth input or an attribute only, and its activations become `reorder_token_N`.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
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
        times = np.zeros((len(blocks), len(nodes)))
        for column, node in enumerate(nodes):
            # durations are whole microseconds: the mean of the faster half has a finer grain than the minimum
            series = durations.get(node.name, [])
            for row, (start, stop) in enumerate(blocks):
                fast = np.sort(series[start:stop])[: max(1, (stop - start + 1) // 2)]
                times[row, column] = fast.mean() if len(fast) else 0.0
        return nodes, times

    def close(self) -> None:
        self._folder.cleanup()


def map_nodes(graph: Graph, nodes: Sequence[onnx.NodeProto]) -> tuple[EngineNode, ...]:
    """The nodes of an optimised model, in its order, with the operators of `graph` each one runs."""
    info: dict[str, onnx.NodeProto] = {n.name: n for n in nodes}
    source: dict[str, str] = {}  # engine tensor -> original activation it carries
    named: dict[str, list[str]] = {}
    for node in nodes:
        if _is_reorder(node):
            continue
        name = node.name.removesuffix("_nchwc").removesuffix("_bn")
        written = node.output[0] if node.output[0] in graph.producer else name
        last = graph.producer.get(written) or graph.by_name.get(name)
        named[node.name] = [last.name] if last else []

    def claims(node_name: str, op: Operator) -> bool:
        return _claims(graph, info[node_name], op)

    for node_name, ops in named.items():  # the operators before a fused activation: its convolution and batch normalisation
        if info[node_name].op_type in _FUSING_TYPES and not node_name.endswith("_bn_nchwc"):
            _add_folded_predecessors(graph, ops, named)
    members = complete_members(graph, named, claims)
    for node in nodes:
        if not _is_reorder(node):
            last_members = members[node.name]
            for output in node.output:
                if output in graph.tensors:
                    source[output] = output
                elif last_members:
                    source[output] = graph.by_name[last_members[-1]].outputs[0]
    found = []
    for node in nodes:
        if _is_reorder(node):
            tensor = node.input[0] if node.op_type == "ReorderInput" else node.output[0]
            tensor = source.get(tensor, tensor)
            layouts = ("nchw", "nchwc") if node.op_type == "ReorderInput" else ("nchwc", "nchw")
            source.setdefault(node.output[0], tensor)
            found.append(EngineNode(node.name, node.op_type, node.op_type, (), tensor, *layouts))
            continue
        reads, layout = _layout(node.input[0]), _layout(node.output[0])
        implementation = f"{node.op_type}.{layout}"
        found.append(EngineNode(node.name, node.op_type, implementation, members[node.name], "", reads, layout))
    return tuple(found)


def _layout(tensor: str) -> str:
    """Layout of an engine tensor: blocked activations lose their names."""
    return "nchwc" if tensor.startswith("reorder_token_") else "nchw"


def _is_reorder(node: onnx.NodeProto) -> bool:
    return node.domain == _BLOCKED_DOMAIN and node.op_type in ("ReorderInput", "ReorderOutput")


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def _add_folded_predecessors(graph: Graph, ops: list[str], named: Mapping[str, list[str]]) -> None:
    """Walk back from an activation or batch normalisation to the convolution that absorbed it, unless another node runs that."""
    taken = {op for others in named.values() if others is not ops for op in others}
    while ops:
        first = graph.by_name[ops[0]]
        before = graph.predecessors(first)
        what = kind(graph, first)
        if len(before) != 1 or before[0].name in taken or not (what in ACTIVATIONS or what == "bn"):
            return
        if kind(graph, before[0]) not in ("conv", "dwconv", "fc", "bn"):
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
