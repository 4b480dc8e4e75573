"""Builds model families, their seeded variants, and the base models behind the prior distribution (nn-Meter, section 3).

Modules:

* `alexnet`: Builds AlexNet in torchvision's one-tower form (Krizhevsky, 2014): no local response
  normalisation, biases in every layer.
* `caffe`: Builds AlexNet and GoogLeNet as Caffe's and ncnn's model zoos have them: local response
  normalisation, biases everywhere.
* `choices`: Offers the free dimensions of a family: builders ask for each output channel count and
  kernel size, and get it from here.
* `cold_start_models`: Lists the models of NNV12's Table 4, on which cold starts are planned and
  measured, beside the paper's figures.
* `crnn`: Builds CRNN-lite, the text recogniser of chineseocr_lite
  (github.com/ouyanghuiyu/chineseocr_lite, `crnn_lite`, with LSTM).
* `densenet`: Builds DenseNet-BC (Huang et al., 2017).
* `efficientnet`: Builds EfficientNet-B0 (Tan and Le, 2019): inverted residuals with
  squeeze-and-excitation and swish.
* `eight_bits`: Variants of models in eight bits, by ONNX Runtime's static quantisation with seeded
  images to calibrate by.
* `family`: Describes a model family: a builder, its base model, and how variants are drawn.
* `googlenet`: Builds GoogLeNet (Szegedy et al., 2015) in torchvision's form: batch normalisation, 3
  x 3 in place of 5 x 5 convolutions.
* `layers`: Builds layers that several families share.
* `mnasnet`: Builds MnasNet-B1 (Tan et al., 2019), in torchvision's form.
* `mobilenet_yolo`: Builds two detectors of the MobileNet-YOLO family
  (github.com/eric612/MobileNet-YOLO), as ncnn's benchmark has them.
* `mobilenetv1`: Builds MobileNetV1 (Howard et al., 2017): depthwise separable convolutions.
* `mobilenetv2`: Builds MobileNetV2 (Sandler et al., 2018): inverted residuals with linear
  bottlenecks.
* `mobilenetv3`: Builds MobileNetV3 (Howard et al., 2019): squeeze-and-excitation with hard sigmoid,
  hard swish.
* `nasbench201`: Builds networks of NAS-Bench-201 (Dong and Yang, 2020): three stages of one
  searched cell, on 32 x 32 images of ten classes.
* `priors`: Lists the base models behind the prior distribution of kernel configurations (nn-Meter,
  section 5).
* `proxylessnas`: Builds ProxylessNAS (Cai et al., 2019): the networks found for a phone, a GPU and
  a CPU.
* `registry`: Lists the families of the paper's Table 2 and draws their variants.
* `resnet`: Builds ResNet (He et al., 2016) in torchvision's form (bottlenecks stride in their 3 x 3
  convolution) unless told.
* `shufflenet`: Builds ShuffleNet (Zhang et al., 2018): grouped pointwise convolutions with channel
  shuffle.
* `shufflenetv2`: Builds ShuffleNetV2 (Ma et al., 2018): channel split and channel shuffle.
* `spec`: Describes a variant of a model family by the choices that make it: a few integers rather
  than a graph.
* `squeezenet`: Builds SqueezeNet (Iandola et al., 2016): fire modules; no batch normalisation,
  biases instead.
* `unseen/`: Builds published architectures outside the zoo's families: the held-out test of a
  device's predictors.
* `vgg`: Builds VGG (Simonyan and Zisserman, 2015): no batch normalisation, biases in every layer.
"""

from edgeplan.zoo.family import Family
from edgeplan.zoo.priors import prior_models
from edgeplan.zoo.registry import FAMILIES, build_variant, variants
from edgeplan.zoo.spec import VariantSpec

__all__ = ["FAMILIES", "Family", "VariantSpec", "build_variant", "prior_models", "variants"]
