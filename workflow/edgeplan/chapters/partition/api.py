"""The interface for programs of the chapter on partitions: `edgeplan.plan_partition`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Unpack

from edgeplan.chapters.partition.checked.planning import checked_plan
from edgeplan.chapters.partition.learning.predictors import load_pair_predictors
from edgeplan.chapters.partition.measuring.opened import opened
from edgeplan.chapters.partition.planned import PlannedModel, plan_model, require_own, write_folder
from edgeplan.devices.pairs import load_pair
from edgeplan.graph.onnx.prepare import OpenParts, Preparation, prepare_file
from edgeplan.measurement.lock import machine_lock
from edgeplan.support.files import FilePath
from edgeplan.workspace import workspace
from edgeplan.writable import require_writable


def plan_partition(
    model: FilePath,
    output: FilePath,
    pair: FilePath,
    *,
    costs: Literal["measured", "predicted"] = "measured",
    results: FilePath | None = None,
    **given: Unpack[OpenParts],
) -> PlannedModel:
    """Plan which of two processors runs each operator of a model, whole or split, and write what executes it.

    With measured costs the plan may be one of a single processor, or of the CPU on all cores of the pair: whatever is fastest.

    Args:
        model: ONNX file.
        output: folder to write the plan to.
        pair: name of a pair file, or a path to one.
        costs: "measured": the model's own steps are measured on the pair, and the plan is run beside each processor alone and
            oneDNN on all cores; the fastest of them is the plan (`PlannedModel.check`). "predicted": by the pair's predictors.
        results: with predicted costs, folder of the results with the pair's predictors; without, that of the workspace.
        given: what the file leaves open (`OpenParts`). What had to be prepared is written beside the plan, as `<output>.onnx`.

    Raises:
        ModelError: the file cannot be read or holds what is not known.
        DeviceError: unknown pair, or a processor of it that is not there.
        FormatError: with predicted costs, there are no predictors of the pair, or those of another machine or driver.
        BusyError: another process is measuring on this machine.
        StoreError: the folder cannot be written.
    """
    wanted, out = Preparation.given(**given), Path(output)
    found = load_pair(pair)
    require_writable(out, instead="choose another folder with -o")
    if costs == "measured":
        source = prepare_file(Path(model), wanted, out.with_name(f"{out.name}.onnx"))
        with machine_lock():
            return checked_plan(found, source, out)
    predictors = load_pair_predictors(Path(results or workspace().results) / found.name / "partition" / "predictors", found)
    source = prepare_file(Path(model), wanted, out.with_name(f"{out.name}.onnx"))
    with opened(found) as both:
        require_own(predictors, both)
        planned = plan_model(source, predictors, both.names, both.synchronisation)
        write_folder(planned, both, out)
    return planned
