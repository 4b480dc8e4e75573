"""The answer to "should I split?" of every measured pair: the page of the docs says what its figures and its table say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from edgeplan.chapters.partition.settings import ALL_CORES, PLANNED
from edgeplan.engines.registry import SETTINGS

ROOT = Path(__file__).parents[2]
PAIRS = yaml.safe_load((ROOT / "params.yaml").read_text())["partition"]["checked_pairs"]


def _row(pair: str) -> list[str]:
    """The cells of a pair in the table of docs/partition.md."""
    text = (ROOT / "docs/partition.md").read_text()
    (line,) = re.findall(rf"^\| `{pair}` \|.*\|$", text, re.MULTILINE)
    return [cell.strip() for cell in line.strip("|").split("|")]


def _table(pair: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / f"results/{pair}/partition/checked/tables/partition_checked.csv").set_index("model")


@pytest.mark.parametrize("pair", PAIRS)
def test_the_docs_answer_as_the_figures_do(pair: str) -> None:
    figures = json.loads((ROOT / f"results/{pair}/metrics.json").read_text())
    _, most, over, _, wins = _row(pair)
    assert most == f"{figures['partition.most_gain']:.2f}"
    name = "partition.speedup_over_best"
    assert over == f"{figures[name]:.2f} ({figures[f'{name}.low']:.2f} to {figures[f'{name}.high']:.2f})"
    table = _table(pair)
    counts = {
        "the plan for both": (table["way"] == PLANNED).sum(),
        "all cores": table["way"].str.startswith(ALL_CORES).sum(),
        "the GPU": (table["way"] == "gpu").sum(),
        "the CPU": (table["way"] == "cpu").sum(),
        "stock engines": table["way"].isin([*SETTINGS]).sum(),
    }
    told = {who: int(count) for who, count in re.findall(r"([a-zA-Z ]+?) on (\d+)", wins)}
    assert {who.strip(): count for who, count in told.items()} == {who: count for who, count in counts.items() if count}
    assert f"of {len(table)}" in wins, "models"
    assert sum(told.values()) == len(table)
