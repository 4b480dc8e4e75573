"""Runs stock engines beside a plan: what memory they take, and how long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeplan.engines.cold import Artefact
from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.index_limits import index_limits
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.measurement.process.child import prepare_offline
from edgeplan.measurement.process.job import PrepareJob
from edgeplan.measurement.process.stock_memory import StockJob, StockResult
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.workers import ColdRunError, work_apart

MODULE = "edgeplan.measurement.process.stock_memory"
#: What shares are of: ONNX Runtime as it comes.
DEFAULT = "onnxruntime"
_TIMEOUT_SECONDS = 600.0


def peak_bytes(model: Path, processors: tuple[int, ...]) -> int:
    """Measure ONNX Runtime's peak over idle by default, all pages, in bytes.

    Raises:
        ColdRunError: it cannot run the model.
    """
    inputs = inputs_of(model)
    with ScratchFolder("stock") as folder:
        artefact = prepared(DEFAULT, model, inputs, Path(folder), len(processors))
        return run_stock(stock_job(DEFAULT, artefact, inputs, processors, runs=3)).peak_over_idle


@dataclass(frozen=True, slots=True)
class Inputs:
    """Describes a model's inputs: shapes, the types of those not of float32, and what indices among them stay below."""

    shapes: dict[str, tuple[int, ...]]
    types: dict[str, str]
    below: dict[str, int]


def inputs_of(model: Path) -> Inputs:
    """Return random inputs of a model.

    Raises:
        ModelError: it cannot be read.
    """
    graph = load_onnx(model)
    types = {name: graph.tensors[name].dtype for name in graph.inputs}
    return Inputs(
        {name: graph.shape(name) for name in graph.inputs},
        {name: dtype for name, dtype in types.items() if dtype != FLOAT32},
        dict(index_limits(graph)),
    )


def prepared(setting: str, model: Path, inputs: Inputs, folder: Path, threads: int) -> Artefact:
    """Prepare the artefact that a setting loads for a model.

    Raises:
        ColdRunError: the setting cannot run it; its reason is in the message.
    """
    found = prepare_offline(PrepareJob(setting=setting, threads=threads, model=model, inputs=inputs.shapes, folder=folder))
    if found.artefact is None:
        raise ColdRunError(f"{setting} cannot run the model: {found.reason}", where=str(model), next_step="leave it out")
    return found.artefact


def stock_job(
    setting: str,
    artefact: Artefact,
    inputs: Inputs,
    processors: tuple[int, ...],
    runs: int,
    gate: str = "",
    patience_seconds: float = 0.0,
) -> StockJob:
    """Return a job that runs a model by a setting, on the processors that a plan computes on."""
    return StockJob(
        setting=setting, artefact=artefact, inputs=inputs.shapes, types=inputs.types, below=inputs.below,
        threads=len(processors), processors=processors, runs=runs, gate=gate, patience_seconds=patience_seconds,
    )  # fmt: skip


def run_stock(job: StockJob) -> StockResult:
    """Run the job of a stock engine in a process of its own.

    Raises:
        ColdRunError: the process failed.
    """
    return work_apart(MODULE, job, StockResult, job.setting, _TIMEOUT_SECONDS)
