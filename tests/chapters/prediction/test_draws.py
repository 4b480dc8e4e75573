"""What is drawn: the zoo and the convolutions of published models, those of figures, and those of random sampling."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pandas as pd
import pytest
from shipped_params import PARAMS_FILE

from edgeplan.chapters.prediction.stages import zoo
from edgeplan.chapters.prediction.stages.nodes import (
    TABLE5_IN_CHANNELS,
    TABLE5_KERNELS,
    TABLE5_OUT_CHANNELS,
    TABLE5_SIZES,
    TABLE5_STRIDES,
    check_graphs,
    random_graphs,
    sweep_graphs,
)
from edgeplan.chapters.prediction.stages.zoo import ConvShape, conv_shapes
from edgeplan.chapters.prediction.whole_models import graphs, read_models
from edgeplan.chapters.registry import load_params
from edgeplan.errors import ParamsError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.kernels import KernelConfig
from edgeplan.graph.kinds import graph_macs
from edgeplan.graph.simplify import simplify
from edgeplan.zoo import FAMILIES, prior_models


def test_square_convolutions_are_counted() -> None:
    b = GraphBuilder("g", (1, 16, 14, 14))
    x = b.conv(b.conv(b.input, 16, 3), 16, 3)
    graph = b.build(b.conv(b.dwconv(x, 5, 2), 8, (1, 3)))
    assert conv_shapes([graph]) == {ConvShape(14, 16, 16, 3, 1): 2, ConvShape(14, 16, 16, 5, 2, depthwise=True): 1}


def test_random_convolutions_fill_the_sample_space_and_are_the_same_every_time() -> None:
    drawn = list(random_graphs(Random(1), 200))  # noqa: S311
    shapes = [next(iter(conv_shapes([graph]))) for graph in drawn]
    assert {s.kernel for s in shapes} == set(TABLE5_KERNELS)
    assert {s.stride for s in shapes} == set(TABLE5_STRIDES)
    assert {s.size for s in shapes} <= set(TABLE5_SIZES)
    for of, (least, most) in (("in_channels", TABLE5_IN_CHANNELS), ("out_channels", TABLE5_OUT_CHANNELS)):
        values = [getattr(s, of) for s in shapes]
        assert least <= min(values) < 0.1 * most
        assert 0.8 * most < max(values) <= most
    assert all(s.kernel <= s.size for s in shapes)
    assert max(map(graph_macs, drawn)) < 2.1e9  # with those of bn and relu
    assert drawn == list(random_graphs(Random(1), 200))  # noqa: S311


def test_sweeps_vary_one_dimension_and_checks_what_is_fused() -> None:
    sweeps = [graph.name.split("-") for graph in sweep_graphs()]
    for sweep, place in (("kernel_size", 4), ("input_size", 2), ("out_channels", 3)):
        of = [name for name in sweeps if name[0] == sweep]
        assert len({name[place] for name in of}) == len(of) > 4
        assert len({tuple(part for i, part in enumerate(name) if i != place) for name in of}) == 1
    checks = [graph.name.split("-") for graph in check_graphs()]
    of_size = pd.DataFrame({"size": ["-".join(name[:5]) for name in checks], "tail": ["-".join(name[5:]) for name in checks]})
    assert of_size.groupby("size")["tail"].apply(sorted).tolist() == [["bn", "bn-relu", "plain", "relu"]] * 9


def test_the_stage_writes_models_that_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: FAMILIES[name] for name in ("alexnet", "nasbench201")}
    monkeypatch.setattr(zoo, "FAMILIES", few)
    monkeypatch.setattr(zoo, "prior_models", lambda: {"alexnet": prior_models()["alexnet"]})
    params = load_params(PARAMS_FILE)
    params = params.model_copy(update={"zoo": params.zoo.model_copy(update={"variants_per_family": 2})})
    models, prior, costs = (tmp_path / name for name in ("models.parquet", "prior.parquet", "costs.csv"))
    zoo.build_zoo(params, models=models, prior=prior, costs=costs)
    table = read_models(models, bases=True, variants=True)
    assert table.groupby("family")["index"].apply(sorted).to_dict() == {key: [-1, 0, 1] for key in few}
    assert len(read_models(models, bases=False, variants=True)) == 4
    assert [graph_macs(graph) for graph in graphs(table)] == table["macs"].tolist()
    written = pd.read_parquet(prior)
    shapes = conv_shapes([simplify(prior_models()["alexnet"]())])
    assert written["count"].sum() == shapes.total()
    assert {KernelConfig.from_json(text).kernel_h for text in written["config"]} == {s.kernel for s in shapes}
    assert pd.read_csv(costs)["variants"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("section", "line"),
    [("sampling", "selection: disagreement"), ("training", "prior: [dev]"), ("measurement", "least: [dev]")],
)
def test_settings_of_what_is_gone_are_refused_by_name(tmp_path: Path, section: str, line: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS_FILE.read_text().replace(f"\n{section}:\n", f"\n{section}:\n  {line}\n"))
    with pytest.raises(ParamsError) as caught:
        load_params(path)
    assert section in caught.value.what
    assert line.partition(":")[0] in f"{caught.value.what} {caught.value.next_step}"
