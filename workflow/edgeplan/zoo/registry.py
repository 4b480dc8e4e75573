"""Lists the families of the paper's Table 2 and draws their variants.

The paper does not say which depth or width of a family it resamples; each family's base here is the published one whose
variants come nearest to Table 2. With 2,000 variants each, their average multiply-adds over Table 2's are VGGs 0.96,
MobileNetv2s 0.98, NASBench201 0.99, ProxylessNass 1.02, ShuffleNetv2s 1.10, MnasNets 1.16, MobileNetv1s 1.18, SqueezeNets 1.24,
MobileNetv3s 1.47, ResNets 1.49, AlexNets 1.72, GoogleNets 2.81, DenseNets 3.39.

The last two cannot follow from section 3 as it is written, nor can MobileNetv3s. A kernel size drawn from {1, 3, 5, 7, 9}
costs 33 / 9 = 3.7 times a 3 x 3 kernel on average, while channels average to the base's. So resampling must raise the
multiply-adds of a family built on 3 x 3 convolutions; yet the paper's GoogleNets (1475) average less than the published
GoogLeNet (1498), DenseNets (1794) less than DenseNet-121 (2834), and MobileNetv3s (176) less than MobileNetV3 large (217):
kernel sizes were kept there, or the models were smaller. AlexNets and ResNets lie between the published AlexNet (714) or
ResNet-18 (1814) and the rule's average; the paper does not tell enough to say why. The rule of its text is kept for every
family, 1 x 1 convolutions and classifiers apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType

from edgeplan.errors import FormatError
from edgeplan.graph.ir import Graph
from edgeplan.zoo.alexnet import alexnet
from edgeplan.zoo.densenet import densenet
from edgeplan.zoo.family import Family
from edgeplan.zoo.googlenet import googlenet
from edgeplan.zoo.mnasnet import mnasnet
from edgeplan.zoo.mobilenetv1 import mobilenetv1
from edgeplan.zoo.mobilenetv2 import mobilenetv2
from edgeplan.zoo.mobilenetv3 import mobilenetv3
from edgeplan.zoo.nasbench201 import CellFamily
from edgeplan.zoo.proxylessnas import proxylessnas
from edgeplan.zoo.resnet import resnet
from edgeplan.zoo.shufflenetv2 import shufflenetv2
from edgeplan.zoo.spec import VariantSpec
from edgeplan.zoo.squeezenet import squeezenet
from edgeplan.zoo.vgg import vgg

_FAMILIES = (
    Family("alexnet", "AlexNets", "alexnet", alexnet),
    Family("vgg", "VGGs", "vgg11", partial(vgg, depth=11)),
    Family("densenet", "DenseNets", "densenet121", partial(densenet, depth=121)),
    Family("resnet", "ResNets", "resnet18", partial(resnet, depth=18)),
    Family("squeezenet", "SqueezeNets", "squeezenet1_0", partial(squeezenet, version="1.0")),
    Family("googlenet", "GoogleNets", "googlenet", googlenet),
    Family("mobilenetv1", "MobileNetv1s", "mobilenetv1_1.0", mobilenetv1),
    Family("mobilenetv2", "MobileNetv2s", "mobilenetv2_1.0", mobilenetv2),
    Family("mobilenetv3", "MobileNetv3s", "mobilenetv3_large", mobilenetv3),
    Family("shufflenetv2", "ShuffleNetv2s", "shufflenetv2_1.5", partial(shufflenetv2, width=1.5)),
    Family("mnasnet", "MnasNets", "mnasnet_1.0", mnasnet),
    Family("proxylessnas", "ProxylessNass", "proxylessnas_cpu", partial(proxylessnas, target="cpu")),
    CellFamily(),
)

#: Families by id, in the order of Table 2.
FAMILIES: Mapping[str, Family] = MappingProxyType({family.id: family for family in _FAMILIES})


def variants(family: Family, count: int, seed: int) -> Iterator[VariantSpec]:
    """Yield the first `count` variants of a family under a seed: distinct, and the same whatever `count` is."""
    seen: set[tuple[object, ...]] = set()
    index = 0
    while len(seen) < count:
        spec = family.variant(seed, index)
        index += 1
        if spec.choices not in seen:  # a repeated draw is passed over, and its index stays unused
            seen.add(spec.choices)
            yield spec


def build_variant(spec: VariantSpec) -> Graph:
    """Build the graph of any variant, by the family its spec names."""
    family = FAMILIES.get(spec.family)
    if family is None:
        raise FormatError(
            f"unknown model family {spec.family!r}",
            where=spec.name,
            next_step=f"use one of {', '.join(FAMILIES)}",
        )
    return family.build(spec)
