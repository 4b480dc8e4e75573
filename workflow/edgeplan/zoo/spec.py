"""A variant of a model family, kept as the choices that make it: a few integers rather than a graph."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from edgeplan.errors import FormatError

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One variant (nn-Meter, section 3).

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
    channels: tuple[int, ...] = ()
    kernels: tuple[int, ...] = ()
    cell: str = ""

    @property
    def name(self) -> str:
        """A name unique among all variants, also the graph's."""
        return f"{self.family}_s{self.seed}_{self.index:05d}"

    @property
    def choices(self) -> tuple[object, ...]:
        """Return the choices that make a variant the model it is, whatever its seed and number."""
        return self.base, self.channels, self.kernels, self.cell

    def to_json(self) -> str:
        """One compact line of JSON; `from_json` gives back an equal spec."""
        document: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "family": self.family,
            "base": self.base,
            "seed": self.seed,
            "index": self.index,
        }
        if self.cell:
            document["cell"] = self.cell
        else:
            document["channels"] = self.channels
            document["kernels"] = self.kernels
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> VariantSpec:
        """Read a spec that `to_json` wrote.

        Raises:
            FormatError: the text is not a spec of this format version; the message names the field.
        """
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise _wrong(f"not JSON: {error}", text) from error
        if not isinstance(document, dict):
            raise _wrong("not a JSON object", text)
        if document.pop("format_version", None) != FORMAT_VERSION:
            raise _wrong(f"format_version is not {FORMAT_VERSION}", text)
        unknown = document.keys() - _FIELD_TYPES.keys()
        if unknown:
            raise _wrong(f"unknown field {min(unknown)!r}", text)
        for field, expected in _FIELD_TYPES.items():
            value = document.get(field, [] if expected is list else "" if field == "cell" else None)
            if not isinstance(value, expected) or isinstance(value, bool):
                raise _wrong(f"field {field!r} should be {expected.__name__}, found {value!r}", text)
            if isinstance(value, list):
                if not all(type(size) is int and size > 0 for size in value):
                    raise _wrong(f"field {field!r} should hold positive integers, found {value!r}", text)
                value = tuple(value)
            document[field] = value
        return cls(**document)


_FIELD_TYPES: dict[str, type] = {
    "family": str,
    "base": str,
    "seed": int,
    "index": int,
    "channels": list,
    "kernels": list,
    "cell": str,
}


def _wrong(what: str, text: str) -> FormatError:
    excerpt = text if len(text) <= 80 else text[:77] + "..."  # one line of a terminal
    return FormatError(f"variant spec: {what}", where=excerpt, next_step="generate the variants again with this version")
