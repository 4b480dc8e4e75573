"""Model families, their seeded variants, and the base models behind the prior distribution (nn-Meter, section 3).

Modules:

* `alexnet`: AlexNet in torchvision's one-tower form (Krizhevsky, 2014): no local response
  normalisation, biases in every layer.
* `caffe`: AlexNet and GoogLeNet as in Caffe's model zoo, and in ncnn's after it: local response
  normalisation, biases everywhere.
* `choices`: The free dimensions of a family: builders ask for each output channel count and kernel
  size, and get it from here.
* `cold_start_models`: The models of NNV12's Table 4, on which cold starts are planned and measured,
  beside the paper's figures.
* `crnn`: CRNN-lite: the text recogniser of chineseocr_lite (github.com/ouyanghuiyu/chineseocr_lite,
  `crnn_lite`, with LSTM).
* `densenet`: DenseNet-BC (Huang et al., 2017).
* `efficientnet`: EfficientNet-B0 (Tan and Le, 2019): inverted residuals with squeeze-and-excitation
  and swish.
* `family`: A model family: a builder, its base model, and how variants are drawn.
* `googlenet`: GoogLeNet (Szegedy et al., 2015) in torchvision's form: batch normalisation, and 3 x
  3 in place of 5 x 5 convolutions.
* `layers`: Layers that several families share.
* `mnasnet`: MnasNet-B1 (Tan et al., 2019), in torchvision's form.
* `mobilenet_yolo`: Two detectors of the MobileNet-YOLO family (github.com/eric612/MobileNet-YOLO),
  as ncnn's benchmark has them.
* `mobilenetv1`: MobileNetV1 (Howard et al., 2017): depthwise separable convolutions.
* `mobilenetv2`: MobileNetV2 (Sandler et al., 2018): inverted residuals with linear bottlenecks.
* `mobilenetv3`: MobileNetV3 (Howard et al., 2019): squeeze-and-excitation with hard sigmoid, hard
  swish.
* `nasbench201`: NAS-Bench-201 (Dong and Yang, 2020): three stages of one searched cell, on 32 x 32
  images of ten classes.
* `priors`: Base models behind the prior distribution of kernel configurations (nn-Meter, section
  5).
* `proxylessnas`: ProxylessNAS (Cai et al., 2019): the networks found for a phone, a GPU and a CPU.
* `registry`: The families of the paper's Table 2 and their variants.
* `resnet`: ResNet (He et al., 2016), in torchvision's form (a bottleneck strides in its 3 x 3
  convolution) unless told otherwise.
* `shufflenet`: ShuffleNet (Zhang et al., 2018): grouped pointwise convolutions with channel
  shuffle.
* `shufflenetv2`: ShuffleNetV2 (Ma et al., 2018): channel split and channel shuffle.
* `spec`: A variant of a model family, kept as the choices that make it: a few integers rather than
  a graph.
* `squeezenet`: SqueezeNet (Iandola et al., 2016): fire modules; no batch normalisation, biases
  instead.
* `unseen/`: Published architectures outside the zoo's families: the held-out test of a device's
  predictors.
* `vgg`: VGG (Simonyan and Zisserman, 2015): no batch normalisation, biases in every layer.
"""

from edgeplan.zoo.family import Family
from edgeplan.zoo.priors import prior_models
from edgeplan.zoo.registry import FAMILIES, build_variant, variants
from edgeplan.zoo.spec import VariantSpec

__all__ = ["FAMILIES", "Family", "VariantSpec", "build_variant", "prior_models", "variants"]
