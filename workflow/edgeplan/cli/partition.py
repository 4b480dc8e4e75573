"""The command `edgeplan plan partition` prints what was planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from edgeplan.chapters.partition import api
from edgeplan.cli.models import BatchOption, SetOption, ShapeOption
from edgeplan.cli.run_pair import check_lines
from edgeplan.errors import ParamsError
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.planning.partition.document import read_costs
from edgeplan.planning.partition.planner import PartitionPlan, compared, partition_document, plan, write_partition_plan
from edgeplan.terminal import escaped, say
from edgeplan.workspace import WorkspaceOption

_LISTED = 60
#: What `--costs` names besides a file.
_FROM = ("measured", "predicted")
_USAGE = "edgeplan plan partition MODEL.onnx --pair PAIR -o FOLDER, or --costs costs.json"


def plan_partition(
    model: Annotated[
        Path | None, typer.Argument(help="ONNX file to plan for a pair of processors; --costs stands in its place.")
    ] = None,
    pair: Annotated[str, typer.Option("--pair", help="Name of a pair of processors, or path of a pair file.")] = "",
    costs: Annotated[
        Path,
        typer.Option(
            help="Source of the costs: `measured`, the model's own steps on the pair; `predicted`, the pair's predictors; or a "
            "JSON document of operators, options and times, see docs/partition-planning.md."
        ),
    ] = Path("measured"),
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder to write the plan of a model to; JSON file for a plan from costs."),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of results with the pair's predictors. Default: the workspace's.")
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(help="Print the times of single processors, equal and fixed ratios, greedy and EOP's algorithms, too."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Plan which of two processors runs each operator, whole or split: of a model on a pair, or from costs."""
    check, engine = None, ""
    if str(costs) not in _FROM:
        if model is not None or pair:
            what = "costs say all that is planned from"
            raise ParamsError(what, where="--costs", next_step="leave it out, or the model and --pair")
        read = read_costs(costs)
        made = plan(read)
        if output is not None:
            write_partition_plan(made, output)
    else:
        if model is None or not pair or output is None:
            lacking = "MODEL.onnx" if model is None else "--pair" if not pair else "--output"
            raise ParamsError(f"{lacking} is missing", where="edgeplan plan partition", next_step=_USAGE)
        planned = api.plan_partition(
            model, output, pair,
            costs="predicted" if str(costs) == "predicted" else "measured",
            results=results, preparation=Preparation.parsed(shape, values, batch),
        )  # fmt: skip
        read, made, check, engine = planned.costs.costs, planned.plan, planned.check, planned.engine
    others = compared(read) if compare else {}
    if as_json:
        told = {} if check is None else {"check": msgspec.to_builtins(check), "engine": engine}
        say(json.dumps({**partition_document(made), **told, **({"compared_ms": others} if compare else {})}, indent=2))
        return
    if engine:
        say(f"{escaped(made.model)}: {engine} answers; the plan for both processors, which is slower:")
    for line in [*_summary(made), *check_lines(check), *_compared_lines(others, made.makespan_ms), "", *longest(made)]:
        say(line)
    if output is not None:
        say(f"written to {output}")


def proof(plan: PartitionPlan) -> str:
    """Say whether the plan is optimal, or how far it may be from the optimum."""
    bound = f"bound {plan.lower_bound_ms:.4g} ms"
    return f"optimal, {bound}" if plan.optimal else f"at most {100 * plan.gap:.2f} % above the optimum, {bound}"


def _summary(plan: PartitionPlan) -> list[str]:
    """List the lines that the command prints of a plan."""
    split = plan.splits
    single = plan.processors[plan.better_single == "gpu"]
    gain = plan.better_single_ms / plan.makespan_ms if plan.makespan_ms else 1.0
    many = split or "do not: none"
    return [
        f"{escaped(plan.model)}: {plan.makespan_ms:.4g} ms predicted",
        f"  proof       {proof(plan)}, for these costs and the admitted splits",
        f"  against     {escaped(single)} alone, the better single processor: {plan.better_single_ms:.4g} ms, x {gain:.2f}",
        f"  split       {many} of {len(plan.steps)} operators; of {plan.admitted_splits} a split gains more than its error",
        f"  planned in  {plan.planning_ms / 1e3:.2f} s",
    ]


def _compared_lines(others: dict[str, float], makespan_ms: float) -> list[str]:
    return [
        f"  {name:<15} {ms:.4g} ms, {ms / makespan_ms if makespan_ms else 1.0:.2f} of the plan" for name, ms in others.items()
    ]


def longest(plan: PartitionPlan) -> list[str]:
    """Return when the longest operators run and where, in the order of the model."""
    by_time = sorted(range(len(plan.steps)), key=lambda k: plan.steps[k].start_ms - _end(plan, k))[:_LISTED]
    lines = []
    for k in sorted(by_time):
        step = plan.steps[k]
        where = f"split, {100 * step.cpu_share:.3g} % cpu" if step.on == "split" else step.on
        why = f"  ({escaped(step.whole_because)})" if step.whole_because else ""
        lines.append(f"  {escaped(step.name):<26} {step.start_ms:9.4f} {_end(plan, k):9.4f}  {where}{why}")
    if (more := len(plan.steps) - len(by_time)) > 0:
        lines.append(f"  and {more} shorter ones, which the plan document lists")
    return lines


def _end(plan: PartitionPlan, k: int) -> float:
    return max(plan.steps[k].cpu_end_ms, plan.steps[k].gpu_end_ms)
