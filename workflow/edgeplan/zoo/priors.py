"""Lists the base models behind the prior distribution of kernel configurations (nn-Meter, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from edgeplan.graph.ir import Graph
from edgeplan.zoo.alexnet import alexnet
from edgeplan.zoo.densenet import densenet
from edgeplan.zoo.family import Builder, published
from edgeplan.zoo.googlenet import googlenet
from edgeplan.zoo.mnasnet import mnasnet
from edgeplan.zoo.mobilenetv1 import mobilenetv1
from edgeplan.zoo.mobilenetv2 import mobilenetv2
from edgeplan.zoo.mobilenetv3 import mobilenetv3
from edgeplan.zoo.nasbench201 import nasbench201
from edgeplan.zoo.proxylessnas import proxylessnas
from edgeplan.zoo.resnet import resnet
from edgeplan.zoo.shufflenetv2 import shufflenetv2
from edgeplan.zoo.squeezenet import squeezenet
from edgeplan.zoo.vgg import vgg


def prior_models() -> Mapping[str, Callable[[], Graph]]:
    """Return the published models' graph builders by name: the families at several depths and widths, no variants."""
    builders: dict[str, Builder] = {
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
    models: dict[str, Callable[[], Graph]] = {name: published(builder, name) for name, builder in builders.items()}
    models["nasbench201_resnet"] = partial(nasbench201, "nasbench201_resnet")
    return MappingProxyType(models)
