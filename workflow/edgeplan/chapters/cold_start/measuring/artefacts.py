"""A store keeps the artefacts that settings load, keyed by everything that decides them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edgeplan.engines.registry import owner, setting_protocol, version_of
from edgeplan.errors import FormatError
from edgeplan.graph.model_file import model_files
from edgeplan.measurement.process.job import PrepareJob, PrepareResult, RunJob
from edgeplan.measurement.process.starts import prepare_offline, run_cold
from edgeplan.support.files import files_sha256, read_json, write_text
from edgeplan.support.machine import fingerprint
from edgeplan.support.sources import PACKAGE, digest
from edgeplan.support.store import Protocol, key_of
from edgeplan.support.workers import ColdRunError

#: Why something was neither prepared nor run.
OVER = "left out: the time for measuring cold starts was over"
_RESULT = "prepared.json"
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

    @cached_property
    def digest(self) -> str:
        """Return the digest of the content of all files."""
        return files_sha256(self.files)[:20]


class ArtefactStore:
    """Keeps artefacts in a folder; those of another machine, engine version or model content are never taken.

    The folder may be deleted at any time, which costs only building again; one preparation may take `timeout_seconds`.
    """

    def __init__(self, folder: Path, timeout_seconds: float = 900.0) -> None:
        self._folder, self._timeout_seconds = folder.resolve(), timeout_seconds

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
            result = prepare_offline(job, self._timeout_seconds)
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
        run_cold(job, self._timeout_seconds)
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
