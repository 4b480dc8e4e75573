"""Stage `transfer` (Table 11): try predictors of one device on another, beside the rebuilt ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.prediction.evaluation.page import TRANSFERRED
from edgeplan.chapters.prediction.evaluation.tables import TABLES, Evidence
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.reporting.page import ChapterPage, write_chapter, write_table
from edgeplan.reporting.page import table as page_table
from edgeplan.support.frames import read_document, read_parquet

_ABOUT = "Predictors of one device predict models on another, beside the predictors that were built for it (Table 11)."
#: Columns of the evaluated models that are read of both devices.
_PREDICTED = ("model_id", "family", "macs", "predicted_ms")


def transfer(params: PredictionParams, *, source: Path, target: Path, csv: Path, chapter: Path) -> None:
    """Hold the predictions made for one device against the models measured on another, over the models both evaluated.

    Where there is nothing to compare, or the two devices were measured on different machines, the table holds a note.
    `source` and `target` are the folders `evaluation` of the device whose predictors are tried, and of the one that they are
    tried on; `csv` is Table 11, `chapter` where the report finds its page.
    """
    names = params.transfer
    predicted = read_parquet(source / "models.parquet", *_PREDICTED)
    measured = read_parquet(target / "models.parquet", *_PREDICTED, "measured_ms")
    both = measured.merge(predicted, on=["model_id", "family", "macs"], suffixes=("", "_source"))
    frame = pd.DataFrame(
        {
            "family": both["family"],
            "measured_ms": both["measured_ms"],
            "transferred_ms": both["predicted_ms_source"],
            "rebuilt_ms": both["predicted_ms"],
        }
    )
    table = TABLES[TRANSFERRED]
    about = f"Source {names.source}, target {names.target}, {len(frame)} models of both."
    folders = {names.source: source, names.target: target}
    environments = {name: read_document(folder / "environment.json") for name, folder in folders.items()}
    note = different_machines(environments)
    if frame.empty:  # the two devices were evaluated with other params
        note = "the two devices were evaluated on no common model: run both with the same params"
    made = pd.DataFrame({"note": [note]}) if note else table.make(Evidence(device=names.target, transfer=frame))
    text = "; ".join(f"{name} {known.get('measured_at', 'unknown')}" for name, known in environments.items())
    shown = page_table(table.id, table.title, about, made, unfolded=True)
    write_table(shown, made, csv.parent, text)
    page = ChapterPage("transfer", "Predictors of another device", _ABOUT, text, tables=(shown,))
    write_chapter(page, chapter, tables=csv.parent, figures=csv.parent)


def different_machines(environments: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe the fault where devices (environment by name) were measured on different machines, or do not say on which."""
    prints = [about.get("fingerprint") for about in environments.values()]
    if None not in prints and len(set(prints)) == 1:
        return ""
    told = "; ".join(
        f"{name} on {about.get('cpu', 'an unknown processor')}, {about.get('cores', 'unknown')} cores, fingerprint "
        f"{about.get('fingerprint', 'not recorded')}"
        for name, about in environments.items()
    )
    again = " and ".join(f"make reproduce DEVICE={name}" for name in environments)
    return f"no figures, since the two devices were not measured on one machine: {told}. Measure both on one: {again}"
