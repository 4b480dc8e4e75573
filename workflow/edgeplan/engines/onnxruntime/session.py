"""Runs and times models by ONNX Runtime on the CPU."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import onnxruntime as ort

from edgeplan.engines.base import Array, Engine, EngineNode, ProfiledSession, Session, Times, random_inputs
from edgeplan.engines.onnxruntime.copies import copies_model
from edgeplan.engines.onnxruntime.executed import cannot_run, executed_model, inputs_of
from edgeplan.engines.onnxruntime.nodes import map_nodes
from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.nodes import ExecutedModel, NodeConfig
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.support.scratch import ScratchFolder

_PROVIDERS = ["CPUExecutionProvider"]
_ERRORS_ONLY, _FATAL_ONLY = 3, 4
_LONGEST = 300
_EVENT_SUFFIX = "_kernel_time"


class OnnxRuntime(Engine):
    """This engine is ONNX Runtime with its CPU execution provider, f32."""

    name = "onnxruntime"
    reports_nodes = True
    reads_files = True

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
        session = ort.InferenceSession(str(model), self._options(), providers=_PROVIDERS)
        return _OrtSession(session, random_inputs(graph))

    def executed_file(self, path: Path, wanted: Preparation, *, fused: bool = True) -> ExecutedModel:
        return executed_model(path, self.settings.options, wanted, threads=self.settings.threads, fused=fused)

    def load_file(self, path: Path, wanted: Preparation) -> Session:
        try:
            session = ort.InferenceSession(str(path), self._options(), providers=_PROVIDERS)
            try:
                loaded = _OrtSession(session, inputs_of(path, wanted, 2))
                loaded.run()
            except Exception:  # noqa: BLE001  of an axis of one there is no place 1
                loaded = _OrtSession(session, inputs_of(path, wanted, 1))
                loaded.run()
        except ModelError:
            raise
        except Exception as error:  # the library raises what it likes
            raise cannot_run(error, str(path)) from error
        return loaded

    def load_copies(self, config: NodeConfig, copies: int) -> Session:
        options = self._options()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = _FATAL_ONLY  # what is refused is told by the error
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
        self,
        session: ort.InferenceSession,
        inputs: Mapping[str, Array],
        weights: Mapping[str, Array] = MappingProxyType({}),
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
        self,
        session: ort.InferenceSession,
        graph: Graph,
        nodes: Sequence[onnx.NodeProto],
        folder: ScratchFolder,
    ) -> None:
        super().__init__(session, random_inputs(graph))
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
