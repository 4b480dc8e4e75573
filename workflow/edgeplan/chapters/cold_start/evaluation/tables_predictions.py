"""The table of plans from predicted costs: what planning from them loses."""

from __future__ import annotations

import pandas as pd

from edgeplan.chapters.cold_start.evaluation import metrics
from edgeplan.chapters.cold_start.evaluation.evidence import CACHED, OPTIMAL, ColdEvidence
from edgeplan.chapters.cold_start.evaluation.tables_plans import plans_named
from edgeplan.reporting.kit import NotMeasuredError


def from_predictions(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate what planning from predicted costs loses: its plan under the profiled costs, and executed."""
    predicted, profiled = (plans_named(e, name).set_index("model") for name in ("predicted", OPTIMAL))
    if predicted.empty:
        kept = [note for topic, note in e.notes.items() if topic.partition(".")[0] == "predicted"]
        raise NotMeasuredError("; ".join(dict.fromkeys(kept)) or "no plan was made from predicted costs")
    own = e.runs[e.runs["threads"] == e.threads]
    cold = {name: metrics.own_cold(own, CACHED, name) for name in (OPTIMAL, "predicted")}
    planned, measured = (cold[name]["cold_ms"] for name in (OPTIMAL, "predicted"))
    frame = pd.DataFrame(
        {
            "predicted_makespan_ms": predicted["makespan_ms"],
            "under_profiled_costs_ms": predicted["profiled_makespan_ms"],
            "profiled_makespan_ms": profiled["makespan_ms"],
            "loss_percent": 100 * (predicted["profiled_makespan_ms"] / profiled["makespan_ms"] - 1),
            "measured_ms": measured,
            "profiled_measured_ms": planned,
            "measured_loss_percent": 100 * (measured / planned - 1),
            "runs": metrics.fewest_runs(*cold.values()),
        }
    )
    reasons = _reasons(e, set(predicted.index))
    frame = frame.reindex([m for m in e.names if m in frame.index]).rename_axis("model").reset_index()
    return frame.assign(reason=[reasons.get(model, "") for model in frame["model"]])


def _reasons(e: ColdEvidence, planned: set[str]) -> dict[str, str]:
    """Why a model has no plan from predicted costs: its note, or where only the last one was kept, what the profiles say."""
    left_out = [model for model in e.names if model not in planned]
    kinds = {model: {_step_kind(name) for name in part["name"]} for model, part in e.profiles.groupby("model")}
    known = set().union(*(kinds.get(model, set()) for model in planned))
    reasons = {}
    for model in left_out:
        note = e.notes.get(f"predicted.{model}")
        if note is None and model == left_out[-1]:
            note = e.notes.get("predicted")
        if note is None:
            new = ", ".join(sorted(kinds.get(model, set()) - known)) or "none"
            note = f"its note was not kept; kinds of its steps that no model planned from predictions has: {new}"
        reasons[model] = note
    return reasons


def _step_kind(name: str) -> str:
    """Kind of a step, from its name: an operator's, `resize_88` or, in two parts, `lstm_37:parted`."""
    return name.partition(":")[0].rpartition("_")[0]
