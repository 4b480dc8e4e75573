"""Artefacts that settings load, kept by everything that decides them, and the tools that profile models and build plans."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edgeplan.chapters.cold_start.settings import ColdStartSettings
from edgeplan.devices.config import DeviceFile
from edgeplan.engines.registry import owner, setting_protocol, version_of
from edgeplan.errors import FormatError
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import model_files
from edgeplan.measurement.process.job import PrepareJob, PrepareResult, RunJob
from edgeplan.measurement.process.starts import prepare_offline, prepared_plan, run_cold
from edgeplan.measurement.settings import TimeBudget
from edgeplan.planning.document import Plan
from edgeplan.planning.profile import Profile
from edgeplan.predictors.nodes.storing import load_predictor
from edgeplan.profiling.predicted import predicted_profiles
from edgeplan.profiling.profiler import is_known, profile_model
from edgeplan.profiling.settings import Cores, ProfileSettings, cores_of
from edgeplan.profiling.store import ProfileStore, identity
from edgeplan.profiling.subjects import signatures
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.support.files import files_sha256, read_json, write_text
from edgeplan.support.files import stamp as file_stamp
from edgeplan.support.machine import fingerprint
from edgeplan.support.sources import PACKAGE, digest, imported
from edgeplan.support.store import Protocol, key_of
from edgeplan.support.workers import ColdRunError

if TYPE_CHECKING:
    from edgeplan.measurement.references import ReferenceTimes

#: Why something was neither prepared nor run.
OVER = "left out: the time for measuring cold starts was over"
#: How models run; since 4 sessions are native.
RUNTIME = Protocol("runtime/4", ("1897c2256586d160",))
_RESULT = "prepared.json"
_MARK = "built.txt"
_TIMEOUT_SECONDS = 900.0  # of one preparation
_REFERENCE_SETTING = "onnxruntime"
_DISK = Protocol("fa3e6948cb01cfb8")


@dataclass(frozen=True)
class ColdModel:
    """Describes a model to start cold: its name in the tables, its ONNX file, and the shape of each input; all are f32."""

    name: str
    path: Path
    inputs: Mapping[str, tuple[int, ...]]

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Return the ONNX file and its external data."""
        return model_files(self.path)

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for path in self.files)

    @cached_property
    def digest(self) -> str:
        """Return the digest of the content of all files."""
        return files_sha256(self.files)[:20]


class ArtefactStore:
    """Keeps artefacts in a folder; those of another machine, engine version or model content are never taken.

    The folder may be deleted at any time, which costs only building again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def prepare(self, model: ColdModel, name: str, threads: int, *, build: bool = True) -> PrepareResult:
        """Return the artefact of a setting, built unless it is there; one that cannot run the model gives a reason.

        Without time to `build`, what is not there gives that reason.
        """
        folder = self._folder / f"{model.name}-{name}-{threads}-{self._key(model, name, threads)}"
        document = folder / _RESULT
        known = _stored(document)
        if known is not None:
            return known
        if not build:
            return PrepareResult(reason=OVER)
        shutil.rmtree(folder, ignore_errors=True)  # what a killed preparation left
        work = folder / "artefact"
        work.mkdir(parents=True)
        job = PrepareJob(setting=name, threads=threads, model=model.path.resolve(), inputs=dict(model.inputs), folder=work)
        try:
            result = prepare_offline(job, _TIMEOUT_SECONDS)
        except ColdRunError as error:
            result = PrepareResult(reason=error.reason)
        if result.artefact is None:  # not kept: a package installed later may mend it
            shutil.rmtree(folder, ignore_errors=True)
        else:
            write_text(document, result.model_dump_json(indent=2) + "\n")
        return result

    def reference(self, model: ColdModel, seed: int) -> Path:
        """Return the outputs of ONNX Runtime for the seeded inputs, as .npz."""
        path = self._folder / f"{model.name}-reference-{model.digest}-{seed}.npz"
        if path.is_file():
            return path
        prepared = self.prepare(model, _REFERENCE_SETTING, 1)
        if prepared.artefact is None:
            raise ColdRunError(f"no reference outputs: {prepared.reason}", where=str(model.path), next_step="correct the model")
        partial = path.with_name(f"partial-{path.name}")
        job = RunJob(
            setting=_REFERENCE_SETTING,
            threads=1,
            artefact=prepared.artefact,
            inputs=dict(model.inputs),
            seed=seed,
            state="cached",
            save_outputs=partial,
        )
        run_cold(job, _TIMEOUT_SECONDS)
        partial.replace(path)
        return path

    def _key(self, model: ColdModel, name: str, threads: int) -> str:
        parts = [model.digest, name, threads, version_of(name), _converters_digest(name), fingerprint()]
        return key_of(parts)


def protocol_of(name: str) -> str:
    """Return the name of the protocol by which runs of a setting are timed ("" for the probe of the disk)."""
    return setting_protocol(name).name if name else _DISK.name


def _converters_digest(name: str) -> str:
    """Return the digest of the code that builds a setting's artefacts; "" for an engine of another package."""
    folder = PACKAGE / "engines" / owner(name).name
    return digest([*folder.rglob("*.py"), folder.with_name("cold.py")]) if folder.is_dir() else ""


def _stored(document: Path) -> PrepareResult | None:
    """Read a finished artefact whose files are all there; return None otherwise."""
    if not document.is_file():
        return None
    try:
        result = read_json(document, PrepareResult, "a prepared artefact")
    except FormatError:  # of an older version: build again
        return None
    return result if result.artefact is not None and all(path.is_file() for path in result.artefact.files) else None


@dataclass(frozen=True)
class Tools:
    """Profiles, predicts and builds plans by the runtime of a device; the profiler's rows lie in the folder `profiles`."""

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

    @property
    def nominal(self) -> ReferenceTimes:
        """Return the reference times that profiled costs are scaled to; for when models were profiled."""
        constants = self._store.constants()
        assert constants is not None  # noqa: S101  profiled before
        return constants.nominal

    def predict(self, model: Path, graph: Graph, name: str, predictors: Path) -> tuple[Profile, ...]:
        """Predict profiles from the device's predictors and from profiled steps of other models."""
        profiles, _ = predicted_profiles(
            self.dnnl, model, graph,
            cores=self.cores, name=name, store=self._store, predictor=load_predictor(predictors),
        )  # fmt: skip
        return profiles

    def plan_folder(self, model: ColdModel, plan: Plan, folder: Path) -> PrepareResult:
        """Return a plan folder as a run takes it, built unless it is there for this very plan, model file and runtime."""
        # plan folders know the model file by its stamp; one that other code built is built again, whatever the protocol says
        built_by = digest(imported(build_plan_folder.__module__))
        stamp = key_of([plan.model_dump(mode="json"), built_by, file_stamp(model.path.stat())])
        mark = folder / _MARK
        if not mark.is_file() or mark.read_text() != stamp:
            shutil.rmtree(folder, ignore_errors=True)
            build_plan_folder(self.dnnl, model.path, plan, folder)
            write_text(mark, stamp)
        # not the version of `prepared_plan`: it changes with the folder's time stamps and place, and not with the runtime
        return prepared_plan(folder).model_copy(update={"engine_version": plan_version(plan, self.dnnl.info.version)})


def plan_version(plan: Plan, library: str) -> str:
    """Return the engine's version in the keys of a plan's runs: the library, the plan and the runtime's protocol."""
    return f"{library}+{key_of([plan.model_dump(mode='json'), RUNTIME.name])}"
