"""Published architectures outside the zoo's families: the held-out test of a device's predictors.

They are held out: no family, prior, carrier or calibrating model is drawn from them, no predictor is trained on them, and
nothing may be tuned on how well they are predicted. The list was fixed before the first prediction of any of them; one that is
added later has to be told apart from these.

Modules:

* `cifar`: Networks for images of 32 x 32 pixels.
* `darknet`: Darknet's networks: leaky rectifiers behind every convolution.
* `dense`: Networks that join many earlier maps: HarDNet and PeleeNet.
* `early`: Early large networks, with wide fully connected layers on a flattened image.
* `inception`: Inception-v3 with its factorised convolutions, and Xception.
* `mobile`: Networks for phones: GhostNet, MobileOne, RepVGG (both as they run), SqueezeNext.
* `registry`: The list of held-out architectures, by name.
* `residual`: Residual networks with groups, and with squeeze and excitation.
* `small`: Small networks: digits, keywords, steering a car.
* `superresolution`: Single images enlarged: few channels at high resolution, 9 x 9 and 5 x 5
  convolutions.
"""

from edgeplan.zoo.unseen.registry import UNSEEN

__all__ = ["UNSEEN"]
