"""Describes a variant of a model family by the choices that make it: a few integers rather than a graph."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import msgspec

from edgeplan.errors import FormatError

FORMAT_VERSION = 1
Size = Annotated[int, msgspec.Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """Describes one variant of a family (nn-Meter, section 3).

    Attributes:
        family: family id, e.g. `resnet`.
        base: base model whose layers were resampled, e.g. `resnet18`.
        seed: seed of the whole set of variants.
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
            raise FormatError(
                f"variant spec: {error}", where=text[:80], next_step="generate the variants again with this version"
            ) from error
