"""Calls the profiler and the executor for the chapter, each in one place."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from edgeplan.chapters.cold_start.measuring.artefacts import ColdModel
from edgeplan.chapters.cold_start.settings import ColdStartSettings
from edgeplan.devices.config import DeviceFile
from edgeplan.graph.ir import Graph
from edgeplan.measurement.budget import TimeBudget
from edgeplan.measurement.process.clock import EXPONENTS
from edgeplan.measurement.process.job import PrepareResult
from edgeplan.measurement.process.prepared_plan import prepared
from edgeplan.planning.document import Plan
from edgeplan.planning.profile import Profile
from edgeplan.predictors.nodes.storing import load
from edgeplan.profiling.predicted import predicted_profiles
from edgeplan.profiling.profiler import is_known, profile_model
from edgeplan.profiling.settings import Cores, ProfileSettings, cores_of
from edgeplan.profiling.store import ProfileStore, identity
from edgeplan.profiling.subjects import signatures
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.support.files import write_text
from edgeplan.support.protocols import digest as source_digest
from edgeplan.support.protocols import protocol
from edgeplan.support.stamps import stamp as file_stamp
from edgeplan.support.store import key_of

if TYPE_CHECKING:
    import pandas as pd

    from edgeplan.measurement.references import ReferenceTimes

#: Runs, about half a minute, whose looks tell together how slow the machine was: one look scatters more than that drifts.
NEIGHBOURS = 25


def slowness_of(runs: pd.DataFrame, nominal: ReferenceTimes) -> pd.Series[float]:
    """Estimate the slowness around each run, from references beside it and beside its neighbours in time.

    Args:
        runs: `measured_at`, `compute_us`, `bandwidth_us`.
        nominal: what slowness is relative to.

    Returns:
        Running medians over `NEIGHBOURS` runs, in the order and with the index of the runs; not a number where none was timed.
    """
    single = EXPONENTS.scaled(runs["compute_us"] / nominal.compute_us, runs["bandwidth_us"] / nominal.bandwidth_us)
    ordered = single[runs["measured_at"].sort_values(kind="stable").index]
    return ordered.rolling(NEIGHBOURS, center=True, min_periods=1).median().reindex(runs.index)


_MARK = "built.txt"


@dataclass(frozen=True)
class Tools:
    """Profiles, predicts and builds plans by the runtime of a device.

    Attributes:
        device: the device file.
        settings: of the chapter.
        profiles: folder of the profiler's rows.
    """

    device: DeviceFile
    settings: ColdStartSettings
    profiles: Path

    @cached_property
    def dnnl(self) -> Dnnl:
        """Load the library; DeviceError where it is not installed."""
        return Dnnl()

    @cached_property
    def cores(self) -> Cores:
        """Return the processors of a cold start on this device."""
        return cores_of(self.device)

    @property
    def _profile_settings(self) -> ProfileSettings:
        s = self.settings
        return ProfileSettings(
            blocks=s.profile_blocks,
            warm_runs=s.profile_warm_runs,
            max_noisy_share=s.profile_max_noisy_share,
            on_noise=s.on_noise,
            thorough=not s.budget_seconds,
        )

    @cached_property
    def _store(self) -> ProfileStore:
        return ProfileStore(self.profiles, identity(self.dnnl.info, self._profile_settings, self.cores))

    def profile(self, model: Path, graph: Graph, name: str, budget: TimeBudget) -> tuple[Profile, ...]:
        """Profile a model, once for each home layout; only what the rows lack is measured, within a budget as far as can be."""
        return profile_model(
            self.dnnl, model, graph, self._profile_settings, cores=self.cores, name=name,
            store=self._store, budget=budget, lock_timeout_seconds=self.settings.lock_timeout_seconds,
        )  # fmt: skip

    def profiled(self, graph: Graph) -> bool:
        """Tell whether the rows hold all of a model's profiles."""
        return all(is_known(self._store, signatures(self.dnnl, lower(graph), home)) for home in HOMES)

    def slowness(self, runs: pd.DataFrame) -> pd.Series[float]:
        """Return the factor over its profiled cost that work took around each run; for runs after models were profiled."""
        constants = self._store.constants()
        assert constants is not None  # noqa: S101  profiled before
        return slowness_of(runs, constants.nominal)

    def predict(self, model: Path, graph: Graph, name: str, predictors: Path) -> tuple[Profile, ...]:
        """Predict profiles from the device's predictors and from profiled steps of other models."""
        profiles, _ = predicted_profiles(
            self.dnnl, model, graph,
            cores=self.cores, name=name, store=self._store, predictor=load(predictors),
        )  # fmt: skip
        return profiles

    def plan_folder(self, model: ColdModel, plan: Plan, folder: Path) -> PrepareResult:
        """Return a plan folder as a run takes it, built unless it is there for this very plan, model file and runtime.

        Args:
            model: the model that was planned.
            plan: the plan.
            folder: where to build.
        """
        # plan folders know the model file by its stamp; one that other code built is built again, whatever the protocol says
        built_by = source_digest(protocol("runtime").sources)
        stamp = key_of([plan.model_dump(mode="json"), built_by, file_stamp(model.path.stat())])
        mark = folder / _MARK
        if not mark.is_file() or mark.read_text() != stamp:
            shutil.rmtree(folder, ignore_errors=True)
            build_plan_folder(self.dnnl, model.path, plan, folder)
            write_text(mark, stamp)
        # not the version that `prepared` gives: it changes with the folder's time stamps and place, and not with the runtime
        return prepared(folder).model_copy(update={"engine_version": plan_version(plan, self.dnnl.info.version)})


def plan_version(plan: Plan, library: str) -> str:
    """Return the engine's version in the keys of a plan's runs: the library, the plan and the runtime's protocol."""
    return f"{library}+{key_of([plan.model_dump(mode='json'), protocol('runtime').name])}"
