"""The ONNX file that a plan was made from: what its outputs are checked against is computed from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgeplan.errors import ModelError
from edgeplan.runtime.linked import LinkedProgram
from edgeplan.runtime.plan_folder import files_of, model_sha256


def model_of(program: LinkedProgram, folder: Path, given: Path | None = None) -> Path:
    """The ONNX file that a plan was made from.

    Args:
        program: of the plan.
        folder: the plan folder.
        given: the file, where the user names it; it is searched for beside the weights and the plan otherwise.

    Raises:
        ModelError: it is not found, or is another one by now.
    """
    for path in [given] if given else dict.fromkeys(_candidates(program, folder)):
        if path.is_file() and _hash(path) == program.model_sha256:
            return path
        if given:
            what = "is not the model that was planned" if path.is_file() else "does not exist"
            raise ModelError(f"{path.name} {what}", where=str(path), next_step="name the ONNX file of the plan with --model")
    raise ModelError(
        f"the model {program.model!r} that was planned is not found, or was changed since",
        where=str(folder),
        next_step="name its ONNX file with --model",
    )


def _candidates(program: LinkedProgram, folder: Path) -> Iterator[Path]:
    for file in program.files:
        yield from (Path(file.path), Path(file.path).parent / program.model)
    yield from (place / program.model for place in (folder, folder.parent, Path()))


def _hash(model: Path) -> str:
    try:
        return model_sha256(files_of(model))
    except (OSError, ModelError):  # one of its files may not be read, or it is no model
        return ""
