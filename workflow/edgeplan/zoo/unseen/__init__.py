"""Builds published architectures outside the zoo's families: the held-out test of a device's predictors.

They are held out: no family, prior, carrier or calibrating model is drawn from them, no predictor is trained on them, and
nothing may be tuned on how well they are predicted. The list was fixed before the first prediction of any of them; one that is
added later has to be told apart from these.

Modules:

* `cifar`: Builds networks for images of 32 x 32 pixels.
* `darknet`: Builds Darknet's networks: leaky rectifiers behind every convolution.
* `dense`: Builds networks that join many earlier maps: HarDNet and PeleeNet.
* `early`: Builds early large networks, with wide fully connected layers on a flattened image.
* `inception`: Builds Inception-v3 with its factorised convolutions, and Xception.
* `mobile`: Builds networks for phones: GhostNet, MobileOne, RepVGG (both as they run), SqueezeNext.
* `registry`: Lists the held-out architectures, by name.
* `residual`: Builds residual networks with groups, and with squeeze and excitation.
* `small`: Builds small networks: digits, keywords, steering a car.
* `superresolution`: Builds networks that enlarge a single image: few channels at high resolution, 9
  x 9 and 5 x 5 convolutions.
"""

from edgeplan.zoo.unseen.registry import UNSEEN

__all__ = ["UNSEEN"]
