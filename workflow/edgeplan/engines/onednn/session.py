"""Runs models by the package's own runtime on oneDNN, as an engine like the others: f32, the likely fastest kernels.

The option `layout` of a device file fixes the home layout of activations: `nhwc` (the default), `blocked16` or `nchw`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeplan.engines.base import Array, Engine, EngineNode, EngineSettings, ProfiledSession, Session, Times, random_inputs
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Graph
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES, NHWC
from edgeplan.runtime.library import open_library
from edgeplan.runtime.loops import DONE
from edgeplan.runtime.program import Program, default_program
from edgeplan.runtime.session import SequentialSession

_NS_PER_US = 1000.0


class Onednn(Engine):
    """This engine calls oneDNN through its C API."""

    name = "onednn"
    reports_nodes = True
    counts_copies = True

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._dnnl = Dnnl()  # raises where the library, which is no Python module, is missing

    @classmethod
    def version(cls) -> str:
        return open_library()[1].version

    def load(self, model: Path, graph: Graph) -> Session:
        return _DnnlSession(self._sequential(model, graph), graph)

    def load_profiled(self, model: Path, graph: Graph) -> ProfiledSession:
        return _DnnlProfiledSession(self._sequential(model, graph), graph)

    def _sequential(self, model: Path, graph: Graph) -> SequentialSession:
        options = dict(self.settings.options)
        home = options.pop("layout", NHWC)
        if options or home not in HOMES:
            raise DeviceError(
                f"unknown options of engine 'onednn': {dict(self.settings.options)}",
                where="the device file, field options",
                next_step=f"the only option is layout, one of {', '.join(HOMES)}",
            )
        program = default_program(self._dnnl, model, graph, home, threads=self.settings.threads)
        return SequentialSession(self._dnnl, program, model.parent, self.settings.threads)


class _DnnlSession(Session):
    def __init__(self, session: SequentialSession, graph: Graph) -> None:
        self._session = session
        self._inputs = random_inputs(graph)

    def run(self) -> None:
        self._session.executable.bind(self._inputs)
        self._session.execute()

    def outputs(self) -> Mapping[str, Array]:
        return self._session.executable.outputs()


class _DnnlProfiledSession(_DnnlSession, ProfiledSession):
    """This session times every C call of an inference."""

    def __init__(self, session: SequentialSession, graph: Graph) -> None:
        super().__init__(session, graph)
        self._nodes, self._columns = _nodes(session.program, session.steps.converts)
        self._loop = session.steps.calls.by_call()
        self._runs: list[np.ndarray[Any, Any]] = []

    def run(self) -> None:
        session, loop = self._session, self._loop
        session.executable.bind(self._inputs)
        session.worker.dnnl.set_threads(session.threads)
        if loop.run(0, len(self._columns)) != DONE:
            session.worker.dnnl.check_execution(loop.status)
        self._runs.append(np.array(loop.times, np.int64))

    def profile(self, blocks: Sequence[tuple[int, int]]) -> tuple[tuple[EngineNode, ...], Times]:
        runs = np.array(self._runs, dtype=np.int64).reshape(len(self._runs), len(self._columns), 2)  # also without a run
        spans = (runs[:, :, 1] - runs[:, :, 0]) / _NS_PER_US
        times = np.zeros((len(blocks), len(self._nodes)))
        for row, (start, stop) in enumerate(blocks):
            typical = np.median(spans[start:stop], axis=0)
            np.add.at(times[row], self._columns, typical)
        return self._nodes, times


def _nodes(program: Program, converts: Sequence[Sequence[str]]) -> tuple[tuple[EngineNode, ...], list[int]]:
    """Return the executed nodes, and for each C call the node it belongs to.

    A step whose own work is one primitive or several (a split) is one node; each conversion around it is a node of its own.
    """
    nodes: list[EngineNode] = []
    columns: list[int] = []
    for step, choice, converted in zip(program.steps, program.choices, converts, strict=True):
        given = choice.variant.source if choice.kernel != "reorder" else program.home
        written = choice.variant.output if choice.kernel != "reorder" else program.home
        moving = bool(step.members) and step.kind in ("split", "transpose", "reshape")  # its purpose is to move values
        own = -1
        for call, tensor in enumerate(converted):
            if tensor and not moving:
                before = after = program.layouts[tensor]
                if tensor in step.outputs:
                    before = written
                else:
                    after = given if tensor in step.inputs else written  # else a sum's, in the buffer of the result
                nodes.append(EngineNode(f"{step.name}/reorder_{call}", "Reorder", "reorder", (), tensor, before, after))
                columns.append(len(nodes) - 1)
                continue
            if own < 0:
                implementation = f"{step.kind}.{choice.kernel}"
                nodes.append(EngineNode(step.name, step.kind, implementation, step.members, "", given, written))
                own = len(nodes) - 1
            columns.append(own)
    return tuple(nodes), columns
