"""Lists published models and the families of the paper's Table 2, and draws their variants.

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

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

from edgeplan.errors import FormatError
from edgeplan.graph.ir import Graph
from edgeplan.zoo.convolutional import alexnet, densenet, googlenet, resnet, squeezenet, vgg
from edgeplan.zoo.family import Builder, Family, VariantSpec, published
from edgeplan.zoo.nasbench201 import CellFamily, nasbench201
from edgeplan.zoo.separable import mnasnet, mobilenetv1, mobilenetv2, mobilenetv3, proxylessnas, shufflenetv2

_PUBLISHED: Mapping[str, Builder] = {
    "alexnet": alexnet,
    "googlenet": googlenet,
    **{f"vgg{depth}": partial(vgg, depth=depth) for depth in (11, 13, 16, 19)},
    **{f"resnet{depth}": partial(resnet, depth=depth) for depth in (18, 34, 50, 101)},
    **{f"densenet{depth}": partial(densenet, depth=depth) for depth in (121, 169, 201)},
    **{f"squeezenet{version.replace('.', '_')}": partial(squeezenet, version=version) for version in ("1.0", "1.1")},
    **{f"mobilenetv1_{width}": partial(mobilenetv1, width=width) for width in (0.5, 0.75, 1.0)},
    **{f"mobilenetv2_{width}": partial(mobilenetv2, width=width) for width in (0.5, 1.0, 1.4)},
    **{f"mobilenetv3_{size}": partial(mobilenetv3, size=size) for size in ("small", "large")},
    **{f"shufflenetv2_{width}": partial(shufflenetv2, width=width) for width in (0.5, 1.0, 1.5, 2.0)},
    **{f"mnasnet_{width}": partial(mnasnet, width=width) for width in (0.5, 0.75, 1.0, 1.3)},
    **{f"proxylessnas_{target}": partial(proxylessnas, target=target) for target in ("mobile", "gpu", "cpu")},
}
#: Id, row of the paper's Table 2, base model.
_FAMILIES = (
    ("alexnet", "AlexNets", "alexnet"),
    ("vgg", "VGGs", "vgg11"),
    ("densenet", "DenseNets", "densenet121"),
    ("resnet", "ResNets", "resnet18"),
    ("squeezenet", "SqueezeNets", "squeezenet1_0"),
    ("googlenet", "GoogleNets", "googlenet"),
    ("mobilenetv1", "MobileNetv1s", "mobilenetv1_1.0"),
    ("mobilenetv2", "MobileNetv2s", "mobilenetv2_1.0"),
    ("mobilenetv3", "MobileNetv3s", "mobilenetv3_large"),
    ("shufflenetv2", "ShuffleNetv2s", "shufflenetv2_1.5"),
    ("mnasnet", "MnasNets", "mnasnet_1.0"),
    ("proxylessnas", "ProxylessNass", "proxylessnas_cpu"),
)

#: Families by id, in the order of Table 2.
FAMILIES: Mapping[str, Family] = {
    **{id_: Family(id_, paper_name, base, _PUBLISHED[base]) for id_, paper_name, base in _FAMILIES},
    CellFamily.id: CellFamily(),
}


def prior_models() -> Mapping[str, Callable[[], Graph]]:
    """Return the graph builders of the published models behind the prior distribution of kernels (nn-Meter, section 5).

    They are the families at several depths and widths, no variants, by name.
    """
    found: dict[str, Callable[[], Graph]] = {name: published(builder, name) for name, builder in _PUBLISHED.items()}
    return MappingProxyType({**found, CellFamily.base_name: partial(nasbench201, CellFamily.base_name)})


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
        what = f"unknown model family {spec.family!r}"
        raise FormatError(what, where=spec.name, next_step=f"use one of {', '.join(FAMILIES)}")
    return family.build(spec)
