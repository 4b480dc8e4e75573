"""Cost documents of realistic proportions: Inception v3's modules and BERT's layers on a pair of unequal processors.

Shapes are the published ones; speeds are drawn: each operator suits one of the two more than the
other, as kernels do. Splits are in steps of 16 channels, each part pays for itself and a little for
being a part.
"""

import json
import random
from collections.abc import Sequence
from typing import Any

from edgeplan.planning.partition.costs import PairCosts
from edgeplan.planning.partition.document import parse_costs

_CPU_GFLOPS, _GPU_GFLOPS = 115.0, 160.0
_BANDWIDTH = 10e6  # bytes a ms


class Builder:
    """Collects operators; the names of the methods are those of layers."""

    def __init__(self, seed: int, *, equal: bool = False) -> None:
        self.rng = random.Random(seed)  # noqa: S311 (instances, not secrets)
        self.spread = 1.1 if equal else 2.2
        self.operators: list[dict[str, Any]] = []

    def add(self, name: str, inputs: Sequence[str], flops: float, channels: int, size: int) -> str:
        """An operator with weights, split over its output channels."""
        affinity = self.rng.uniform(1 / self.spread, self.spread)
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
        return self._append(name, inputs, options, "compute", size)

    def small(self, name: str, inputs: Sequence[str], size: int) -> str:
        """Pooling, concatenation, addition: bound by bandwidth, never split."""
        ms = size / _BANDWIDTH
        options = [{"on": "cpu", "cpu_ms": 1.5 * ms}, {"on": "gpu", "gpu_ms": 2.0 * ms}]
        return self._append(name, inputs, options, "bandwidth", size)

    def _append(self, name: str, inputs: Sequence[str], options: list[dict[str, Any]], load: str, size: int) -> str:
        entry = {"name": name, "inputs": list(inputs), "options": options, "load": load, "bytes": size}
        self.operators.append(entry)
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


def inception_a(b: Builder, before: str, n: str, cin: int = 192, pool: int = 32) -> tuple[str, int]:
    """10 steps with the one before."""
    one = b.conv(n + "1x1", before, 35, cin, 64, 1)
    five = b.conv(n + "5x5", b.conv(n + "5x5r", before, 35, cin, 48, 1), 35, 48, 64, 25)
    three = b.conv(n + "3a", b.conv(n + "3r", before, 35, cin, 64, 1), 35, 64, 96, 9)
    three = b.conv(n + "3b", three, 35, 96, 96, 9)
    pooled = b.conv(n + "pool1x1", b.small(n + "pool", [before], 35 * 35 * cin * 4), 35, cin, pool, 1)
    out = 224 + pool
    return b.small(n + "concat", [one, five, three, pooled], 35 * 35 * out * 4), out


def inception_c(b: Builder, before: str, n: str, c7: int = 160) -> tuple[str, int]:
    """13 steps with the one before."""
    one = b.conv(n + "1x1", before, 17, 768, 192, 1)
    seven = b.conv(n + "7r", before, 17, 768, c7, 1)
    seven = b.conv(n + "7b", b.conv(n + "7a", seven, 17, c7, c7, 7), 17, c7, 192, 7)
    twice = b.conv(n + "dr", before, 17, 768, c7, 1)
    for k, out in enumerate((c7, c7, c7, 192)):
        twice = b.conv(f"{n}d{k}", twice, 17, c7, out, 7)
    pooled = b.conv(n + "pool1x1", b.small(n + "pool", [before], 17 * 17 * 768 * 4), 17, 768, 192, 1)
    return b.small(n + "concat", [one, seven, twice, pooled], 17 * 17 * 768 * 4), 768


def inception_e(b: Builder, before: str, n: str, cin: int = 1280) -> tuple[str, int]:
    """12 steps with the one before."""
    one = b.conv(n + "1x1", before, 8, cin, 320, 1)
    three = b.conv(n + "3r", before, 8, cin, 384, 1)
    a, c = (b.conv(n + f"3{s}", three, 8, 384, 384, 3) for s in "ab")
    twice = b.conv(n + "d3", b.conv(n + "dr", before, 8, cin, 448, 1), 8, 448, 384, 9)
    d, e = (b.conv(n + f"d{s}", twice, 8, 384, 384, 3) for s in "ab")
    pooled = b.conv(n + "pool1x1", b.small(n + "pool", [before], 8 * 8 * cin * 4), 8, cin, 192, 1)
    return b.small(n + "concat", [one, a, c, d, e, pooled], 8 * 8 * 2048 * 4), 2048


def bert_layer(b: Builder, before: str, n: str, tokens: int = 128, hidden: int = 768) -> str:
    """12 steps."""

    def linear(name: str, inputs: Sequence[str], cin: int, cout: int) -> str:
        return b.add(n + name, inputs, 2.0 * tokens * cin * cout, cout, tokens * cout * 4)

    q, k, v = (linear(s, [before], hidden, hidden) for s in "qkv")
    size = tokens * hidden * 4
    scores = b.add(n + "scores", [q, k], 2.0 * tokens * tokens * hidden, 16, 12 * tokens * tokens * 4)
    weights = b.small(n + "softmax", [scores], 12 * tokens * tokens * 4)
    context = b.add(n + "context", [weights, v], 2.0 * tokens * tokens * hidden, 16, size)
    added = b.small(n + "norm1", [linear("out", [context], hidden, hidden), before], size)
    wide = linear("ffn1", [added], hidden, 4 * hidden)
    narrow = linear("ffn2", [b.small(n + "gelu", [wide], 4 * size)], 4 * hidden, hidden)
    return b.small(n + "norm2", [narrow, added], size)


def module(kind: str, seed: int, *, equal: bool = False) -> Builder:
    """One module behind a convolution: "A", "C", "E" of Inception v3, or "bert"."""
    b = Builder(seed, equal=equal)
    if kind == "A":
        inception_a(b, b.conv("stem", "", 35, 80, 192, 9), "a.")
    elif kind == "C":
        inception_c(b, b.conv("stem", "", 17, 288, 768, 1), "c.")
    elif kind == "E":
        inception_e(b, b.conv("stem", "", 8, 768, 1280, 1), "e.")
    else:
        bert_layer(b, b.small("embedding", [], 128 * 768 * 4), "0.")
    return b


def inception_v3(seed: int, *, equal: bool = False) -> Builder:
    """The whole model, fused: every convolution with its normalisation and activation."""
    b = Builder(seed, equal=equal)
    at = b.conv("stem0", "", 149, 3, 32, 9)
    at = b.conv("stem2", b.conv("stem1", at, 147, 32, 32, 9), 147, 32, 64, 9)
    at = b.conv("stem3", b.small("stem.pool0", [at], 73 * 73 * 64 * 4), 73, 64, 80, 1)
    at = b.small("stem.pool1", [b.conv("stem4", at, 71, 80, 192, 9)], 35 * 35 * 192 * 4)
    channels = 192
    for k, pool in enumerate((32, 64, 64)):
        at, channels = inception_a(b, at, f"a{k}.", channels, pool)
    one = b.conv("b.3", at, 17, channels, 384, 9)
    two = b.conv("b.d1", b.conv("b.d0", at, 35, channels, 64, 1), 35, 64, 96, 9)
    two = b.conv("b.d2", two, 17, 96, 96, 9)
    at = b.small("b.concat", [one, two, b.small("b.pool", [at], 17 * 17 * 288 * 4)], 17 * 17 * 768 * 4)
    for k, c7 in enumerate((128, 160, 160, 192)):
        at, channels = inception_c(b, at, f"c{k}.", c7)
    one = b.conv("d.3b", b.conv("d.3a", at, 17, 768, 192, 1), 8, 192, 320, 9)
    two = b.conv("d.7a", at, 17, 768, 192, 1)
    two = b.conv("d.7d", b.conv("d.7c", b.conv("d.7b", two, 17, 192, 192, 7), 17, 192, 192, 7), 8, 192, 192, 9)
    at = b.small("d.concat", [one, two, b.small("d.pool", [at], 8 * 8 * 768 * 4)], 8 * 8 * 1280 * 4)
    channels = 1280
    for k in range(2):
        at, channels = inception_e(b, at, f"e{k}.", channels)
    b.add("fc", [b.small("pool", [at], 2048 * 4)], 2.0 * 2048 * 1000, 1000, 4000)
    return b


def bert(seed: int, layers: int = 12) -> Builder:
    """BERT base; all layers cost the same, as layers of one shape do when their costs are predicted."""
    b = Builder(seed)
    at = b.small("embedding", [], 128 * 768 * 4)
    for k in range(layers):
        b.rng = random.Random(seed)  # noqa: S311
        at = bert_layer(b, at, f"{k}.")
    return b


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
