"""Declares the interface of settings that are measured cold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgeplan.errors import ModelError
from edgeplan.graph.model_file import model_files
from edgeplan.support.lazy import lazily

onnx = lazily("onnx")  # preparing alone needs it

Array = npt.NDArray[Any]


class UnsupportedError(Exception):
    """A setting cannot run a model, or its engine is not installed; the message is the one-line reason for the results."""


class Artefact(BaseModel):
    """An artefact names the files that a setting loads for one model.

    Attributes:
        main: the file that is opened.
        files: every file the run reads, `main` among them: these are evicted or read through.
        companions: further paths by role, e.g. the folder of a cache.
        input_names: the engine's names of the inputs, in the order of the ONNX model; empty where they are the same.
        outputs: the engine's names of the outputs and their shapes in the ONNX model, in its order; empty where the engine
            keeps both.
        note: what a reader of the results should know, or "".
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    main: Path
    files: Annotated[tuple[Path, ...], Field(min_length=1)]
    companions: dict[str, Path] = Field(default_factory=dict)
    input_names: tuple[str, ...] = ()
    outputs: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    note: str = ""

    @model_validator(mode="after")
    def _main_is_read(self) -> Self:
        if self.main not in self.files:
            raise ValueError(f"main ({self.main}) is not among files: it would not be evicted")
        return self


class BaselineSession(ABC):
    """A session opens one model cold. Opening is the constructor's work and is timed, so inputs are handed over ready."""

    @abstractmethod
    def run(self) -> None:
        """Execute one inference, complete when it returns."""

    @abstractmethod
    def outputs(self) -> Mapping[str, Array]:
        """Return the outputs of the last run in the order and shapes of the ONNX model. Not timed."""

    def stages_ms(self) -> Mapping[str, float]:
        """Return finer parts of opening and of the first run, ms, where the engine tells; measured without slowing the run."""
        return {}


class Baseline(ABC):
    """A baseline starts one setting of one engine cold.

    The worker calls, in this order: `load_library` (not timed), `prepare_inputs` (not timed), `open` and the session's first
    run (timed). `prepare` runs in a process of its own, once a model and thread count.
    """

    @abstractmethod
    def load_library(self, threads: int) -> None:
        """Import the engine and create its environment: what a program pays once, whatever the model.

        Raises:
            UnsupportedError: the engine is not installed.
        """

    @abstractmethod
    def version(self) -> str:
        """Return the version of the engine, once its library is loaded."""

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        """Build offline, in `folder`, what `open` loads; by default the ONNX file itself.

        Raises:
            UnsupportedError: the setting cannot run this model.
        """
        del inputs, folder, threads
        return Artefact(main=model, files=model_files(model))

    def prepare_inputs(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the inputs in the layout the engine takes; made before the clock starts."""
        return inputs

    @abstractmethod
    def open(self, artefact: Artefact, inputs: Mapping[str, Array], threads: int) -> BaselineSession:
        """Open the model, which is timed, as is the session's first run."""


def beside(path: Path, model: Path, folder: Path) -> Path:
    """Return the place of a model's file in another folder, at the same depth below it, and make its parent."""
    place = folder / path.relative_to(model.parent)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def model_outputs(model: Path) -> dict[str, tuple[int, ...]]:
    """Return the names and static shapes of the outputs of an ONNX file, in its order.

    Raises:
        ModelError: a shape is dynamic.
    """
    found = {}
    for output in onnx.load(model, load_external_data=False).graph.output:
        shape = tuple(axis.dim_value for axis in output.type.tensor_type.shape.dim)
        if not all(shape):
            raise ModelError(f"output {output.name!r} has no static shape", where=str(model), next_step="fix the input shape")
        found[output.name] = shape
    return found
