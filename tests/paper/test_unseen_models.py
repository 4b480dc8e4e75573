"""The held-out architectures against published figures, and kept apart from all that predictors learn from."""

from __future__ import annotations

import ast
from pathlib import Path

import onnx
import pytest

from edgeplan.graph.kinds import graph_macs, graph_parameters
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx, weight_bytes
from edgeplan.zoo import FAMILIES, prior_models
from edgeplan.zoo.cold_start_models import COLD_START_MODELS
from edgeplan.zoo.unseen import UNSEEN

PACKAGE = Path(__file__).parents[2] / "workflow/edgeplan"

# Multiply-adds in M and parameters in thousands, as printed; None where the source states none to two digits.
_PUBLISHED: dict[str, tuple[float | None, float | None]] = {
    # Han et al., 2015, tables 1 and 4: 431 K weights, 4586 K operations.
    "lenet5": (2.293, 431),
    # Ciresan et al., 2010, table 1: 12.11 M weights.
    "ciresan_mlp": (12.11, 12_110),
    # Sainath and Parada, 2015, table 1: 9.7 M multiplies, 244.2 K parameters.
    "keyword_cnn": (9.7, 244.2),
    # Bojarski et al., 2016: about 27 million connections, 250 thousand parameters.
    "pilotnet": (27, 250),
    # The paper states neither.
    "zfnet": (None, None),
    # Sermanet et al., 2014, table 4: 2810 M connections, 145 M parameters.
    "overfeat_fast": (2810, 145_000),
    # The paper states neither.
    "eigen_depth": (None, None),
    # The authors' Caffe model; the paper states neither.
    "nin_cifar10": (None, 966.986),
    # Counted by hand from table 2, biases included; the paper rounds to "1.3 M" and "1.4 M".
    "all_cnn_c": (None, 1369.738),
    # Zagoruyko and Komodakis, 2016, table 4: 8.9 M parameters.
    "wrn_40_4": (None, 8900),
    # Redmon and Farhadi, 2017: 5.58 billion operations, two a multiply-add. The same source for the next: 6.97.
    "darknet19": (2790, None),
    "tiny_yolov2": (3485, None),
    # The authors' page on YOLOv3: 5.56 billion operations.
    "yolov3_tiny": (2780, None),
    # torchvision: 5.71 G for 299 x 299; its parameters without those of the auxiliary classifier.
    "inception_v3": (5710, 23_834.568),
    # Chollet, 2017, table 3: 22,855,952 parameters. Multiply-adds: 8.4 G in the slim model library.
    "xception": (8400, 22_855.952),
    # Xie et al., 2017, table 1: 25.0 M parameters, 4.2 G (of which two digits); torchvision: 4.23 G, 25,028,904.
    "resnext50": (4230, 25_028.904),
    # Hu et al., 2018, tables 1 and 2: 3.87 G; 28.1 M parameters.
    "se_resnet50": (3870, 28_100),
    # The authors' repository: 3.5 M parameters; its 0.44 G are 2.4 % above what its model has by this count.
    "hardnet39ds": (None, 3500),
    # Wang et al., 2018: 508 M, 2.80 M.
    "peleenet": (508, 2800),
    # Han et al., 2020, table 7: 141 M, 5.2 M.
    "ghostnet": (141, 5200),
    # Vasu et al., 2023, table 9: 825 M, 4.8 M.
    "mobileone_s1": (825, 4800),
    # Ding et al., 2021, table 4: 8.30 M parameters; its 1.4 G has two digits.
    "repvgg_a0": (None, 8300),
    # Gholami et al., 2018, table 2: 282 M, 0.72 M.
    "squeezenext23": (282, 720),
    # Dong et al., 2016, section 4.3: 57,184 weights, each used at every pixel.
    "srcnn": (57.184e-3 * 256 * 256, 57.184),
    # The paper states neither.
    "espcn": (None, None),
}


def test_every_architecture_has_its_published_figures_or_says_that_there_are_none() -> None:
    assert set(_PUBLISHED) == set(UNSEEN)
    assert sum(figures != (None, None) for figures in _PUBLISHED.values()) >= 20


@pytest.mark.parametrize("name", UNSEEN)
def test_published_multiply_adds_and_parameters(name: str) -> None:
    macs_m, parameters_k = _PUBLISHED[name]
    graph = UNSEEN[name](name)
    assert graph.name == name
    assert all(graph.shape(output)[0] == 1 for output in graph.outputs)
    if macs_m is not None:
        assert graph_macs(graph) / 1e6 == pytest.approx(macs_m, rel=0.01)
    if parameters_k is not None:
        assert graph_parameters(graph) / 1e3 == pytest.approx(parameters_k, rel=0.01)


def test_the_list_is_of_other_families_than_the_zoo() -> None:
    known = {*FAMILIES, *(family.base_name for family in FAMILIES.values()), *prior_models(), *COLD_START_MODELS}
    assert not known & set(UNSEEN)
    costs = {(graph_macs(g), graph_parameters(g)) for g in (build() for build in prior_models().values())}
    assert not costs & {(graph_macs(g), graph_parameters(g)) for g in (build(name) for name, build in UNSEEN.items())}


def test_the_list_holds_what_the_zoo_lacks() -> None:
    graphs = [build(name) for name, build in UNSEEN.items()]
    assert len(graphs) >= 22
    gemms = [g.shape(op.weights[0]) for g in graphs for op in g.operators if op.op_type == "Gemm"]
    assert sum(outputs >= 3000 and inputs >= 9000 for outputs, inputs in gemms) >= 3, "wide layers on flattened images"
    convs = [(g, op) for g in graphs for op in g.operators if op.op_type == "Conv"]
    narrow = [
        g.name
        for g, op in convs
        if g.shape(op.weights[0])[2:] == (5, 5) and max(g.shape(op.weights[0])[:2]) <= 64 and g.shape(op.outputs[0])[2] >= 50
    ]
    assert len(set(narrow)) >= 3, "5 x 5 convolutions of few channels at high resolution"
    assert {"LeakyRelu", "Tanh", "Resize", "LRN", "Softmax"} <= {op.op_type for g in graphs for op in g.operators}


@pytest.mark.texts
def test_only_their_own_evaluation_reads_the_list() -> None:
    """What trains, samples, calibrates or draws variants must not even import it."""
    reading = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.startswith("edgeplan.zoo.unseen") for name in named):
                reading.add(path.relative_to(PACKAGE).as_posix())
    assert reading <= {
        "chapters/prediction/stages/unseen.py",
        "workloads/registry.py",  # which no stage of that chapter reads: test_workload_counts.py
    }


@pytest.mark.parametrize("name", UNSEEN)
def test_architecture_survives_the_way_through_an_onnx_file(name: str, tmp_path: Path) -> None:
    graph = UNSEEN[name](name)
    if weight_bytes(graph) > 100_000_000:
        pytest.skip("a file of hundreds of megabytes")
    save_onnx(graph, tmp_path / "model.onnx", seed=0)
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    loaded = load_onnx(tmp_path / "model.onnx")
    assert (graph_macs(loaded), graph_parameters(loaded)) == (graph_macs(graph), graph_parameters(graph))
    assert [loaded.shape(output) for output in loaded.outputs] == [graph.shape(output) for output in graph.outputs]
