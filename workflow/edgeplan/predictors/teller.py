"""Asks what is executed of a model on a device: its engine where it is here, else the fusion rules of the device."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from edgeplan.devices.config import DeviceFile
from edgeplan.engines.base import Engine
from edgeplan.errors import DeviceError
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernel_nodes import executed_graph, operators_graph
from edgeplan.graph.nodes import ExecutedModel
from edgeplan.graph.onnx.prepare import Preparation, load_prepared
from edgeplan.graph.onnx.write import seeded
from edgeplan.graph.simplify import simplify
from edgeplan.support.scratch import ScratchFolder

log = logging.getLogger(__name__)


class Teller:
    """Tells the nodes that are executed of models, by rules where the device's engine tells nothing, or is not here."""

    def __init__(self, device: DeviceFile, rules: FusionRules) -> None:
        self.rules = rules
        self.engine: Engine | None = None
        try:
            self.engine = device.load_engine()
        except DeviceError as error:  # no engine, or no driver
            log.info("%s: what is executed is told by fusion rules: %s", device.name, error.what)

    @property
    def reads_files(self) -> bool:
        """Tell whether the engine is asked of files as users have them, nothing prepared."""
        return self.engine is not None and self.engine.reads_files

    def of_graph(self, graph: Graph, *, fused: bool = True) -> ExecutedModel:
        """Tell the nodes of a graph; unless they are fused, each operator by itself."""
        if self.engine is None or not self.engine.reads_files:
            return executed_graph(self.engine, graph, self.rules) if fused else operators_graph(graph)
        with ScratchFolder("told") as folder:
            path = seeded(graph).save_hollow(Path(folder) / "model.onnx")
            return replace(self.engine.executed_file(path, Preparation(), fused=fused), name=graph.name)

    def of_file(self, path: Path, wanted: Preparation) -> ExecutedModel:
        """Tell the nodes of a file."""
        if self.engine is not None and self.engine.reads_files:
            return replace(self.engine.executed_file(path, wanted), name=path.name)
        return replace(self.of_graph(simplify(load_prepared(path, wanted))), name=path.name)
