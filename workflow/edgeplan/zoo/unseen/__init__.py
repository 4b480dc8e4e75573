"""Builds published architectures outside the zoo's families: the held-out test of a device's predictors.

They are held out: no family, prior, carrier or calibrating model is drawn from them, no predictor is trained on them, and
nothing may be tuned on how well they are predicted. The list was fixed before the first prediction of any of them; one that is
added later has to be told apart from these.
"""

from edgeplan.zoo.unseen.registry import UNSEEN

__all__ = ["UNSEEN"]
