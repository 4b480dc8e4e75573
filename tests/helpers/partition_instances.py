"""Cost documents of realistic proportions, on a pair of unequal processors: chains and ladders of convolutions.

Speeds are drawn: each operator suits one of the two more than the other, as kernels do. Splits are in steps of 16 channels;
each part pays for itself and a little for being a part.
"""

import json
import random
from collections.abc import Sequence
from typing import Any

from edgeplan.planning.partition.costs import PairCosts
from edgeplan.planning.partition.document import parse_costs

_CPU_GFLOPS, _GPU_GFLOPS = 115.0, 160.0
_SPREAD = 2.2


class Builder:
    """Collects operators; the names of the methods are those of layers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 (instances, not secrets)
        self.operators: list[dict[str, Any]] = []

    def add(self, name: str, inputs: Sequence[str], flops: float, channels: int, size: int) -> str:
        """An operator with weights, split over its output channels."""
        affinity = self.rng.uniform(1 / _SPREAD, _SPREAD)
        cpu, gpu = flops / 1e6 / _CPU_GFLOPS * affinity, flops / 1e6 / _GPU_GFLOPS / affinity
        options: list[dict[str, Any]] = [{"on": "cpu", "cpu_ms": cpu}, {"on": "gpu", "gpu_ms": gpu}]
        for c in range(16, channels, 16):
            share = c / channels
            wobble = self.rng.uniform(1.0, 1.08)
            options.append(
                {
                    "on": "split",
                    "cpu_share": share,
                    "dimension": "channels",
                    "cpu_ms": cpu * share * wobble + 0.002,
                    "gpu_ms": gpu * (1 - share) * wobble + 0.003,
                }
            )
        self.operators.append({"name": name, "inputs": list(inputs), "options": options, "bytes": size})
        return name

    def conv(self, name: str, before: str, image: int, cin: int, cout: int, kernel: int) -> str:
        """A convolution; `kernel` is the number of its taps."""
        size = image * image * cout * 4
        return self.add(name, [before] if before else [], 2.0 * image * image * cin * cout * kernel, cout, size)

    def document(self, **more: Any) -> dict[str, Any]:
        """The cost document. `mb_per_ms` gives each operator the time of moving its output."""
        speed = more.pop("mb_per_ms", 0.0)
        operators = []
        for entry in self.operators:
            kept = {k: v for k, v in entry.items() if k != "bytes"}
            move = {"to_cpu_ms": entry["bytes"] / 1e6 / speed, "to_gpu_ms": entry["bytes"] / 1e6 / speed} if speed else {}
            operators.append({**kept, **move})
        head = {"format_version": 1, "model": "instance", "cpu_to_gpu_ms": 0.002, "gpu_to_cpu_ms": 0.002}
        return {**head, **more, "operators": operators}

    def costs(self, **more: Any) -> PairCosts:
        """The costs, read as a user's document is."""
        return parse_costs(json.dumps(self.document(**more)).encode(), "instance")


def chain(steps: int, seed: int) -> Builder:
    """Convolutions one behind the other."""
    b = Builder(seed)
    at = ""
    for k in range(steps):
        image = b.rng.choice((56, 28, 14))
        at = b.conv(f"conv{k}", at, image, 64, 16 * b.rng.randint(2, 16), 9)
    return b


def ladder(steps: int, seed: int, *, reach: int = 4) -> Builder:
    """A random graph: each operator reads one or two of the few before it."""
    b = Builder(seed)
    names: list[str] = []
    for k in range(steps):
        recent = names[-reach:]
        inputs = b.rng.sample(recent, min(len(recent), b.rng.randint(1, 2)))
        names.append(b.add(f"op{k}", inputs, 1e7 * b.rng.uniform(1, 30), 64, 200_000))
    return b
