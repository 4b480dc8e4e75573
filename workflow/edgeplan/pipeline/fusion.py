"""Stage `fusion`: what the engine of a device fuses, found by timing alone, and held against the engine's own report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from edgeplan.devices.config import load_device
from edgeplan.devices.engines.base import Engine, EngineNode
from edgeplan.frames import write_csv
from edgeplan.fusion.detection import detect
from edgeplan.fusion.rules import Provenance
from edgeplan.fusion.verification import COLUMNS as VERIFICATION_COLUMNS
from edgeplan.fusion.verification import verify
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx_export import save_onnx
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.params import Params
from edgeplan.pipeline.models import graphs, read_models


def executed_nodes(engine: Engine, graph: Graph) -> tuple[EngineNode, ...]:
    """The nodes an engine runs for a graph."""
    with tempfile.TemporaryDirectory(prefix="edgeplan-verify-") as folder:
        return engine.executed(save_onnx(graph, Path(folder) / "model.onnx"), graph)


def detect_fusion(
    params: Params, *, device: Path, models: Path, rows: Path, rules: Path, test_cases: Path, verification: Path
) -> None:
    """Detect the rules, write them with their test cases, and verify them over the whole zoo.

    The verification covers every base model and every evaluated variant; a black-box engine leaves it empty.
    """
    file = load_device(device)
    with Bench(file, params.measurement, rows) as bench:

        def measure(subjects: Sequence[Graph], repeat: int) -> list[Measurement]:
            return bench.measure([Subject(g) for g in subjects], repeat=repeat, description="fusion test cases")

        provenance = Provenance(
            device=file.name,
            engine=file.engine,
            version=str(bench.store.identity["engine_version"]),
            alpha=params.fusion.alpha,
            date=time.strftime("%Y-%m-%d", time.gmtime(bench.last_measured_at())),
            measurements=bench.store.key,
        )
        found, cases = detect(measure, params.fusion, provenance)
    found.write(rules)
    write_csv(cases, test_cases)
    engine = file.load_engine()
    if engine.reports_nodes:
        table = read_models(models, bases=True, variants=True)
        frame = verify(found, graphs(table), lambda graph: executed_nodes(engine, graph))
    else:
        frame = pd.DataFrame(columns=list(VERIFICATION_COLUMNS))
    write_csv(frame, verification)
