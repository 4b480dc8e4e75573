"""Where the chapter meets the profiler and the executor: each call in one place, imported when it is made."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from edgeplan.chapters.cold_start.measuring.artefacts import ColdModel
from edgeplan.chapters.cold_start.measuring.slowness import slowness_of
from edgeplan.chapters.cold_start.planners.nnv12 import Reprofile
from edgeplan.chapters.cold_start.settings import ColdStartSettings
from edgeplan.devices.config import DeviceFile
from edgeplan.graph.ir import Graph
from edgeplan.measurement.budget import TimeBudget
from edgeplan.measurement.process.job import PrepareResult
from edgeplan.planning.document import Plan, Target
from edgeplan.planning.profile import Disk, Profile
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import locate_weights
from edgeplan.support.files import write_text
from edgeplan.support.protocols import digest as source_digest
from edgeplan.support.protocols import protocol
from edgeplan.support.store import key_of

if TYPE_CHECKING:
    from edgeplan.profiling.settings import Cores, ProfileSettings
    from edgeplan.profiling.store import ProfileStore

_MARK = "built.txt"


@dataclass(frozen=True)
class Tools:
    """The runtime of a device with its profiler.

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
        """The library.

        Raises:
            DeviceError: it is not installed.
        """
        return Dnnl()

    @cached_property
    def cores(self) -> Cores:
        """The processors of a cold start on this device."""
        from edgeplan.profiling.settings import cores_of  # noqa: PLC0415  see the module's first line

        return cores_of(self.device)

    @property
    def _profile_settings(self) -> ProfileSettings:
        from edgeplan.profiling.settings import ProfileSettings  # noqa: PLC0415

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
        from edgeplan.profiling.store import ProfileStore, identity  # noqa: PLC0415

        return ProfileStore(self.profiles, identity(self.dnnl.info, self._profile_settings, self.cores))

    def profile(self, model: Path, graph: Graph, name: str, budget: TimeBudget) -> tuple[Profile, ...]:
        """Profiles of a model, one a home layout; only what the rows lack is measured, within a budget as far as can be."""
        from edgeplan.profiling.profiler import profile_model  # noqa: PLC0415

        return profile_model(
            self.dnnl,
            model,
            graph,
            self._profile_settings,
            cores=self.cores,
            name=name,
            store=self._store,
            budget=budget,
            lock_timeout_seconds=self.settings.lock_timeout_seconds,
        )

    def profiled(self, graph: Graph) -> bool:
        """Whether the rows hold all of a model's profiles."""
        from edgeplan.profiling.profiler import is_known  # noqa: PLC0415
        from edgeplan.profiling.subjects import signatures  # noqa: PLC0415

        return all(is_known(self._store, signatures(self.dnnl, lower(graph), home)) for home in HOMES)

    def slowness(self, runs: pd.DataFrame) -> pd.Series[float]:
        """How many times its profiled cost work took around each run; for runs after models were profiled."""
        constants = self._store.constants()
        assert constants is not None  # noqa: S101  profiled before
        return slowness_of(runs, constants.nominal)

    def predict(self, model: Path, graph: Graph, name: str, predictors: Path) -> tuple[Profile, ...]:
        """Profiles from the device's predictors and from profiled steps of other models.

        Raises:
            EdgeplanError: there are no predictors, or too little to predict from.
        """
        from edgeplan.predictors.predictor import DevicePredictor  # noqa: PLC0415
        from edgeplan.profiling.predicted import predicted_profiles  # noqa: PLC0415

        profiles, _ = predicted_profiles(
            self.dnnl,
            model,
            graph,
            self._profile_settings,
            cores=self.cores,
            name=name,
            store=self._store,
            predictor=DevicePredictor.load(predictors),
        )
        return profiles

    def disk(self, files: Sequence[Path]) -> Disk:
        """What weights cost that come from the disk, measured once for the machine.

        Raises:
            DeviceError: the files cannot be evicted.
        """
        from edgeplan.profiling.disk import kept_disk  # noqa: PLC0415

        return kept_disk(self.profiles / "disk.json", files, lock_timeout_seconds=self.settings.lock_timeout_seconds)

    @contextmanager
    def reprofiler(self, model: Path, graph: Graph) -> Iterator[Reprofile]:
        """Measures again what a planner tries (Algorithm 1, line 5); holds the machine meanwhile."""
        from edgeplan.engines.base import random_inputs  # noqa: PLC0415
        from edgeplan.profiling.reprofile import Reprofiler  # noqa: PLC0415

        lowered = lower(graph)
        measuring = Reprofiler(
            self.dnnl,
            model,
            lowered,
            locate_weights(model, lowered),
            random_inputs(graph),
            settings=self._profile_settings,
            cores=self.cores,
            store=self._store,
        )
        with measuring:
            yield measuring

    def target(self, model: Path, threads: int) -> Target:
        """What plans of a model are for."""
        from edgeplan.profiling.target import target_of  # noqa: PLC0415

        return target_of(model, self.dnnl, threads)

    def plan_folder(self, model: ColdModel, plan: Plan, folder: Path) -> PrepareResult:
        """A plan folder as a run takes it, built unless it is there for this very plan, model file and runtime.

        Args:
            model: the model that was planned.
            plan: the plan.
            folder: where to build.
        """
        from edgeplan.measurement.process.prepared_plan import prepared  # noqa: PLC0415
        from edgeplan.runtime.plan_folder import build_plan_folder  # noqa: PLC0415
        from edgeplan.runtime.weight_cache import stamp as file_stamp  # noqa: PLC0415

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
    """What stands for the engine's version in the keys of a plan's runs: the library, the plan and the runtime's protocol."""
    return f"{library}+{key_of([plan.model_dump(mode='json'), protocol('runtime').name])}"
