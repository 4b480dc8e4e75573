"""Divides kernels into strata, kind by quantile of predicted time, from which a new device's samples are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_QUANTILES = 4
#: Samples drawn at random for each that is taken: the one that fills what is lacking most.
_DRAWN = 6


@dataclass(frozen=True)
class Strata:
    """Holds strata with the share of time that kernels of each have in models that matter.

    Attributes:
        bounds: latencies (us) between its strata, by kind.
        share: share of time, by kind and number of the stratum.
    """

    bounds: dict[str, Floats]
    share: dict[tuple[str, int], float]

    @staticmethod
    def of(kind: npt.NDArray[np.object_], latency_us: Floats) -> Strata:
        """Divide kernels of models (n,) into strata by the latency that a predictor gives them."""
        bounds: dict[str, Floats] = {}
        share: dict[tuple[str, int], float] = {}
        for name in sorted({str(k) for k in kind}):
            own = latency_us[kind == name]
            own = own[np.isfinite(own)]
            if not len(own):
                continue
            bounds[name] = np.quantile(own, np.arange(1, _QUANTILES) / _QUANTILES)
            place = np.searchsorted(bounds[name], own)
            for number in range(_QUANTILES):
                share[name, number] = float(own[place == number].sum() / np.nansum(latency_us))
        return Strata(bounds, share)

    def counts(self, kind: Sequence[str], latency_us: Floats) -> dict[tuple[str, int], int]:
        """Count kernels by stratum; those of kinds without strata are in none."""
        found: dict[tuple[str, int], int] = {}
        for name, us in zip(kind, latency_us, strict=True):
            if name in self.bounds and np.isfinite(us):
                at = (name, int(np.searchsorted(self.bounds[name], us)))
                found[at] = found.get(at, 0) + 1
        return found


def drawn(strata: Strata, samples: Sequence[dict[tuple[str, int], int]], rng: np.random.Generator) -> Iterator[int]:
    """Yield the numbers of samples in the order in which they are measured, all of them in the end.

    Of a few drawn at random the one comes next that adds most: a stratum counts by its share of time, and each further
    kernel of it less.

    Args:
        strata: strata of models that matter.
        samples: kernels of each sample by stratum.
        rng: source of the draws.
    """
    left = [int(i) for i in rng.permutation(len(samples))]
    have: dict[tuple[str, int], int] = {}

    def gain(sample: int) -> float:
        counts = samples[sample].items()
        return float(
            sum(strata.share.get(at, 0.0) * np.log((1 + have.get(at, 0) + n) / (1 + have.get(at, 0))) for at, n in counts)
        )

    while left:
        few = left[:_DRAWN]
        taken = max(few, key=gain)
        left = left[_DRAWN:] + [i for i in few if i != taken]  # those not taken come again behind all others
        for at, n in samples[taken].items():
            have[at] = have.get(at, 0) + n
        yield taken
