"""The `partition` section of params.yaml."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Self

from pydantic import Field, model_validator

from edgeplan.chapters.base import ChapterParams, DeviceName, Section
from edgeplan.engines.registry import SETTINGS
from edgeplan.workloads.registry import WORKLOADS

#: Lanes 0 and 1 in stored rows, predictors and cost documents, whatever the pair file calls its processors.
SIDES = ("cpu", "gpu")
#: A way to run a layer or a model: oneDNN alone on all cores of the pair.
ALL_CORES = "cpu, all cores"
#: A way to run a model: as the planner says, on both processors.
PLANNED = "planned"
#: Who can gain less than this over the best of CPU, GPU and all cores is told not to split.
WORTH_SPLITTING = 1.05
#: A way that takes so many times as long as another counts as slower.
SLOWER = 1.02
#: Makespans of one plan differ by less than this share, whatever the order of their sums.
SAME_PLAN = 1e-6


_Count = Annotated[int, Field(ge=1, le=100_000)]

_Sizes = Annotated[tuple[_Count, ...], Field(min_length=2)]
_Share = Annotated[float, Field(gt=0, lt=1)]


def _check_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no {what} {unknown[0]!r}; known: {', '.join(known)}")


class EopSettings(Section):
    """These settings say what is measured for EOP (VEE 2022).

    Attributes:
        models: swept, planned and run; names of `workloads.registry.WORKLOADS`.
        shares: of the CPU, at which every step is split over every dimension that it can be split over.
        sweep_runs: inferences at each share.
        runs: inferences of each plan, in each of `rounds` new sessions.
        rounds: sessions of each plan, in turn with those of the others.
        margin: share of an operator's time that a split has to gain.
        batches, heights, widths: at which operators are sampled alone: items, rows (and columns) of images or matrices, and the
            three sizes of a product.
        sample_runs: of each.
        varied: whether the models of figures 9 and 10 are measured, too.
    """

    models: Annotated[tuple[str, ...], Field(min_length=1)]
    shares: Annotated[tuple[_Share, ...], Field(min_length=1)]
    sweep_runs: _Count
    runs: _Count
    rounds: _Count
    margin: Annotated[float, Field(ge=0, lt=1)]
    batches: _Sizes
    heights: _Sizes
    widths: _Sizes
    sample_runs: _Count
    varied: bool

    @model_validator(mode="after")
    def _known(self) -> Self:
        _check_known("model", self.models, WORKLOADS)
        return self


_Flops = Annotated[float, Field(gt=0, le=1e12)]


class PartitionSettings(Section):
    """These settings say what the chapter on partitions measures.

    Attributes:
        pairs: of processors, files of config/pairs; none where there is no second processor.
        devices: second processors alone, as engines: for predictions of whole models. Stages of `devices` leave them out.
        samples: layers of each kind (linear, convolution) that predictors learn from and are tested on (section 5.2).
        sample_flops: the fewest and the most of a sampled layer.
        chain: layers that are measured in one session, each with its own weights.
        chain_mib: the most weights of such a session.
        sample_runs: of each chain, on each processor.
        test_share: of the samples, held out.
        trials: of Optuna, for each predictor.
        layers: of each kind that splits are tried on (section 5.3).
        layer_flops: the fewest and the most of them.
        conv_divisors: of the channels of windows of 1, 3, 5 and 7 (section 5.3).
        grid_step: channels between two splits that the search tries.
        grid_points: splits that the search tries first; of more it takes every nth, then those around the best.
        grid_runs: of every split, then `grid_again_runs` of the `grid_best` fastest.
        fresh_runs: of the splits that were chosen, in new sessions.
        models: end to end; names of `workloads.registry.WORKLOADS`.
        model_runs: of each way to run a model, interleaved.
        settings: stock settings to stand beside, on all cores; those not installed say so in the tables.
        handshakes: runs of the empty handshakes, of 20 steps each.
        curve_points: channels at which a curve of a figure is measured.
        checked_pairs: on which plans check themselves; nothing has to be known of a pair for that.
        checked_models: that are planned so.
        checked_fully: pairs on which the recurrent variants of EOP's Figure 9 are planned so, too, and returned plans are run
            again later.
        checked_turns: of each way to run such a model, interleaved, on fresh runs.
        checked_later_seconds: after which such a plan is run in new processes, and held to what it says.
        checked_seconds: by the clock, after which no further model is begun, and no plan waited for; 0 is unbounded. The next
            run goes on.
        lock_timeout_seconds: how long to wait while another process is measuring on this machine.
    """

    pairs: list[DeviceName]
    devices: list[DeviceName]
    samples: _Count
    sample_flops: tuple[_Flops, _Flops]
    chain: Annotated[int, Field(ge=1, le=200)]
    chain_mib: Annotated[float, Field(gt=0, le=1e6)]
    sample_runs: _Count
    test_share: Annotated[float, Field(gt=0, lt=1)]
    trials: Annotated[int, Field(ge=1, le=1000)]
    layers: _Count
    layer_flops: tuple[_Flops, _Flops]
    conv_divisors: tuple[_Count, _Count, _Count, _Count]
    grid_step: Annotated[int, Field(ge=8, le=1024, multiple_of=8)]
    grid_points: Annotated[int, Field(ge=2, le=10_000)]
    grid_runs: _Count
    grid_again_runs: _Count
    grid_best: _Count
    fresh_runs: _Count
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    model_runs: _Count
    settings: tuple[str, ...]
    handshakes: _Count
    curve_points: Annotated[int, Field(ge=2, le=1000)]
    checked_pairs: list[DeviceName]
    checked_models: tuple[str, ...]
    checked_fully: list[DeviceName]
    checked_turns: _Count
    checked_later_seconds: Annotated[float, Field(ge=0, le=86400)]
    checked_seconds: Annotated[float, Field(ge=0, le=86400)]
    eop: EopSettings
    lock_timeout_seconds: Annotated[float, Field(ge=0)] = 600.0

    @model_validator(mode="after")
    def _known(self) -> Self:
        _check_known("model", (*self.models, *self.checked_models), WORKLOADS)
        _check_known("setting", self.settings, SETTINGS)
        for name in ("sample_flops", "layer_flops"):
            low, high = getattr(self, name)
            if low >= high:
                raise ValueError(f"{name}: the fewest first")
        return self


class PartitionParams(ChapterParams):
    """Parameters hold what the chapter reads of params.yaml."""

    partition: PartitionSettings
