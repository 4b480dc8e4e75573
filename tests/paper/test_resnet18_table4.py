"""nn-Meter, Table 4: the kernels of ResNet18 by the fusion rules of its three backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.kernels import split
from edgeplan.zoo import FAMILIES

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

UNFUSED_SUM = {
    "conv++bn++relu": 9,
    "maxpool": 1,
    "conv++bn": 11,
    "add++relu": 8,
    "avgpool": 1,
    "fc": 1,
}
FUSED_SUM = {
    "conv++bn++relu": 9,
    "maxpool": 1,
    "conv++bn++add++relu": 8,
    "conv++bn": 3,
    "avgpool": 1,
    "fc": 1,
}


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


def test_the_papers_form_covers_both_poolings() -> None:
    found = paper_rules({"pool_relu": True, "conv_pool": False, "multi-inbound": 1, "multi-outbound": 0})
    assert found.fuses("maxpool", "maxpool", "relu")
    assert found.fuses("avgpool", "avgpool", "relu")
    assert found.multi_inbound == 1


@pytest.mark.parametrize(
    ("rules", "table"), [(VPU, UNFUSED_SUM), (GPU, FUSED_SUM), (CPU, UNFUSED_SUM)], ids=["VPU", "GPU", "CPU"]
)
def test_kernels_of_resnet18(rules: dict[str, bool | int], table: dict[str, int]) -> None:
    found = Counter(kernel.config.type for kernel in split(FAMILIES["resnet"].base(), paper_rules(rules)))
    found["avgpool"] = found.pop("gap")  # the paper's avgpool is the global one
    flattens = found.pop("reshape")  # a view of the pooled tensor, which the paper's models do not have as an operator
    assert found == table
    assert flattens == 1
