"""Profiles of realistic proportions: kernels like those of NNV12's Table 2, steps of very different size."""

import random
from dataclasses import replace

from edgeplan.planning.profile import Candidate, Contention, Fresh, Layer, Profile

_FRESH = Fresh(read=1.2, map=2.5, create=1.2, transform=1.1, execute=1.15, hand_over_ms=0.01)
# Per unit of size: read raw, transform, read cache, create, execute (ms)
_KERNELS = {
    "winograd": (0.70, 38.2, 5.2, 0.5, 3.0),
    "sgemm": (0.70, 2.2, 0.70, 0.3, 8.1),
    "packed": (0.70, 2.2, 0.70, 0.2, 18.6),
    "direct": (0.70, 0.0, 0.70, 0.1, 8.0),
}


def realistic(steps: int, seed: int, *, little_cores: int = 0, little_ratio: float = 1.0, preparation: float = 1.0) -> Profile:
    """Two equal cores, or one big and some little ones; `preparation` scales what must be done before execution."""
    rng = random.Random(seed)  # noqa: S311 (instances, not secrets)
    layers = []
    for k in range(steps):
        size = rng.lognormvariate(0, 1)
        candidates = []
        for name, times in _KERNELS.items():
            raw, transform, cached, create, execute = (size * t * rng.uniform(0.7, 1.4) for t in times)
            faster = rng.uniform(1.4, 2.0)
            for source, read, work in (
                ("raw", raw, transform),
                ("cached_read", cached, 0.0),
                ("cached_mmap", 0.3 * cached, 0.0),
            ):
                slower = 1.08 if source == "cached_mmap" else 1.0  # first touch
                executions = {1: execute * slower} | ({} if little_cores else {2: execute * slower / faster})
                stages = ({"big": t * preparation} for t in (read, create, work))
                candidates.append(Candidate(name, source, *stages, execute_ms=executions, read_bytes=int(1e6 * read)))
        layers.append(Layer(f"step{k}", (f"conv{k}",), tuple(candidates)))
    big = 1 if little_cores else 2
    return Profile("realistic", "nhwc", big, little_cores, little_ratio, tuple(layers), Contention(1.1, 1.15, 1.05, 1.5))


def layouts(steps: int, seed: int) -> tuple[Profile, ...]:
    """Three home layouts of one model."""
    names = ("nhwc", "blocked16", "nchw")
    return tuple(
        replace(realistic(steps, seed + i), layout=name, start_ms=0.25 * i, fresh=_FRESH) for i, name in enumerate(names)
    )
