"""Chooses the proposed carriers that a round measures: those whose convolutions a committee of models disagrees on most.

Algorithm 2 draws kernels around those that were predicted badly: many more than a round can measure, and the worst of a small
test set are worst by chance as well. Where models that each learned from other carriers disagree, a measurement teaches most
(query by committee: Seung, Opper and Sompolinsky, COLT 1992). To see that needs no label, so that many can be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import lightgbm as lgb
import numpy as np
import numpy.typing as npt

from edgeplan.chapters.prediction.sampling.rows import CONVOLUTIONS, Row, config_of, design, latency_of, log_work
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import KernelConfig
from edgeplan.graph.splitting import split

# Fixed rather than tuned or in params.yaml: it decides which carriers a round measures, and with other values the stored rows
# would not do. One thread: the measuring process is pinned to the cores of the device.
MODEL = {"objective": "l1", "learning_rate": 0.08, "num_leaves": 31, "min_data_in_leaf": 5, "verbose": -1, "num_threads": 1}
_MEMBERS = 6
_TREES = 150
#: Engines count whole microseconds: labels below one tell how they round. None is learned from, and none looked for.
_RESOLVED_US = 1.0


class Committee:
    """Predicts the latency of convolutions by several models, each trained on measured carriers drawn with replacement.

    They do not know which implementation the engine would dispatch to: of a carrier that has not run, nobody does.

    Args:
        rows: labelled convolutions of the carriers measured so far, some of them of at least a microsecond.
        rules: fusion rules, which tell the kernels of a carrier that has not run.
        seed: of the draws.
    """

    def __init__(self, rows: Sequence[Row], rules: FusionRules, seed: str) -> None:
        self._rules = rules
        clear = [row for row in rows if latency_of(row) >= _RESOLVED_US]
        configs = [config_of(row) for row in clear]
        inputs, per_mac = design(configs), np.log([latency_of(row) for row in clear]) - log_work(configs)
        of_carrier: dict[str, list[int]] = {}
        for index, row in enumerate(clear):
            of_carrier.setdefault(str(row["subject"]), []).append(index)
        carriers = sorted(of_carrier)
        rng = Random(seed)  # noqa: S311  not cryptography
        self._models = []
        for _ in range(_MEMBERS):
            drawn = [index for carrier in rng.choices(carriers, k=len(carriers)) for index in of_carrier[carrier]]
            self._models.append(lgb.train(MODEL, lgb.Dataset(inputs[drawn], per_mac[drawn]), _TREES))

    def disagreement(self, configs: Sequence[KernelConfig]) -> npt.NDArray[np.float64]:
        """Return the standard deviation of the predicted ln(latency) of convolutions; 0 below a microsecond (kernels,)."""
        inputs = design(configs)
        predicted = np.array([model.predict(inputs) for model in self._models])
        latency_us = np.exp(predicted.mean(axis=0) + log_work(configs))
        return np.where(latency_us >= _RESOLVED_US, predicted.std(axis=0), 0.0)

    def ranked(self, carriers: Iterable[Graph]) -> list[Graph]:
        """Sort carriers by the committee's disagreement over their convolutions, most first."""
        proposed = list(carriers)
        kernels = ((number, kernel.config) for number, graph in enumerate(proposed) for kernel in split(graph, self._rules))
        found = [(number, config) for number, config in kernels if config.kind in CONVOLUTIONS]
        if not found:
            return proposed
        numbers, configs = zip(*found, strict=True)
        total = np.bincount(numbers, weights=self.disagreement(configs), minlength=len(proposed))
        return [proposed[i] for i in np.argsort(-total, kind="stable")]
