"""Reads the models of models.parquet as graphs, and as tables of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from edgeplan.graph.ir import Graph
from edgeplan.graph.simplify import simplify
from edgeplan.support.frames import read_parquet
from edgeplan.zoo import FAMILIES, VariantSpec, build_variant


def read_models(path: Path, *, bases: bool, variants: bool) -> pd.DataFrame:
    """Read rows of models.parquet: base models (index -1), evaluated variants, or both."""
    table = read_parquet(path, "model_id", "family", "index", "spec", "macs", "memory_bytes")
    return table[((table["index"] < 0) & bases) | ((table["index"] >= 0) & variants)].reset_index(drop=True)


def graphs(table: pd.DataFrame) -> Iterator[Graph]:
    """Yield the graphs of the rows, one at a time, as frameworks see them (see `simplify`)."""
    for family, spec in zip(table["family"], table["spec"], strict=True):
        yield simplify(build_variant(VariantSpec.from_json(spec)) if spec else FAMILIES[family].base())
