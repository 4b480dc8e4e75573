"""Defines the documents that pass between the measuring process and its workers: a job in, a result out.

Times are in milliseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgeplan.engines.cold import Artefact

#: What the page cache holds of the files a run reads: nothing, or all of it.
State = Literal["evicted", "cached"]
#: What stock engines may differ by: an engine that picks fast approximations on some processor is slow or fast, not wrong.
STOCK_TOLERANCE = 1e-3
Dimension = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class _Job(_Document):
    """Holds the settings that every job tells its worker.

    Attributes:
        cpus: logical processors the worker is pinned to before it imports anything; empty leaves it free.
    """

    format_version: Literal[1] = 1
    setting: Name
    threads: Annotated[int, Field(ge=1, le=1024)]
    cpus: tuple[Annotated[int, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _distinct_cpus(self) -> Self:
        if len(set(self.cpus)) != len(self.cpus):
            raise ValueError("cpus names a processor twice")
        return self


class _FedJob(_Job):
    """A job on a model whose inputs are drawn: types of those not of f32, and limits that indices among them stay below."""

    inputs: Annotated[dict[Name, tuple[Dimension, ...]], Field(min_length=1)]
    types: dict[Name, Literal["float32", "int32", "int64", "int8", "uint8", "bool"]] = Field(default_factory=dict)
    below: dict[Name, Dimension] = Field(default_factory=dict)


class PrepareJob(_FedJob):
    """Asks to build once, in an empty folder, what a setting loads: a converted or optimised model, a filled cache."""

    kind: Literal["prepare"] = "prepare"
    model: Path
    folder: Path


class RunJob(_FedJob):
    """Asks for one cold run, and warm runs after it in the same process.

    Attributes:
        usual_us: time of the load of `interference.py` on a processor alone; 0 starts whether or not the processors are free.
        reference: an .npz of expected outputs to compare with, or nothing.
        save_outputs: where to write the outputs as .npz, or nothing.
    """

    kind: Literal["run"] = "run"
    artefact: Artefact
    seed: Annotated[int, Field(ge=0)] = 0
    state: State
    warm_runs: Annotated[int, Field(ge=0, le=100_000)] = 0
    usual_us: Annotated[float, Field(ge=0)] = 0.0
    reference: Path | None = None
    save_outputs: Path | None = None


class OnceJob(_Document):
    """Asks for the first execution of one step (`record`) of a program in its process (`profiling.profiles`)."""

    kind: Literal["once"] = "once"
    program: Path
    cache: Path | None
    record: Annotated[int, Field(ge=0)]


class OnceResult(_Document):
    """Reports the extra time of the first execution over the second, in ms."""

    kind: Literal["once"] = "once"
    time_ms: float


class Resident(_Document):
    """Records resident memory in bytes: all, the peak so far, and the parts."""

    rss: Annotated[int, Field(ge=0)]
    peak: Annotated[int, Field(ge=0)]
    anonymous: Annotated[int, Field(ge=0)]
    file: Annotated[int, Field(ge=0)]
    shared: Annotated[int, Field(ge=0)]


class PrepareResult(_Document):
    """Reports the artefact that preparing gave, or the one-line reason why there is none."""

    kind: Literal["prepare"] = "prepare"
    engine_version: str = ""
    artefact: Artefact | None = None
    prepare_ms: float = 0.0
    reason: str = ""


class RunResult(_Document):
    """Reports a worker's measurements of one run; `reason` alone is set where the setting cannot run the model.

    Attributes:
        cold_ms: time from opening the model to the first output.
        stages_ms: parts of the cold run where the engine tells: `open`, `first_run`, or finer ones.
        first_touch_ms: time this process needs to touch as much fresh memory as the cold run added: memory allocation as a
            stage of its own, for engines that do not tell. Measured after the runs.
        anonymous_bytes: memory the cold run added that no file backs.
        rss_before_bytes, peak_rss_bytes: resident memory when the clock started, and its peak by the first output.
        read_bytes, file_bytes: bytes that the cold run fetched from the disk, and that the files have which it may read.
        cached_before: share of those files in the page cache when the clock started, 0 to 1; `state_reached`: as it was asked.
        interference: that load on all processors of the run at once, over its usual time: the larger of the looks just before
            the clock started and just after it stopped; 1 where it was not looked at.
        switches, waited_ms, stolen_ms: what the cold run lost to others, see `measurement.others`.
        output_error: max|a - b| / max|b| over the outputs against the reference; nothing without one.
    """

    kind: Literal["run"] = "run"
    engine_version: str = ""
    reason: str = ""
    cold_ms: float | None = None
    warm_ms: tuple[float, ...] = ()
    stages_ms: dict[str, float] = Field(default_factory=dict)
    first_touch_ms: float = 0.0
    anonymous_bytes: int = 0
    rss_before_bytes: int = 0
    peak_rss_bytes: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    read_bytes: int = 0
    file_bytes: int = 0
    cached_before: float = 0.0
    state_reached: bool = False
    interference: float = 1.0
    switches: int = 0
    waited_ms: float = 0.0
    stolen_ms: float = 0.0
    output_digest: str = ""
    output_error: float | None = None
