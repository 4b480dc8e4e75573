"""Tabulates the ladder and the devices of the chapter."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from edgeplan.chapters.adaptation.evaluation.evidence import LadderEvidence, rung_name
from edgeplan.chapters.adaptation.kept import VARIANT
from edgeplan.chapters.adaptation.ladder import ADAPTED, OLD, SCRATCH
from edgeplan.reporting import kit


def ladder(e: LadderEvidence) -> pd.DataFrame:
    """Tabulate every rung: shares of models (%), adapted beside from scratch."""
    f = e.rungs[e.rungs["method"] != OLD]
    keys = ["target", "budget_s", "use"]
    scratch = f[f["method"] == SCRATCH].set_index(keys)
    rows = f[f["method"] == ADAPTED].join(scratch[["within_10pct", "within_5pct", "inside"]].add_suffix("_scratch"), on=keys)
    return pd.DataFrame(
        {
            "new device": rows["target"],
            "old device": rows["source"],
            "seconds": rows["budget_s"].map(rung_name),
            "models": rows["use"],
            "carriers": rows["carriers"].round(0).astype(int),
            "whole models": rows["whole_models"].round(0).astype(int),
            **{
                f"{title} (%)": 100 * rows[name]
                for title, name in (
                    ("adapted within 10 %", "within_10pct"),
                    ("adapted within 5 %", "within_5pct"),
                    ("adapted inside interval", "inside"),
                    ("scratch within 10 %", "within_10pct_scratch"),
                    ("scratch within 5 %", "within_5pct_scratch"),
                    ("scratch inside interval", "inside_scratch"),
                )
            },
            "draws": rows["draws"],
        }
    )


def devices(e: LadderEvidence) -> pd.DataFrame:
    """Tabulate devices, and how an old one predicts each as it is (% of the variants within 10 %, of the best pair)."""
    f = e.rungs[(e.rungs["method"] == OLD) & (e.rungs["use"] == VARIANT)]
    best = f.groupby("target")["within_10pct"].max()
    rows = [
        {
            "device": name,
            "engine": about["engine"],
            "version": about["engine_version"],
            "processor": about["cpu"],
            "family and model": about["cpu_family_model"],
            "threads": about["threads"],
            "measured": about["measured_at"],
            "old device as it is (%)": 100 * best.get(name, float("nan")),
        }
        for name, about in e.environment["devices"].items()
    ]
    return pd.DataFrame(rows)


#: Every table by id.
TABLES: Mapping[str, kit.TableSpec[LadderEvidence]] = kit.registry(
    kit.TableSpec("ladder", "Models predicted by seconds of measuring", ladder, ("ladder",)),
    kit.TableSpec("ladder_devices", "Devices of the ladder", devices, ("ladder",)),
)
