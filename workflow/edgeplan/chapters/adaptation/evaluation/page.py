"""Stage `ladder_tables`: make the tables, the figure and the page of the ladder, with its figures of merit."""

from __future__ import annotations

from edgeplan.chapters.adaptation.evaluation.evidence import LadderEvidence, rung_name
from edgeplan.chapters.adaptation.evaluation.figures import FIGURES
from edgeplan.chapters.adaptation.evaluation.metrics import BARS, ladder_metrics
from edgeplan.chapters.adaptation.evaluation.tables import TABLES
from edgeplan.chapters.adaptation.kept import VARIANT
from edgeplan.chapters.adaptation.ladder import ADAPTED, POOLED
from edgeplan.reporting.chapter_report import ChapterReport
from edgeplan.reporting.page import CardOf

_ABOUT = (
    "Predictors of a new device from seconds of measuring: the predictor of an old device, brought to the new one by few "
    "measured kernels and small whole models, beside one that is trained on the same rows alone. Rungs are cut out of kept "
    "rows by the seconds that each row took."
)
_CARDS = (
    CardOf(
        "models within 10 % after a minute, the least pair of devices of one engine", ("adapt.within_10pct_60s",), share=True
    ),
    CardOf("the same after 15 seconds", ("adapt.within_10pct_15s",), share=True),
    CardOf("from scratch, after a minute", ("scratch.within_10pct_60s",), share=True),
)


def findings(evidence: LadderEvidence) -> tuple[str, ...]:
    """Tell what each pair of one engine reaches at each budget, in shares of the variants within 10 %."""
    f = evidence.rungs
    f = f[(f["method"] == ADAPTED) & (f["use"] == VARIANT) & (f["source"] != POOLED)]
    told = []
    for (target, source), pair in f.groupby(["target", "source"], sort=False):
        steps = ", ".join(
            f"{rung_name(b)} s {100 * w:.0f} %" for b, w in zip(pair["budget_s"], pair["within_10pct"], strict=True)
        )
        told.append(f"{target} from {source}: {steps.replace('all s', 'all rows')}.")
    return tuple(told)


LADDER_REPORT = ChapterReport(
    id="adaptation",
    title="A new device in a minute",
    about=_ABOUT,
    headline="ladders",
    unfolded=("ladder",),
    cards=_CARDS,
    bars=BARS,
    tables=TABLES,
    figures=FIGURES,
    metrics=ladder_metrics,
    findings=lambda evidence, *_: findings(evidence),
    grade=lambda _: None,
    evidence=LadderEvidence,
    frames={"ladder": ("target", "source", "method", "budget_s", "seed", "model_id", "use", "measured_ms", "predicted_ms")},
)
#: The stage `ladder_tables`.
write = LADDER_REPORT.write
