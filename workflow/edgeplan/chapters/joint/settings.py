"""The `joint` section of params.yaml."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Self

from pydantic import Field, model_validator

from edgeplan.chapters.base import ChapterParams, DeviceName, Section
from edgeplan.engines.registry import SETTINGS
from edgeplan.workloads.real_files import RealFile
from edgeplan.workloads.registry import WORKLOADS


class PackagedModel(Section):
    """A packaged model is an ONNX file that a package holds.

    Attributes:
        package, version: of the package.
        path: of the file inside the package's wheel.
        sha256: of the file.
        shape: sizes of inputs that it leaves open, as options of `edgeplan prepare`.
    """

    package: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.+!]*$")]
    path: Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*\.onnx$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    shape: tuple[str, ...] = ()

    @property
    def file(self) -> RealFile:
        """Return the file as it is fetched."""
        return RealFile(self.package, self.version, self.path, self.sha256, "", self.shape, ())


class JointSettings(Section):
    """Settings of the chapter name what is measured.

    Attributes:
        devices: devices whose engine is the package's own runtime.
        packaged: models of packages, by name.
        models: names of these or of `workloads.registry.WORKLOADS`.
        share: of what ONNX Runtime takes over idle, the budget of each model.
        beside: settings with mapped weights that start within the same budget.
        turns: fresh processes of each way, one way after the other.
        pairs_of: models that run in turns within one budget, each two of them.
        pair_share: of what ONNX Runtime takes for both, the budget of a pair.
        pair_turns: processes of each way to run a pair.
        pair_rounds: inferences of each model in one of these.
        lock_timeout_seconds: how long to wait while another process is measuring on this machine.
    """

    devices: Annotated[list[DeviceName], Field(min_length=1)]
    packaged: dict[str, PackagedModel] = Field(default_factory=dict)
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    share: Annotated[float, Field(gt=0, le=1)]
    beside: tuple[str, ...]
    turns: Annotated[int, Field(ge=1, le=100)]
    pairs_of: tuple[str, ...] = ()
    pair_share: Annotated[float, Field(gt=0, le=1)] = 0.4
    pair_turns: Annotated[int, Field(ge=1, le=100)] = 3
    pair_rounds: Annotated[int, Field(ge=3, le=1000)] = 15
    lock_timeout_seconds: Annotated[float, Field(ge=0)] = 600.0

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return each two of the models that run in turns."""
        return tuple(combinations(self.pairs_of, 2))

    @model_validator(mode="after")
    def _known(self) -> Self:
        models = {**WORKLOADS, **self.packaged}
        for what, names, known in (("model", (*self.models, *self.pairs_of), models), ("setting", self.beside, SETTINGS)):
            if unknown := [name for name in names if name not in known]:
                raise ValueError(f"there is no {what} {unknown[0]!r}; known: {', '.join(known)}")
        return self


class JointParams(ChapterParams):
    """The chapter reads these sections of params.yaml."""

    joint: JointSettings
