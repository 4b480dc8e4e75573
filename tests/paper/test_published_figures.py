"""What papers print: multiply-adds and parameters of models, by shapes alone; tables and algorithms, worked out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean

import onnx
import pytest

from counts import macs, parameters
from depth import by_day
from edgeplan.chapters.cold_start.paper import TABLE2
from edgeplan.chapters.cold_start.planners.nnv12 import balanced, nnv12
from edgeplan.chapters.cold_start.planners.registry import outcomes
from edgeplan.chapters.prediction.paper import printed
from edgeplan.chapters.registry import STAGES
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import split_kernels
from edgeplan.graph.kinds import graph_macs, graph_parameters
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx, weight_bytes
from edgeplan.planning.machine import MAIN, cost_arrays
from edgeplan.planning.profile import Candidate, Layer, Profile, narrowed, pareto
from edgeplan.profiling.frame import remaining_table
from edgeplan.support.sources import PACKAGE, imported
from edgeplan.workloads.exported import Exported
from edgeplan.workloads.registry import WORKLOADS, recurrent_language_model
from edgeplan.workloads.sequences import bert, gpt2
from edgeplan.zoo import FAMILIES, build_variant, prior_models, variants
from edgeplan.zoo.cold_start_models import COLD_START_MODELS, TABLE4, crnn_lite, mobilenet_yolo, mobilenetv2_yolov3, shufflenet
from edgeplan.zoo.nasbench201 import nasbench201
from edgeplan.zoo.unseen import UNSEEN

#: Multiply-adds in M of one example, and parameters; None where the source states none to two digits.
Published = dict[str, tuple[float | None, float | None]]
# "GFLOPS" (multiply-adds) and "num_params" of the weights in torchvision's model documentation.
_TORCHVISION: Published = {
    "alexnet": (714, 61_100_840),
    "vgg11": (7609, 132_863_336),
    "vgg13": (11308, 133_047_848),
    "vgg16": (15470, 138_357_544),
    "vgg19": (19632, 143_667_240),
    "densenet121": (2834, 7_978_856),
    "densenet169": (3360, 14_149_480),
    "densenet201": (4291, 20_013_928),
    "resnet18": (1814, 11_689_512),
    "resnet34": (3664, 21_797_672),
    "resnet50": (4089, 25_557_032),
    "resnet101": (7801, 44_549_160),
    "squeezenet1_0": (819, 1_248_424),
    "squeezenet1_1": (349, 1_235_496),
    "googlenet": (1498, 6_624_904),
    "mobilenetv2_1.0": (301, 3_504_872),
    "mobilenetv3_small": (57, 2_542_856),
    "mobilenetv3_large": (217, 5_483_032),
    "shufflenetv2_1.0": (145, 2_278_604),
    "shufflenetv2_1.5": (296, 3_503_624),
    "shufflenetv2_2.0": (583, 7_393_996),
    "mnasnet_0.5": (104, 2_218_512),
    "mnasnet_0.75": (215, 3_170_208),
    "mnasnet_1.0": (314, 4_383_312),
    "mnasnet_1.3": (526, 6_282_256),
    "inception_v3": (5710, 23_834_568),  # without the auxiliary classifier
}
_ZOO: Published = {
    **{name: figures for name, figures in _TORCHVISION.items() if name != "inception_v3"},
    # Multiply-adds: MobileNetV1's paper, tables 6 and 7. Parameters: Keras' summary (1.0, trainable), TensorFlow-Slim's list.
    "mobilenetv1_1.0": (569, 4_231_976),
    "mobilenetv1_0.75": (325, 2_590_000),
    "mobilenetv1_0.5": (149, 1_340_000),
    # TensorFlow-Slim's list of MobileNetV2 checkpoints.
    "mobilenetv2_0.5": (97, 1_950_000),
    "mobilenetv2_1.4": (582, 6_060_000),
    # Multiply-adds: the ProxylessNAS repository's README, which gives no count for the other two. Parameters: pytorchcv's list.
    "proxylessnas_mobile": (320, 4_080_512),
    "proxylessnas_gpu": (None, 7_119_848),
    "proxylessnas_cpu": (None, 4_361_648),
    # torchvision gives 0.04 GFLOPS, too coarse for 1 %.
    "shufflenetv2_0.5": (None, 1_366_792),
}
_COLD_START: Published = {
    # Parameters: Caffe's models as counted by Netscope. Multiply-adds: K. Abdelouahab, "CNN Workload Benchmark".
    "alexnet": (724, 60_965_224),
    "googlenet": (1580, 6_998_552),
    "resnet50": (3860, 25_557_032),
    "mobilenet": _ZOO["mobilenetv1_1.0"],
    "mobilenetv2": _ZOO["mobilenetv2_1.0"],
    "resnet18": _ZOO["resnet18"],
    "efficientnet_b0": (386, 5_288_548),
    "squeezenet": _ZOO["squeezenet1_0"],
    "shufflenetv2": _ZOO["shufflenetv2_1.5"],
    # README of its authors' code (megvii-model/ShuffleNet-Series), whose 3.4 M parameters have two digits.
    "shufflenet": (292, None),
    # Size of `crnn_lite_lstm` in the README of chineseocr_lite: 9.5 MB in single precision.
    "crnn_lite": (None, 9_500_000 // 4),
}
_UNSEEN: Published = {
    # Han et al., 2015, tables 1 and 4: 431 K weights, 4586 K operations.
    "lenet5": (2.293, 431_000),
    # Ciresan et al., 2010, table 1: 12.11 M weights.
    "ciresan_mlp": (12.11, 12_110_000),
    # Sainath and Parada, 2015, table 1: 9.7 M multiplies, 244.2 K parameters.
    "keyword_cnn": (9.7, 244_200),
    # Bojarski et al., 2016: about 27 million connections, 250 thousand parameters.
    "pilotnet": (27, 250_000),
    # The paper states neither.
    "zfnet": (None, None),
    # Sermanet et al., 2014, table 4: 2810 M connections, 145 M parameters.
    "overfeat_fast": (2810, 145_000_000),
    # The paper states neither.
    "eigen_depth": (None, None),
    # The authors' Caffe model; the paper states neither.
    "nin_cifar10": (None, 966_986),
    # Counted by hand from table 2, biases included; the paper rounds to "1.3 M" and "1.4 M".
    "all_cnn_c": (None, 1_369_738),
    # Zagoruyko and Komodakis, 2016, table 4: 8.9 M parameters.
    "wrn_40_4": (None, 8_900_000),
    # Redmon and Farhadi, 2017: 5.58 billion operations, two a multiply-add. The same source for the next: 6.97.
    "darknet19": (2790, None),
    "tiny_yolov2": (3485, None),
    # The authors' page on YOLOv3: 5.56 billion operations.
    "yolov3_tiny": (2780, None),
    "inception_v3": _TORCHVISION["inception_v3"],
    # Chollet, 2017, table 3: 22,855,952 parameters. Multiply-adds: 8.4 G in the slim model library.
    "xception": (8400, 22_855_952),
    # Xie et al., 2017, table 1: 25.0 M parameters, 4.2 G (of which two digits); torchvision: 4.23 G, 25,028,904.
    "resnext50": (4230, 25_028_904),
    # Hu et al., 2018, tables 1 and 2: 3.87 G; 28.1 M parameters.
    "se_resnet50": (3870, 28_100_000),
    # The authors' repository: 3.5 M parameters; its 0.44 G are 2.4 % above what its model has by this count.
    "hardnet39ds": (None, 3_500_000),
    # Wang et al., 2018: 508 M, 2.80 M.
    "peleenet": (508, 2_800_000),
    # Han et al., 2020, table 7: 141 M, 5.2 M.
    "ghostnet": (141, 5_200_000),
    # Vasu et al., 2023, table 9: 825 M, 4.8 M.
    "mobileone_s1": (825, 4_800_000),
    # Ding et al., 2021, table 4: 8.30 M parameters; its 1.4 G has two digits.
    "repvgg_a0": (None, 8_300_000),
    # Gholami et al., 2018, table 2: 282 M, 0.72 M.
    "squeezenext23": (282, 720_000),
    # Dong et al., 2016, section 4.3: 57,184 weights, each used at every pixel.
    "srcnn": (57.184e-3 * 256 * 256, 57_184),
    # The paper states neither.
    "espcn": (None, None),
}
_WORKLOADS: Published = {
    **{name: _TORCHVISION[name] for name in ("resnet18", "resnet34", "resnet50", "vgg11", "vgg16", "vgg19", "alexnet")},
    **{name: _TORCHVISION[name] for name in ("googlenet", "densenet121", "inception_v3")},
    **{name: _UNSEEN[name] for name in ("darknet19", "repvgg_a0")},
    "resnet152": (11_514, 60_192_808),
    "mnasnet": _ZOO["mnasnet_1.0"],
    "mobilenetv1": _ZOO["mobilenetv1_1.0"],
    "mobilenetv2": _ZOO["mobilenetv2_1.0"],
    "squeezenet": _ZOO["squeezenet1_0"],
    "yolov3": (65_860 / 2, 61_949_149),
    "vit_b_16": (17_560, 86_567_656),
    "gpt2": (None, 124_439_808),
    "gpt2_tokens64": (None, 124_439_808),
    "bert_base": (22_500 / 2, 109_482_240),
}


#: By registry: what builds each model, and what is printed of it.
_BUILT = {
    "zoo": (prior_models(), _ZOO),
    "cold start": (COLD_START_MODELS, _COLD_START),
    "unseen": ({name: partial(build, name) for name, build in UNSEEN.items()}, _UNSEEN),
    "workloads": (WORKLOADS, _WORKLOADS),
}


@pytest.mark.parametrize(("registry", "name"), [(of, name) for of, (built, _) in _BUILT.items() for name in built])
def test_published_multiply_adds_and_parameters(registry: str, name: str) -> None:
    built, published = _BUILT[registry]
    model = built[name]()
    assert (model.name if isinstance(model, Graph) else model.model.graph.name) == name
    one = name.removesuffix("_batch16")
    macs_m, count = published.get(one, (None, None))
    assert one in published or name in _NCNN_WEIGHTS or name.startswith(("nasbench201", "lstm", "gru", "bert_base_tokens1"))
    assert count is None or parameters(model) == pytest.approx(count, rel=0.01)
    assert macs_m is None or macs(model) / 1e6 == pytest.approx(macs_m * (1 if one == name else 16), rel=0.01)


@pytest.mark.parametrize(
    ("width", "macs_m", "parameters"), [(0.5, 38, 718_324), (1.0, 138, 1_865_728), (1.5, 292, None), (2.0, 524, None)]
)
def test_shufflenet_at_every_width(width: float, macs_m: int, parameters: int | None) -> None:
    # Multiply-adds: its authors' README (rounded). Parameters: pytorchcv's list.
    graph = shufflenet(width=width)
    assert graph_macs(graph) / 1e6 == pytest.approx(macs_m, abs=0.6)
    assert parameters is None or graph_parameters(graph) == parameters


def _convolution_weights(graph: Graph) -> int:
    return sum(graph.tensors[op.weights[0]].elements for op in graph.operators if op.op_type == "Conv")


# Weights of ncnn's benchmark/mobilenet_yolo.param and mobilenetv2_yolov3.param: the sums of their fields "6=", which count the
# weights of a layer. Without the transposed convolutions (16,384 and 576 weights): nearest-neighbour resizes stand for them.
_NCNN_WEIGHTS = {"mobilenet_yolo": 11_059_648 - 16_384, "mobilenetv2_yolov3": 3_699_456 - 576}
_REPLACED_BY = {"mobilenet_yolo": 1024, "mobilenetv2_yolov3": 0}


@pytest.mark.parametrize("name", _NCNN_WEIGHTS)
def test_detectors_have_the_weights_of_ncnn(name: str) -> None:
    assert _convolution_weights(COLD_START_MODELS[name]()) == _NCNN_WEIGHTS[name] + _REPLACED_BY[name]


def test_models_take_the_published_sizes() -> None:
    # 1.22 G multiply-adds at 352 x 352 in its authors' README, by Netscope, which counts normalisation and activations too.
    assert graph_macs(mobilenetv2_yolov3(size=352)) / 1e9 == pytest.approx(1.22, rel=0.04)
    graph = mobilenet_yolo(size=416)
    assert [graph.shape(o) for o in graph.outputs] == [(1, 125, 13, 13), (1, 125, 26, 26)]
    read = crnn_lite(width=100)
    assert read.shape(read.outputs[0]) == (26, 1, 5530), "a step every four pixels"


# Least and most of the 15,625 architectures on CIFAR-10 in the NAS-Bench-201 API: multiply-adds in M, parameters in M.
_NASBENCH_LEAST = (7.78305, 0.073306)
_NASBENCH_MOST = (220.11969, 1.531546)
_SKIP_CELL = "|none~0|+|none~0|none~1|+|skip_connect~0|none~1|none~2|"
_FULL_CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_3x3~2|"


@pytest.mark.parametrize(("cell", "published"), [(_SKIP_CELL, _NASBENCH_LEAST), (_FULL_CELL, _NASBENCH_MOST)])
def test_nasbench201_range(cell: str, published: tuple[float, float]) -> None:
    graph = nasbench201("cell", cell)
    assert graph_macs(graph) / 1e6 == pytest.approx(published[0], rel=1e-4)
    assert graph_parameters(graph) / 1e6 == pytest.approx(published[1], rel=1e-4)


def test_nasbench201_base_lies_a_third_up_the_published_range() -> None:
    # Its cell has 2 of the 6 possible 3 x 3 convolutions, and each costs the same.
    graph = FAMILIES["nasbench201"].base()
    for value, least, most in zip((graph_macs(graph), graph_parameters(graph)), _NASBENCH_LEAST, _NASBENCH_MOST, strict=True):
        assert value / 1e6 == pytest.approx(least + (most - least) / 3, rel=1e-3)


# Average over Table 2's, as far as 250 variants tell; the docstring of `zoo.registry` says why some are off.
_BESIDE_TABLE_2 = {
    "alexnet": (1.4, 1.9), "vgg": (0.85, 1.15), "densenet": (3.1, 3.6), "resnet": (1.3, 1.65), "squeezenet": (1.1, 1.35),
    "googlenet": (2.6, 3.0), "mobilenetv1": (1.05, 1.25), "mobilenetv2": (0.9, 1.1), "mobilenetv3": (1.3, 1.6),
    "shufflenetv2": (1.0, 1.2), "mnasnet": (1.05, 1.25), "proxylessnas": (0.9, 1.1), "nasbench201": (0.95, 1.05),
}  # fmt: skip


@pytest.mark.parametrize("family", by_day([*_BESIDE_TABLE_2], least=2))
def test_average_beside_table_2(family: str) -> None:
    low, high = _BESIDE_TABLE_2[family]
    average = fmean(graph_macs(build_variant(spec)) for spec in variants(FAMILIES[family], 250, seed=0)) / 1e6
    assert low <= average / printed("table_02", "family")["paper: FLOPs (M)"][family] <= high


def test_base_models_and_most_of_those_held_out_have_published_figures() -> None:
    assert {family.base_name for family in FAMILIES.values()} <= {*_ZOO, "nasbench201_resnet"}
    assert list(TABLE4) == list(COLD_START_MODELS), "all thirteen, in its order"
    assert len(TABLE4) == 13
    assert all(set(published) <= set(built) for built, published in _BUILT.values())
    assert set(_UNSEEN) == set(UNSEEN)
    assert sum(figures != (None, None) for figures in _UNSEEN.values()) >= 20


def test_the_list_is_of_other_families_than_the_zoo() -> None:
    known = {*FAMILIES, *(family.base_name for family in FAMILIES.values()), *prior_models(), *COLD_START_MODELS}
    assert not known & set(UNSEEN)
    built = [build() for build in prior_models().values()], [build(name) for name, build in UNSEEN.items()]
    ours, unseen = ({(graph_macs(graph), graph_parameters(graph)) for graph in graphs} for graphs in built)
    assert not ours & unseen


@pytest.mark.parametrize("name", by_day([*UNSEEN], least=8))
def test_architecture_survives_the_way_through_an_onnx_file(name: str, tmp_path: Path) -> None:
    graph = UNSEEN[name](name)
    assert all(graph.shape(output)[0] == 1 for output in graph.outputs)
    if weight_bytes(graph) > 100_000_000:
        pytest.skip("a file of hundreds of megabytes")
    save_onnx(graph, tmp_path / "model.onnx", seed=0)
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    loaded = load_onnx(tmp_path / "model.onnx")
    assert (graph_macs(loaded), graph_parameters(loaded)) == (graph_macs(graph), graph_parameters(graph))
    assert [loaded.shape(output) for output in loaded.outputs] == [graph.shape(output) for output in graph.outputs]


def _by_hand(gates: int) -> int:
    """Parameters of EOP's recurrent layers as a language model."""
    return 32_000 * 80 + gates * 64 * (80 + 64 + 2) + gates * 64 * (64 + 64 + 2) + 32_000 * (64 + 1)


@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3)])
@pytest.mark.parametrize(("suffix", "batch"), [("", 1), ("_batch16", 16)])
def test_recurrent_models_by_hand(cell: str, gates: int, suffix: str, batch: int) -> None:
    workload = WORKLOADS[cell + suffix]()
    assert parameters(workload) == _by_hand(gates)
    products = gates * 64 * (80 + 64) + gates * 64 * (64 + 64) + 64 * 32_000
    assert macs(workload) == batch * products


def test_models_of_other_sizes_have_the_published_parameters() -> None:
    large = recurrent_language_model("large", "LSTM", vocabulary=10_000, embedding=1500, hidden=1500)  # Zaremba's
    assert large.parameters == pytest.approx(66e6, rel=0.01)
    assert gpt2(tokens=1024).parameters == 124_439_808
    assert bert(tokens=512).parameters == 109_482_240 - 768  # less one of the two types


@pytest.mark.parametrize("tokens", [64, 128])
def test_gpt2_outside_scores_and_logits_has_twelve_squares_of_its_width_a_layer(tokens: int) -> None:
    scores, logits = 12 * 2 * tokens * 768, 768 * 50_257
    assert macs(gpt2(tokens=tokens)) / tokens - scores - logits == 84_934_656


def test_a_batch_and_a_sequence_cost_as_many_times_more() -> None:
    one, sixteen = WORKLOADS["bert_base_tokens1"](), WORKLOADS["bert_base_tokens1_batch16"]()
    assert parameters(one) == parameters(sixteen) == 109_482_240 + (32_000 - 30_522) * 768 - (511 + 1) * 768
    assert macs(sixteen) == 16 * macs(one)


def test_inputs_are_what_exporters_name_them() -> None:
    inputs = {
        name: {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in workload.model.graph.input}
        for name, build in WORKLOADS.items()
        if isinstance(workload := build(), Exported)
    }
    assert inputs["gpt2"] == {"input_ids": (1, 128)}
    assert inputs["gpt2_tokens64"] == {"input_ids": (1, 64)}
    assert inputs["bert_base_tokens1_batch16"] == {"input_ids": (16, 1), "attention_mask": (16, 1)}
    assert inputs["vit_b_16"] == {"pixel_values": (1, 3, 224, 224)}
    assert inputs["lstm_batch16"] == {"input_ids": (1, 16), "hidden": (2, 16, 64), "cell": (2, 16, 64)}
    assert inputs["gru"] == {"input_ids": (1, 1), "hidden": (2, 1, 64)}


@pytest.mark.parametrize("path", ["workloads/registry.py", "zoo/unseen.py"])
def test_what_measures_and_trains_predictors_knows_none_of_them(path: str) -> None:
    """Adding a model runs no stage of the prediction chapter again, and its held-out list stays held out."""
    own = {stage.name: imported(stage.function.partition(":")[0]) for stage in STAGES}
    reading = {name for name, paths in own.items() if PACKAGE / path in paths}
    assert reading
    assert ("unseen" in reading) == (path == "zoo/unseen.py")
    assert not reading & {"zoo", "fusion", "sampling", "calibration", "training", "truth", "evaluation", "transfer"}


NONE = {"big": 0.0}


def _table_2() -> Profile:
    candidates = []
    for row in TABLE2:
        execute = {1: row.execute_ms}
        candidates.append(Candidate(row.kernel, "raw", {"big": row.read_raw_ms}, NONE, {"big": row.transform_ms}, execute))
        candidates.append(Candidate(row.kernel, "cached_read", {"big": row.read_cache_ms}, NONE, NONE, execute))
    return Profile("conv", "nchw", 1, 1, 1.0, (Layer("conv", ("conv",), tuple(candidates)),))


def _names(profile: Profile) -> set[tuple[str, str]]:
    return {(c.implementation, c.source) for c in profile.layers[0].candidates}


def test_table_2_filters_to_three_of_twelve() -> None:
    # sgemm-pack4 and pack4 lose against 3x3s1 (0.70 + 8.01), general against all; raw winograd against its cached self.
    assert _names(pareto(_table_2())) == {
        ("3x3s1-winograd-pack4", "cached_read"),
        ("3x3s1-winograd", "cached_read"),
        ("3x3s1", "raw"),
    }
    table = remaining_table([_table_2()])
    assert table[["candidates", "remaining"]].to_numpy().tolist() == [[12, 3]]


def test_table_2_without_caching_keeps_the_fast_and_the_ready() -> None:
    table = _table_2()
    raw = pareto(narrowed(table, [[i for i, c in enumerate(layer.candidates) if c.source == "raw"] for layer in table.layers]))
    assert _names(raw) == {("3x3s1-winograd-pack4", "raw"), ("3x3s1", "raw")}


def test_figure_13s_steps_on_table_2() -> None:
    def chosen(planner: str) -> tuple[str, str, float]:
        outcome = outcomes([_table_2()], planner)["nchw"]
        (candidate,) = outcome.chosen
        return candidate.implementation, candidate.source, round(outcome.makespan_ms, 2)

    assert chosen("warm") == ("3x3s1-winograd-pack4", "raw", 41.91)
    assert chosen("K") == ("3x3s1", "raw", 8.71)
    assert chosen("K+C") == ("3x3s1-winograd", "cached_read", 7.49)


def _uniform(steps: int, little_cores: int, big: float, little: float, execute: float) -> Profile:
    candidate = Candidate("k", "raw", {"big": big, "little": little}, NONE, NONE, {1: execute})
    layers = tuple(Layer(f"s{k}", (), (candidate,)) for k in range(steps))
    return Profile("uniform", "nchw", 1, little_cores, 1.0, layers)


def test_algorithm_1_moves_preparations_to_the_big_core_while_it_is_the_less_busy() -> None:
    # Figure 7(a): r1, w1 and all executions on the big core, T_Q0 = 1 + 6; the others on the little one, T_Q1 = 5 x 3 = 15.
    # Line 9 for step 2: 1 + 3 < 15 - 7, moved: T_Q0 = 8, T_Q1 = 12. For step 3: 1 + 3 < 12 - 8 does not hold, the end.
    assert balanced(cost_arrays(_uniform(6, 1, 1.0, 3.0, 1.0)), (0,) * 6) == (MAIN, MAIN, 0, 0, 0, 0)
    assert balanced(cost_arrays(_uniform(4, 1, 1.0, 1.0, 5.0)), (0,) * 4) == (MAIN, 0, 0, 0)


@pytest.mark.parametrize(
    ("times", "dealt"),
    [
        # Line 12 deals steps 2, 4 to the first little core and 3 to the second (Figure 7(b)): loads 9 + 1 and 2. Line 18:
        # 9 < (10 - 2) / 2 does not hold, 1 < 4 does: step 4 moves, loads 9 and 3 (Figure 7(c)-(e)); big core: 20 and more.
        ((1.0, 9.0, 2.0, 1.0), (MAIN, 0, 1, 1)),
        # Loads 5 + 5 and 2: line 18, 5 < (10 - 2) / 2, does not hold, although moving one would balance 5 and 7.
        ((1.0, 5.0, 2.0, 5.0), (MAIN, 0, 1, 0)),
    ],
)
def test_algorithm_1_deals_out_and_then_balances_little_cores(times: tuple[float, ...], dealt: tuple[int, ...]) -> None:
    layers = tuple(Layer(f"s{k}", (), (Candidate("k", "raw", {"big": t}, NONE, NONE, {1: 5.0}),)) for k, t in enumerate(times))
    assert balanced(cost_arrays(Profile("dealt", "nchw", 1, 2, 1.0, layers)), (0,) * 4) == dealt


def test_it_ends_with_fewer_preparations_than_little_cores_and_its_outer_loop_is_exhaustive_up_to_a_limit() -> None:
    for steps in (1, 2, 3):
        assert balanced(cost_arrays(_uniform(steps, 3, 1.0, 1.0, 0.1)), (0,) * steps)[0] == MAIN
    three, eight = (Profile("some", "nchw", 1, 1, 1.0, pareto(_table_2()).layers * times) for times in (3, 8))
    assert nnv12(three).note == "all 27 combinations"
    assert nnv12(eight).note.startswith("coordinate descent"), "of 6561"


# Section 4.2 gives the rules of the GPU; those of CPU and VPU differ in conv_add only (text below Table 4). The pool_relu of
# the three backends stands in Table 3.
GPU = {
    "pool_add": True,
    "add_relu": True,
    "pool_conv": False,
    "conv_bn": True,
    "conv_relu": True,
    "conv_conv": False,
    "conv_add": True,
    "multi-inbound": 1,
    "multi-outbound": 0,
    "pool_relu": True,
}
CPU = {**GPU, "conv_add": False, "pool_relu": False}
VPU = {**GPU, "conv_add": False}

UNFUSED_SUM = {"conv++bn++relu": 9, "maxpool": 1, "conv++bn": 11, "add++relu": 8, "avgpool": 1, "fc": 1}
FUSED_SUM = {"conv++bn++relu": 9, "maxpool": 1, "conv++bn++add++relu": 8, "conv++bn": 3, "avgpool": 1, "fc": 1}


#: Kinds here of what the paper's rules name otherwise.
POOLS = {"pool": ("maxpool", "avgpool")}


def paper_rules(document: Mapping[str, bool | int]) -> FusionRules:
    """The paper's flat form as rules: `{"pool_relu": True, ..., "multi-inbound": 1, "multi-outbound": 0}`."""
    special = {key: value for key, value in document.items() if key in ("multi-inbound", "multi-outbound")}
    pairs = {
        f"{a}_{b}": value
        for key, value in document.items()
        if key not in special
        for first, _, after in [key.partition("_")]
        for a in POOLS.get(first, (first,))
        for b in POOLS.get(after, (after,))
    }
    return FusionRules.model_validate({"pairs": pairs, **special})


@pytest.mark.parametrize(
    ("rules", "table"), [(VPU, UNFUSED_SUM), (GPU, FUSED_SUM), (CPU, UNFUSED_SUM)], ids=["VPU", "GPU", "CPU"]
)
def test_kernels_of_resnet18(rules: dict[str, bool | int], table: dict[str, int]) -> None:
    found = Counter(kernel.type for kernel in split_kernels(FAMILIES["resnet"].base(), paper_rules(rules)))
    found["avgpool"] = found.pop("gap")  # the paper's avgpool is the global one
    flattens = found.pop("reshape")  # a view of the pooled tensor, which the paper's models do not have as an operator
    assert found == table
    assert flattens == 1
