"""These settings say how profiles are measured, and on which cores."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.errors import DeviceError
from edgeplan.measurement.process.interference import LOOK_RUNS
from edgeplan.runtime.library import require_installed
from edgeplan.support.files import FilePath


class ProfileSettings(BaseModel):
    """Fixes the samples and tolerances of profiling.

    Attributes:
        blocks: samples of every candidate, in blocks that go through the whole model and so lie apart in time.
        warm_runs: executions after the first one of a block, at each width.
        reference_runs: runs of each reference before and after a round.
        max_drift: a round is repeated if the machine's slowness differs by more than this (relative) between start and end.
        max_waiting: likewise one during which the threads waited for processors for more than this share of its time.
        retries: repeats of such a round; the last one counts, with its noise. Where noise is kept: blocks after the others, for
            candidates that have disturbed samples only.
        max_noisy_share: the share of rounds that may stay bad; beyond it nothing is stored if noise is refused.
        margin, exchange: a candidate keeps its first sample only, if another one is better by the factor `margin` in
            preparation or in execution, and this gain is more than `exchange` times what it loses in the other: no core's time
            is worth that much more than another's.
        page_cache: where the files lie before each reading; stored rows name it.
        on_noise: "keep" waits for nothing: samples that were preempted count only where there are no others, and what is left
            of noise is stated. "refuse" waits for quiet moments, repeats disturbed rounds and stores nothing from a machine
            that is too busy.
        budget_seconds: by the clock. Beyond it only what must be known is measured: every candidate once, and at all cores
            those that may be in a plan. 0 is unbounded.
        thorough: whether programs are started under each home layout, in every way; else under the most promising one only,
            the plans of all are held against each other, and what is clearly worse gets no more than a look.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    blocks: Annotated[int, Field(ge=2, le=50)] = 6
    warm_runs: Annotated[int, Field(ge=1, le=100)] = 1
    reference_runs: Annotated[int, Field(ge=1, le=100)] = LOOK_RUNS
    max_drift: Annotated[float, Field(gt=0, le=10)] = 0.3
    max_waiting: Annotated[float, Field(gt=0, le=10)] = 0.1
    retries: Annotated[int, Field(ge=0, le=20)] = 3
    max_noisy_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    margin: Annotated[float, Field(gt=1, le=100)] = 1.5
    exchange: Annotated[float, Field(gt=1, le=1000)] = 20.0
    page_cache: Literal["cached"] = "cached"
    on_noise: Literal["keep", "refuse"] = "keep"
    budget_seconds: Annotated[float, Field(ge=0, le=86400)] = 0.0
    thorough: bool = True

    def key_fields(self) -> dict[str, Any]:
        """Return the settings that decide a measured row: not tolerances, which re-measure nothing."""
        fields = {"blocks", "warm_runs", "reference_runs", "margin", "exchange", "page_cache"}
        # where they have their defaults they are left out, as rows of before they were there have no such fields
        known = type(self).model_fields
        fields |= {name for name in ("on_noise", "thorough") if getattr(self, name) != known[name].default}
        return self.model_dump(include=fields)

    @property
    def strict(self) -> bool:
        """Tell whether a busy machine is waited for, and refused."""
        return self.on_noise == "refuse"


#: What `edgeplan plan cold-start` measures by: for a plan that starts as fast as one from a thorough profile.
FAST = ProfileSettings(blocks=3, reference_runs=4, margin=1.25, budget_seconds=20.0, thorough=False)


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores are the processors of a device.

    Attributes:
        big: executing cores; on a machine of equal cores all of them.
        little: cores that only prepare.
        little_ratio: preparation waits until it has taken this many times its own duration (a chip stood for by waiting); 1
            where little cores are what the chip has.
    """

    big: tuple[int, ...]
    little: tuple[int, ...] = ()
    little_ratio: float = 1.0

    @property
    def widths(self) -> tuple[int, ...]:
        """Return widths at which execution is measured: one core, and all that execute."""
        return tuple(dict.fromkeys((1, len(self.big))))

    @property
    def classes(self) -> dict[str, int]:
        """Return a processor of each class whose preparation is measured."""
        measured = {"big": self.big[0]}
        if self.little and self.little_ratio == 1.0:
            measured["little"] = self.little[0]
        return measured

    @property
    def all(self) -> tuple[int, ...]:
        """Return the numbers of all processors."""
        return (*self.big, *self.little)


def planning_device(device: FilePath) -> DeviceFile:
    """Read the file of a device that executes plans, by its name or from a path."""
    found = load_device(device)
    if found.engine != "onednn":
        raise DeviceError(
            f"device {found.name!r} runs {found.engine}, which executes no plans",
            where="--device",
            next_step="take a device of the engine onednn, e.g. cpu-onednn",
        )
    found.require_local("plans are made and run")
    require_installed()
    return found


def cores_of(device: DeviceFile) -> Cores:
    """Return the cores a cold start may use on a device: its big and little ones, else all processors as equal ones."""
    device.require_local("plans are made and run")
    available = os.sched_getaffinity(0)
    cores = Cores(device.big_cores or tuple(sorted(available)), device.little_cores, device.little_ratio)
    missing = sorted(set(cores.all) - available)
    if missing:
        raise DeviceError(
            f"core {missing[0]} does not exist on this machine, or may not be used (usable: {sorted(available)})",
            where=f"device {device.name!r}, fields big_cores and little_cores",
            next_step="name cores that exist, or leave both lists empty",
        )
    return cores
