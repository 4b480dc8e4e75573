"""Reads the models of models.parquet and what engines execute of them (a row a node, in order), and measures whole ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

import pandas as pd

from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.devices.config import DeviceFile
from edgeplan.graph.ir import Graph
from edgeplan.graph.nodes import ExecutedModel, ExecutedNode, NodeConfig
from edgeplan.graph.simplify import simplify
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import AnySubject, Measurement
from edgeplan.support.frames import read_parquet
from edgeplan.zoo import FAMILIES, VariantSpec, build_variant

#: What models are for: published networks, variants that calibrate, models as exporters write them, variants that are
#: evaluated and these operator by operator, held-out variants that only report, and the convolutions of Figures 7 and 8, of
#: the comparison with what is fused, and of random sampling.
PRIOR, CALIBRATING, EXPORTED, EVALUATED, OPERATORS = "prior", "calibrating", "exported", "evaluated", "operators"
FROZEN, SWEEP, CONV_CHECK, RANDOM = "frozen", "sweep", "conv_check", "random"
#: Parts that predictors learn from.
LEARNT = (PRIOR, CALIBRATING, EXPORTED)
#: Samplers of measured nodes: what is learnt from, and nodes that only report; others are named as their part.
ADAPTIVE, HELD_OUT = "adaptive", "frozen"
COLUMNS = ("model_id", "family", "part", "name", "config", "times", "context_bytes", "told_by")


def node_rows(model: ExecutedModel, family: str, part: str) -> Iterator[dict[str, object]]:
    """Yield the rows of one model (`COLUMNS`)."""
    for node in model.nodes:
        of_node = (node.name, node.config.to_json(), node.times)
        yield dict(zip(COLUMNS, (model.name, family, part, *of_node, model.context_bytes, model.told_by), strict=True))


def executed_models(nodes: pd.DataFrame, parts: Iterable[str]) -> Mapping[str, ExecutedModel]:
    """Return the models of some parts by `model_id`, in the table's order."""
    read = cache(NodeConfig.from_json)
    found = {}
    for name, rows in nodes[nodes["part"].isin(list(parts))].groupby("model_id", sort=False):
        executed = tuple(
            ExecutedNode(str(own), read(config), times=int(times))
            for own, config, times in zip(rows["name"], rows["config"], rows["times"], strict=True)
        )
        found[str(name)] = ExecutedModel(str(name), executed, int(rows["context_bytes"].iloc[0]), str(rows["told_by"].iloc[0]))
    return found


#: Seconds: repeats closer than this meet the same moment of the machine and say nothing of the next one.
APART_SECONDS = 120.0


def read_models(path: Path, *, bases: bool, variants: bool) -> pd.DataFrame:
    """Read rows of models.parquet: base models (index -1), evaluated variants, or both."""
    table = read_parquet(path, "model_id", "family", "index", "spec", "macs", "memory_bytes")
    return table[((table["index"] < 0) & bases) | ((table["index"] >= 0) & variants)].reset_index(drop=True)


def graphs(table: pd.DataFrame) -> Iterator[Graph]:
    """Yield the graphs of the rows, one at a time, as frameworks see them (see `simplify`)."""
    for family, spec in zip(table["family"], table["spec"], strict=True):
        yield simplify(build_variant(VariantSpec.from_json(spec)) if spec else FAMILIES[family].base())


def open_bench(params: PredictionParams, device: DeviceFile, rows: Path) -> Bench:
    """Open a bench whose blocks of one model lie at least `truth.min_gap_seconds` apart."""
    settings = params.measurement.model_copy(update={"min_gap_seconds": params.truth.min_gap_seconds})
    return Bench(device, settings, rows)


def measure_shuffled(
    bench: Bench, subjects: Sequence[AnySubject], seed: int, repeat: int, description: str
) -> list[Measurement | None]:
    """Measure subjects in a seeded order; return measurements in the subjects' own order, None where time did not suffice.

    A batch is gone through block by block. Family by family, one of small models would be through within seconds, and the
    blocks of a model would meet the same moment of the machine; large models among them keep its blocks apart.
    """
    order = list(range(len(subjects)))
    Random(f"{seed}/truth").shuffle(order)  # noqa: S311  not cryptography
    measured = bench.measure_in_time([subjects[i] for i in order], repeat, description)
    return [m for _, m in sorted(zip(order, measured, strict=True), key=lambda pair: pair[0])]
