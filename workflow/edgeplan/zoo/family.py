"""Describes a model family: a builder, its base model, and variants, each by the few integers that make it; layers of all.

A builder is written once, with the published sizes as defaults. `Choices()` answers with the defaults and notes what was asked;
`Choices(channels, kernels)` answers from a variant's spec in the same order. So nothing but the builder says which layers are
free and which are tied: tied layers reuse one answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from random import Random
from typing import Annotated, Any

import msgspec

from edgeplan.errors import FormatError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph

CLASSES = 1000
IMAGE = (1, 3, 224, 224)
#: nn-Meter, section 3: output channels are resampled in [0.2, 1.8] x Cout (in tenths here: the bounds are exact) ...
LOWEST_TENTHS, HIGHEST_TENTHS = 2, 18
#: ... and kernel sizes from these.
KERNEL_SIZES = (1, 3, 5, 7, 9)


class Choices:
    """Answers a builder's questions, with the defaults or from a spec, and remembers the defaults it was asked."""

    def __init__(self, channels: Sequence[int] | None = None, kernels: Sequence[int] | None = None) -> None:
        self._channels = channels
        self._kernels = kernels
        self.channel_defaults: list[int] = []
        self.kernel_defaults: list[int] = []

    def channels(self, default: int) -> int:
        """Return the output channels of the next free layer: the base model's or the variant's."""
        self.channel_defaults.append(default)
        return default if self._channels is None else self._channels[len(self.channel_defaults) - 1]

    def kernel(self, default: int) -> int:
        """Return the kernel size of the next convolution; one of size 1 is no question and stays 1.

        With 1 x 1 convolutions resampled, MobileNetV1 variants would average thirty times the multiply-adds the paper reports.
        """
        if default == 1:
            return 1
        self.kernel_defaults.append(default)
        return default if self._kernels is None else self._kernels[len(self.kernel_defaults) - 1]


def channel_bounds(default: int) -> tuple[int, int]:
    """Return the smallest and largest channel count of a layer: within [0.2, 1.8] x the base's `default`, at least 1."""
    return max(1, -(-default * LOWEST_TENTHS // 10)), max(1, default * HIGHEST_TENTHS // 10)


def make_divisible(value: float, divisor: int = 8) -> int:
    """Round to the nearest multiple of `divisor`, at least `divisor` and 90 % of `value` (the MobileNets' rounding)."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


def kept_padding(kernel: int, base_kernel: int, base_padding: int) -> int:
    """Return the padding, 0 or more, with which a resampled kernel keeps the base kernel's output size."""
    return max(0, base_padding + (kernel - base_kernel) // 2)


def add_classifier(b: GraphBuilder, x: str, classes: int = CLASSES) -> str:
    """Add global average pooling and the last fully connected layer; its outputs are never resampled."""
    return b.fc(b.flatten(b.gap(x)), classes)


def add_perceptron(b: GraphBuilder, x: str, features: Sequence[int], act: str = "relu") -> str:
    """Add fully connected layers behind a flattened map, an activation behind each but the last."""
    x = b.flatten(x)
    for place, size in enumerate(features, start=1):
        x = b.activation(b.fc(x, size), act if place < len(features) else "")
    return x


FORMAT_VERSION = 1
Size = Annotated[int, msgspec.Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """Describes one variant of a family (nn-Meter, section 3).

    Attributes:
        base: base model whose layers were resampled, e.g. `resnet18`.
        seed: of the whole set of variants.
        index: number of the variant in its family; (seed, family, index) alone decide the choices below.
        channels: output channels, one for each free channel count, in the order the family's builder asks for them. Layers
            whose channels are tied (residual sums, depthwise, squeeze-and-excitation, channel shuffle) share one entry.
        kernels: kernel sizes, one for each convolution that is not 1 x 1, in the same order.
        cell: NASBench201's architecture string; empty in every other family.
    """

    family: str
    base: str
    seed: int
    index: int
    channels: tuple[Size, ...] = ()
    kernels: tuple[Size, ...] = ()
    cell: str = ""

    @property
    def name(self) -> str:
        """Return a name unique among all variants, which is also the graph's."""
        return f"{self.family}_s{self.seed}_{self.index:05d}"

    @property
    def choices(self) -> tuple[object, ...]:
        """Return the choices that make a variant the model it is, whatever its seed and number."""
        return self.base, self.channels, self.kernels, self.cell

    def to_json(self) -> str:
        """Return one compact line of JSON; `from_json` gives back an equal spec."""
        document: dict[str, Any] = {"format_version": FORMAT_VERSION, **asdict(self)}
        for name in ("channels", "kernels") if self.cell else ("cell",):
            del document[name]
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> VariantSpec:
        """Read a spec that `to_json` wrote."""
        try:
            document = json.loads(text)
            if document.pop("format_version") != FORMAT_VERSION:
                raise ValueError(f"format_version is not {FORMAT_VERSION}")  # noqa: TRY301  told as what follows is
            return msgspec.convert(document, cls)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            what = f"variant spec: {error}"
            raise FormatError(what, where=text[:80], next_step="generate the variants again with this version") from error


#: Builds a graph of the given name from choices.
Builder = Callable[[Choices, str], Graph]


def published(builder: Builder, name: str) -> Callable[[], Graph]:
    """Return the builder of a family's published model, no variant, under a name."""
    return partial(_published, builder, name)


def _published(builder: Builder, name: str) -> Graph:
    return builder(Choices(), name)


@dataclass(frozen=True)
class Family:
    """Builds the models of one family, whose variants resample channels and kernel sizes (nn-Meter, section 3).

    `paper_name` is its row of the paper's Table 2, `base_name` the model that variants resample.
    """

    id: str
    paper_name: str
    base_name: str
    builder: Builder

    @cached_property
    def asked(self) -> Choices:
        """Return what the builder of the base model asks: every free dimension, with its published value."""
        choices = Choices()
        self.builder(choices, self.base_name)
        return choices

    def base(self) -> Graph:
        """Build the base model, as published."""
        return _published(self.builder, self.base_name)

    def variant(self, seed: int, index: int) -> VariantSpec:
        """Draw variant number `index` of this family under `seed`, whatever other variants are drawn.

        Channels and kernel sizes are each independent and uniform (nn-Meter, section 3).
        """
        # Random hashes a text seed with SHA-512: the same on every platform and Python version.
        random = Random(f"{seed}/{self.id}/{index}")  # noqa: S311 - not cryptography
        channels = tuple([random.randint(*channel_bounds(default)) for default in self.asked.channel_defaults])
        kernels = tuple([random.choice(KERNEL_SIZES) for _ in self.asked.kernel_defaults])
        return VariantSpec(self.id, self.base_name, seed, index, channels, kernels)

    def build(self, spec: VariantSpec) -> Graph:
        """Build the graph of a variant."""
        choices = Choices(spec.channels, spec.kernels)
        try:
            graph = self.builder(choices, spec.name)
            if (len(choices.channel_defaults), len(choices.kernel_defaults)) == (len(spec.channels), len(spec.kernels)):
                return graph
        except IndexError:  # fewer choices than the builder asks for
            pass
        what = f"the spec is of another model than {self.base_name}"
        raise FormatError(what, where=spec.name, next_step="generate the variants again with this version")
