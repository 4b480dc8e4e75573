"""What the chapter on memory measured, and the parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

#: What shares are of.
DEFAULT = "onnxruntime"
OWN = "edgeplan"


@dataclass(frozen=True)
class MemoryEvidence:
    """Rows of the stage `memory`; see `measuring.NUMBERS`.

    Attributes:
        device: name of the device.
        runs: all rows.
        environment: of the machine.
    """

    device: str
    runs: pd.DataFrame
    environment: Mapping[str, Any]

    def _of(self, case: str) -> pd.DataFrame:
        return self.runs[self.runs["case"] == case]

    @cached_property
    def stock(self) -> pd.DataFrame:
        """Stock engines."""
        return self._of("stock")

    @cached_property
    def budgets(self) -> pd.DataFrame:
        """Plans for shares of what ONNX Runtime takes; those that do not fit have a reason and what is needed."""
        return self._of("budget")

    @cached_property
    def planned(self) -> pd.DataFrame:
        """All plans that ran, the least ones among them."""
        both = self.runs[self.runs["case"].isin(["budget", "least"])]
        return both[both["median_ms"].notna()]

    @cached_property
    def least(self) -> pd.DataFrame:
        """The least peak of each model that runs, with `stock_peak` and `frugal_peak` beside it."""
        stock = self.stock
        default = stock[stock["setting"] == DEFAULT].set_index("model")["peak"]
        frugal = stock[stock["setting"].str.endswith("frugal")].set_index("model")["peak"]
        found = self._of("least").assign(stock_peak=lambda f: f["model"].map(default))
        return found.assign(frugal_peak=lambda f: f["model"].map(frugal))

    @cached_property
    def slowed(self) -> pd.DataFrame:
        """The model on a processor that is slower by waiting."""
        return self._of("slowed")

    @cached_property
    def held(self) -> pd.DataFrame:
        """A stock engine and our plan, held to as much memory."""
        return self._of("held")

    @cached_property
    def switched(self) -> pd.DataFrame:
        """Sessions that changed their budget."""
        return self._of("switched")

    @cached_property
    def second(self) -> pd.DataFrame:
        """Plans with more computing threads."""
        return self._of("second")

    @cached_property
    def layers(self) -> pd.DataFrame:
        """Layers of each model, no step cut, in order."""
        return self._of("layer")

    @cached_property
    def cuts(self) -> pd.DataFrame:
        """Ways to cut each model that were profiled."""
        return self._of("cut")

    @cached_property
    def ablated(self) -> pd.DataFrame:
        """Plans without static memory, without loading ahead, and without both."""
        return self._of("ablated")

    @cached_property
    def adapted(self) -> pd.DataFrame:
        """Inferences of a session that goes through budgets."""
        return self._of("adapted")

    @cached_property
    def offline(self) -> pd.DataFrame:
        """What planning takes at the paper's budgets."""
        return self._of("offline")

    @cached_property
    def layouts(self) -> pd.DataFrame:
        """Heights of layouts of activations and scratch, by who lays out."""
        return self._of("layout")
