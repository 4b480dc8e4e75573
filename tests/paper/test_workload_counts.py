"""The models that chapters on planning run against published figures, by shapes alone: no weights are drawn."""

from __future__ import annotations

import pytest

from counts import macs, parameters
from edgeplan.chapters.registry import STAGES
from edgeplan.graph.ir import Graph
from edgeplan.support.sources import PACKAGE, imported
from edgeplan.workloads.exported import Exported
from edgeplan.workloads.registry import WORKLOADS, recurrent_language_model
from edgeplan.workloads.sequences import bert, gpt2, vit

# Multiply-adds in M (of one example) and parameters; None where the source states none to two digits. Sources are in the
# docstrings of the builders, those of the zoo in test_zoo_costs.py and test_unseen_models.py.
_PUBLISHED: dict[str, tuple[float | None, int | None]] = {
    # torchvision's documentation
    "resnet18": (1814, 11_689_512),
    "resnet34": (3664, 21_797_672),
    "resnet50": (4089, 25_557_032),
    "resnet152": (11_514, 60_192_808),
    "vgg11": (7609, 132_863_336),
    "vgg16": (15_470, 138_357_544),
    "alexnet": (714, 61_100_840),
    "googlenet": (1498, 6_624_904),
    "densenet121": (2834, 7_978_856),
    "mnasnet": (314, 4_383_312),
    "darknet19": (2790, None),
    "repvgg_a0": (None, 8_300_000),
    "vgg19": (19_632, 143_667_240),
    "mobilenetv1": (569, 4_231_976),
    "mobilenetv2": (301, 3_504_872),
    "squeezenet": (819, 1_248_424),
    "inception_v3": (5710, 23_834_568),
    "yolov3": (65_860 / 2, 61_949_149),
    "vit_b_16": (17_560, 86_567_656),
    "gpt2": (None, 124_439_808),
    "gpt2_tokens64": (None, 124_439_808),
    "bert_base": (22_500 / 2, 109_482_240),
}


def _by_hand(gates: int) -> int:
    """Parameters of EOP's recurrent layers as a language model."""
    layers = gates * 64 * (80 + 64 + 2) + gates * 64 * (64 + 64 + 2)
    return 32_000 * 80 + layers + 32_000 * (64 + 1)


@pytest.mark.parametrize("name", WORKLOADS)
def test_published_multiply_adds_and_parameters(name: str) -> None:
    workload = WORKLOADS[name]()
    named = workload.name if isinstance(workload, Graph) else workload.model.graph.name
    assert named == name
    one = name.removesuffix("_batch16")
    if one in _PUBLISHED:
        macs_m, count = _PUBLISHED[one]
        examples = 1 if one == name else 16
        assert count is None or parameters(workload) == pytest.approx(count, rel=0.01)
        assert macs_m is None or macs(workload) / 1e6 == pytest.approx(examples * macs_m, rel=0.01)
    else:
        assert name.startswith(("lstm", "gru", "bert_base_tokens1"))


@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3)])
@pytest.mark.parametrize(("suffix", "batch"), [("", 1), ("_batch16", 16)])
def test_recurrent_models_by_hand(cell: str, gates: int, suffix: str, batch: int) -> None:
    workload = WORKLOADS[cell + suffix]()
    assert parameters(workload) == _by_hand(gates)
    products = gates * 64 * (80 + 64) + gates * 64 * (64 + 64) + 64 * 32_000
    assert macs(workload) == batch * products


def test_the_large_model_of_zaremba() -> None:
    large = recurrent_language_model("large", "LSTM", vocabulary=10_000, embedding=1500, hidden=1500)
    assert large.parameters == pytest.approx(66e6, rel=0.01)


def test_a_context_of_all_positions_has_the_checkpoints_parameters() -> None:
    assert gpt2(tokens=1024).parameters == 124_439_808
    # less one of the two types
    assert bert(tokens=512).parameters == 109_482_240 - 768
    assert vit().parameters == 86_567_656


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


def test_what_measures_and_trains_predictors_knows_none_of_them() -> None:
    """Adding a model runs no stage of the prediction chapter again, and its held-out list stays held out."""
    own = {stage.name: imported(stage.function.partition(":")[0]) for stage in STAGES}
    reading = {name for name, paths in own.items() if PACKAGE / "workloads/registry.py" in paths}
    assert reading
    assert not reading & {"zoo", "fusion", "sampling", "calibration", "training", "truth", "evaluation", "unseen", "transfer"}
