"""Declares the `measurement` section of params.yaml, and bounds the time by the clock that measuring may take."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Ratio = TypeVar("Ratio")  # a number, or an array or column of them


class ReferenceExponents(BaseModel):
    """Exponents say how strongly a time follows each reference: normalised = time x (nominal / now) ** exponent, for both."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compute: Annotated[float, Field(ge=0, le=1.5)]
    bandwidth: Annotated[float, Field(ge=0, le=1.5)]

    def scaled(self, compute: Ratio, bandwidth: Ratio) -> Ratio:
        """Return the factor by which times change with the references, given a ratio of two times of each.

        Now over nominal gives how slow the machine is now, nominal over now what brings its times to nominal speed.
        """
        return compute**self.compute * bandwidth**self.bandwidth  # type: ignore[operator, no-any-return]


class MeasurementSettings(BaseModel):
    """Settings of measuring say how a subject is timed.

    Attributes:
        blocks: blocks per subject, interleaved over the batch so that they lie apart in time.
        min_runs, max_runs: runs of one block (the first of a block is a warm-up and is not counted).
        block_ms: a block goes on for about this long, within those limits.
        reference_runs: runs of each reference before and after a block.
        batch_size: subjects loaded and interleaved at once; what a kill can lose.
        batch_weight_mb: bound on the weights loaded at once.
        min_gap_seconds: least time between two blocks of one subject.
        max_noise: half-range of a subject's normalised blocks, relative; noisier subjects get further blocks and are come back
            to.
        extra_blocks: at most this many further blocks.
        retries: returns to what is noisy, behind all other subjects and within a third of the time that those took.
        on_noise: what becomes of subjects that stay noisy: `keep` keeps them with their noise, as a weight in training and
            as a width in intervals; `refuse`, for those who publish, ends a stage of which too large a share stays noisy.
        max_noisy_share: the largest share of noisy subjects in a stage that is not refused.
        reference_exponents: see `ReferenceExponents`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    blocks: Annotated[int, Field(ge=3, le=50)]
    min_runs: Annotated[int, Field(ge=2, le=1000)]
    max_runs: Annotated[int, Field(ge=2, le=10000)]
    block_ms: Annotated[float, Field(gt=0, le=10000)]
    reference_runs: Annotated[int, Field(ge=1, le=1000)]
    batch_size: Annotated[int, Field(ge=1, le=1000)]
    batch_weight_mb: Annotated[int, Field(ge=1)]
    min_gap_seconds: Annotated[float, Field(ge=0, le=600)]
    max_noise: Annotated[float, Field(gt=0, le=1)]
    extra_blocks: Annotated[int, Field(ge=0, le=50)]
    on_noise: Literal["keep", "refuse"] = "keep"
    max_noisy_share: Annotated[float, Field(gt=0, le=1)]
    retries: Annotated[int, Field(ge=0, le=20)]
    reference_exponents: ReferenceExponents

    def key_fields(self) -> dict[str, float]:
        """Return the settings that decide a measured row; tolerances do not, so changing them re-measures nothing."""
        return self.model_dump(include={"blocks", "min_runs", "max_runs", "block_ms", "reference_runs"})


def node_settings(settings: MeasurementSettings) -> MeasurementSettings:
    """Return the settings of subjects of nodes: many, short, each of copies that tell its time together."""
    return settings.model_copy(
        update={
            "blocks": 3,
            "min_runs": 2,
            "max_runs": 200,
            "block_ms": 6.0,
            "reference_runs": 2,
            "min_gap_seconds": 0.0,
            "extra_blocks": 2,
            "retries": 0,
        }
    )


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Says until when, by `time.monotonic`, more may be measured; what must be measured in any case is, later too."""

    until: float = math.inf

    @classmethod
    def of(cls, seconds: float) -> TimeBudget:
        """Start a budget of seconds now; 0 seconds are unbounded."""
        return cls(time.monotonic() + seconds) if seconds else cls()

    @property
    def left_s(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(self.until - time.monotonic(), 0.0)

    @property
    def over(self) -> bool:
        """Tell whether nothing is left of the budget."""
        return self.left_s == 0.0

    def part(self, share: float) -> TimeBudget:
        """Return a budget of a share of what is left, from now on."""
        return TimeBudget(time.monotonic() + share * self.left_s)
