"""Stage `nodes`: ask a device's engine what it executes of every model that is learnt from or evaluated; nothing is timed."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import pandas as pd

from edgeplan.chapters.prediction import whole_models
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.chapters.prediction.stages.calibration import calibrating_models
from edgeplan.chapters.prediction.whole_models import COLUMNS, graphs, node_rows, read_models
from edgeplan.devices.config import load_device
from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.graph.ir import Graph
from edgeplan.graph.nodes import ExecutedModel
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.graph.simplify import simplify
from edgeplan.predictors.teller import Teller
from edgeplan.support import cpus
from edgeplan.support.frames import write_parquet
from edgeplan.support.scratch import ScratchFolder
from edgeplan.workloads.exports import export_models
from edgeplan.zoo import FAMILIES, build_variant, prior_models, variants

#: Table 5 of the paper: the sample space of Conv++bn++relu.
TABLE5_SIZES = (224, 112, 56, 32, 28, 27, 14, 13, 8, 7, 1)
TABLE5_KERNELS = (1, 3, 5, 7, 9)
TABLE5_STRIDES = (1, 2, 4)
TABLE5_IN_CHANNELS = (3, 2160)
TABLE5_OUT_CHANNELS = (16, 2048)
_OUT_CHANNELS = range(16, 97)
_MOST_RANDOM_MACS = 2_000_000_000
#: (channels, size, kernel) at which Conv, Conv++bn and Conv++bn++relu are compared; the first is the paper's (section 6).
_CHECKED = (
    *((32, 56, 1), (32, 56, 3), (64, 56, 3), (30, 56, 3)),
    *((64, 28, 3), (66, 28, 3), (128, 28, 1), (256, 14, 3), (512, 7, 3)),
)


def _graph(sweep: str, channels: int, size: int, out: int, kernel: int, tail: str = "bn relu") -> Graph:
    """Build a model of one convolution behind a pointwise one; an image is read directly, as a stem reads it."""
    b = GraphBuilder(f"{sweep}-{channels}-{size}-{out}-{kernel}-{tail or 'plain'}".replace(" ", "-"), (1, channels, size, size))
    x = b.input if channels <= 3 else b.conv_bn(b.input, channels, 1)  # an image
    x = b.conv(x, out, kernel)
    x = b.bn(x) if "bn" in tail else x
    x = b.relu(x) if "relu" in tail else x
    return b.build(b.maxpool(x, 3, 1, 1) if size > 2 else x)


def sweep_graphs() -> Iterator[Graph]:
    """Yield the models of the sweeps of Figures 7 and 8."""
    for kernel in TABLE5_KERNELS:
        yield _graph("kernel_size", 3, 224, 32, kernel)
    for size in TABLE5_SIZES:
        yield _graph("input_size", 64, size, 64, 3)
    for out in _OUT_CHANNELS:
        yield _graph("out_channels", 32, 112, out, 3)


def check_graphs() -> Iterator[Graph]:
    """Yield the models of the comparison of Conv with what is fused behind it."""
    for channels, size, kernel in _CHECKED:
        for tail in ("", "bn", "relu", "bn relu"):
            yield _graph("check", channels, size, channels, kernel, tail)


def random_graphs(rng: Random, count: int) -> Iterator[Graph]:
    """Yield models of one convolution drawn uniformly from the sample space of Table 5: the paper's random sampling."""
    for number in range(count):
        while True:
            size, kernel, stride = rng.choice(TABLE5_SIZES), rng.choice(TABLE5_KERNELS), rng.choice(TABLE5_STRIDES)
            channels, out = rng.randint(*TABLE5_IN_CHANNELS), rng.randint(*TABLE5_OUT_CHANNELS)
            if (-(-size // stride)) ** 2 * channels * out * kernel**2 <= _MOST_RANDOM_MACS and kernel <= size:
                break
        b = GraphBuilder(f"random-{number}", (1, channels, size, size))
        yield b.build(b.relu(b.bn(b.conv(b.input, out, kernel, stride))))


log = logging.getLogger(__name__)
_BATCH = 16


@dataclass(frozen=True)
class _Asked:
    """Something to tell the nodes of: a graph, or a file of the scratch folder."""

    name: str
    family: str
    part: str
    model: Graph | Path


def tell_nodes(params: PredictionParams, *, device: Path, models: Path, rules: Path, nodes: Path) -> None:
    """Write a row for each node of each model (`executed.COLUMNS`).

    A device on another machine is asked through the engine of the same name here; where there is none, and where an engine
    tells nothing, the fusion rules decide.
    """
    file, known = load_device(device), read_rules(rules)
    teller = Teller(file, known)
    with ScratchFolder("nodes") as folder:
        asked = _asked(params, read_models(models, bases=False, variants=True), teller, Path(folder))
        rows: list[dict[str, object]] = []
        with ThreadPoolExecutor(cpus.workers()) as pool:
            while batch := list(itertools.islice(asked, _BATCH)):  # a few at a time: they hold files and graphs
                for one, found in zip(batch, pool.map(partial(_told, teller), batch), strict=True):
                    rows += node_rows(found, one.family, one.part) if found else ()
    write_parquet(pd.DataFrame(rows, columns=list(COLUMNS)), nodes)


def _told(teller: Teller, asked: _Asked) -> ExecutedModel | None:
    """Tell the nodes of one of many models; None of a file that cannot be read."""
    try:
        if isinstance(asked.model, Graph):
            found = teller.of_graph(asked.model, fused=asked.part != whole_models.OPERATORS)
        else:
            found = teller.of_file(asked.model, Preparation())
        return replace(found, name=asked.name)
    except ModelError as error:
        log.info("%s is left out: %s", asked.name, error.what)
        return None
    finally:
        if isinstance(asked.model, Path):
            asked.model.unlink()


def _asked(params: PredictionParams, evaluated: pd.DataFrame, teller: Teller, folder: Path) -> Iterator[_Asked]:
    for name, build in prior_models().items():
        graph = simplify(build())
        yield _Asked(name, name, whole_models.PRIOR, graph)
        yield _Asked(f"{name}-operators", name, whole_models.OPERATORS, graph)
    calibrating = calibrating_models(params)
    yield from _variants(calibrating, whole_models.CALIBRATING)
    yield from _variants(evaluated, whole_models.EVALUATED)
    yield from _variants(evaluated.assign(model_id=evaluated["model_id"] + "-operators"), whole_models.OPERATORS)
    taken = {*evaluated["spec"], *calibrating["spec"]}
    for family in FAMILIES.values():
        drawn = variants(family, params.sampling.frozen_variants, params.zoo.seed + 1)
        for spec in (s for s in drawn if s.to_json() not in taken):
            graph = simplify(build_variant(spec))
            yield _Asked(f"{family.id}-frozen-{spec.index:05d}", family.id, whole_models.FROZEN, graph)
    for part, of_part in (
        (whole_models.SWEEP, sweep_graphs()),
        (whole_models.CONV_CHECK, check_graphs()),
        (whole_models.RANDOM, random_graphs(Random(f"{params.seed}/random"), params.sampling.random_kernels)),  # noqa: S311
    ):
        yield from (_Asked(graph.name, part, part, graph) for graph in of_part)
    for model in export_models(params.seed, params.sampling.exports_per_family):
        if teller.reads_files or model.elements == "float32":
            path = model.write(folder / f"{model.name}.onnx")
            yield _Asked(model.name, model.family, whole_models.EXPORTED, path)


def _variants(table: pd.DataFrame, part: str) -> Iterable[_Asked]:
    names = zip(table["model_id"], table["family"], graphs(table), strict=True)
    return (_Asked(name, family, part, graph) for name, family, graph in names)
