"""Lists the held-out architectures, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from edgeplan.graph.ir import Graph
from edgeplan.zoo.unseen.cifar import all_cnn_c, nin_cifar10, wrn_40_4
from edgeplan.zoo.unseen.darknet import darknet19, tiny_yolov2, yolov3_tiny
from edgeplan.zoo.unseen.dense import hardnet39ds, peleenet
from edgeplan.zoo.unseen.early import eigen_depth, overfeat_fast, zfnet
from edgeplan.zoo.unseen.inception import inception_v3, xception
from edgeplan.zoo.unseen.mobile import ghostnet, mobileone_s1, repvgg_a0, squeezenext23
from edgeplan.zoo.unseen.residual import resnext50, se_resnet50
from edgeplan.zoo.unseen.small import ciresan_mlp, keyword_cnn, lenet5, pilotnet
from edgeplan.zoo.unseen.superresolution import espcn, srcnn

_BUILDERS: tuple[Callable[[str], Graph], ...] = (
    lenet5,
    ciresan_mlp,
    keyword_cnn,
    pilotnet,
    zfnet,
    overfeat_fast,
    eigen_depth,
    nin_cifar10,
    all_cnn_c,
    wrn_40_4,
    darknet19,
    tiny_yolov2,
    yolov3_tiny,
    inception_v3,
    xception,
    resnext50,
    se_resnet50,
    hardnet39ds,
    peleenet,
    ghostnet,
    mobileone_s1,
    repvgg_a0,
    squeezenext23,
    srcnn,
    espcn,
)

#: Builders by name; each takes the name of the graph.
UNSEEN: Mapping[str, Callable[[str], Graph]] = MappingProxyType({build.__name__: build for build in _BUILDERS})
