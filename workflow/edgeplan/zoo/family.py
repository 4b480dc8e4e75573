"""Describes a model family: a builder, its base model, and how variants are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from random import Random

from edgeplan.errors import FormatError
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices, Slots
from edgeplan.zoo.spec import VariantSpec

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

    Attributes:
        id: short name, e.g. `resnet`.
        paper_name: row of the paper's Table 2, e.g. `ResNets`.
        base_name: the base model the variants resample, e.g. `resnet18`.
        builder: builds the base model or a variant of it.
        input_size: height and width of the input image.
    """

    id: str
    paper_name: str
    base_name: str
    builder: Builder
    input_size: int = 224

    @cached_property
    def slots(self) -> Slots:
        """Return the free dimensions of the base model, with their published values."""
        choices = Choices()
        self.builder(choices, self.base_name)
        return Slots(tuple(choices.channel_defaults), tuple(choices.kernel_defaults))

    def base(self) -> Graph:
        """Build the base model, as published."""
        return _published(self.builder, self.base_name)

    def variant(self, seed: int, index: int) -> VariantSpec:
        """Draw variant number `index` of this family under `seed`, whatever other variants are drawn."""
        # Random hashes a text seed with SHA-512: the same on every platform and Python version.
        channels, kernels = self.slots.draw(Random(f"{seed}/{self.id}/{index}"))  # noqa: S311 - not cryptography
        return VariantSpec(self.id, self.base_name, seed, index, channels, kernels)

    def build(self, spec: VariantSpec) -> Graph:
        """Build the graph of a variant."""
        choices = Choices(spec.channels, spec.kernels)
        try:
            graph, asked = self.builder(choices, spec.name), self.slots
            if (len(asked.channels), len(asked.kernels)) == (len(spec.channels), len(spec.kernels)):
                return graph
        except IndexError:  # fewer choices than the builder asks for
            pass
        raise FormatError(
            f"the spec is of another model than {self.base_name}",
            where=spec.name,
            next_step="generate the variants again with this version",
        )
