"""Artefacts are what settings load: files that are built beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgeplan.errors import ModelError
from edgeplan.graph.model_file import model_files
from edgeplan.support.lazy import lazily

onnx = lazily("onnx")  # preparing alone needs it


class Artefact(BaseModel):
    """An artefact names the files that a setting loads for one model.

    Of every file the run reads (`files`, which are evicted or read through), `main` is opened; the program is told
    `companions`, further paths by role, e.g. of a cache. Outputs are the engine's names and their shapes in the ONNX model, in
    its order; empty where the engine keeps both. `note` is what a reader of the results should know, or "".
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    main: Path
    files: Annotated[tuple[Path, ...], Field(min_length=1)]
    companions: dict[str, Path] = Field(default_factory=dict)
    outputs: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    note: str = ""

    @model_validator(mode="after")
    def _main_is_read(self) -> Self:
        if self.main not in self.files:
            raise ValueError(f"main ({self.main}) is not among files: it would not be evicted")
        return self


def as_it_is(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Prepare nothing: the ONNX file is what is opened. Functions that prepare have these arguments.

    `inputs` are their shapes, the folder is an empty one to build in, and `threads` are those that it will be started with. An
    `UnsupportedError` says that the setting cannot run this model.
    """
    del inputs, folder, threads
    return Artefact(main=model, files=model_files(model))


def model_outputs(model: Path) -> dict[str, tuple[int, ...]]:
    """Return the names and static shapes of the outputs of an ONNX file, in its order; ModelError where a shape is dynamic."""
    found = {}
    for output in onnx.load(model, load_external_data=False).graph.output:
        shape = tuple(axis.dim_value for axis in output.type.tensor_type.shape.dim)
        if not all(shape):
            raise ModelError(f"output {output.name!r} has no static shape", where=str(model), next_step="fix the input shape")
        found[output.name] = shape
    return found
