"""Keeps kernel configurations as columns, so that many of them can be turned into features, stored and deduplicated at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.graph.kernels import KernelConfig

Integers = npt.NDArray[np.int64]

#: Fields that hold words; they are stored as codes into a vocabulary of their own.
WORDS = ("kind", "type", "dtype", "activation", "permutation")
NUMBERS = tuple(f.name for f in fields(KernelConfig) if f.name not in WORDS)
_FLAGS = ("bias", "residual")


@dataclass(frozen=True)
class ConfigTable:
    """Holds many kernel configurations, one column a field.

    Attributes:
        numbers: numeric fields, each (n,); booleans are 0 and 1.
        codes: word fields, each (n,), indices into `words`.
        words: vocabulary of each word field.
    """

    numbers: Mapping[str, Integers]
    codes: Mapping[str, Integers]
    words: Mapping[str, tuple[str, ...]]

    @staticmethod
    def of(configs: Iterable[KernelConfig]) -> ConfigTable:
        """Return the columns of a sequence of configurations."""
        configs = list(configs)
        read = attrgetter(*NUMBERS)
        block = np.array([read(c) for c in configs], dtype=np.int64).reshape(len(configs), len(NUMBERS))
        codes, words = {}, {}
        for name in WORDS:
            values = [getattr(c, name) for c in configs]
            vocabulary = {word: code for code, word in enumerate(dict.fromkeys(values))}
            codes[name] = np.array([vocabulary[v] for v in values], dtype=np.int64)
            words[name] = tuple(vocabulary)
        return ConfigTable({name: np.ascontiguousarray(block[:, i]) for i, name in enumerate(NUMBERS)}, codes, words)

    def __len__(self) -> int:
        return len(self.codes["kind"])

    def take(self, index: npt.NDArray[Any]) -> ConfigTable:
        """Return the rows at `index` (positions or a mask)."""
        return ConfigTable(
            {name: column[index] for name, column in self.numbers.items()},
            {name: column[index] for name, column in self.codes.items()},
            self.words,
        )

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """Return a numeric field as floats (n,)."""
        return self.numbers[name].astype(np.float64)

    def mapped(self, name: str, values: Mapping[str, float], default: float) -> npt.NDArray[np.float64]:
        """Return a word field with each word replaced by its number in `values`, or by `default` (n,)."""
        table = np.array([values.get(word, default) for word in self.words[name]], dtype=np.float64)
        return table[self.codes[name]] if len(self) else np.zeros(0)

    def word(self, name: str, row: int) -> str:
        """Return a word field's value in one row."""
        return self.words[name][int(self.codes[name][row])]

    def row(self, index: int) -> KernelConfig:
        """Return one configuration of the table."""
        numbers: dict[str, Any] = {name: int(column[index]) for name, column in self.numbers.items()}
        numbers |= {name: bool(numbers[name]) for name in _FLAGS}
        return KernelConfig(**(numbers | {name: self.word(name, index) for name in WORDS}))


def kind_codes(table: ConfigTable, kinds: Sequence[str]) -> Integers:
    """Return the position of each row's kind in `kinds`, -1 where it is none of them (n,)."""
    known = {name: float(code) for code, name in enumerate(kinds)}
    return table.mapped("kind", known, -1.0).astype(np.int64)
