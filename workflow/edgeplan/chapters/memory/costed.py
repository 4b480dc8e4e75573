"""A program with what it takes, and the cut of the model that it came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.planner import plan
from edgeplan.planning.memory.quick import Mode, PlannedMemory
from edgeplan.planning.memory.workload import Reader, Workload
from edgeplan.profiling.streaming import StreamProfile
from edgeplan.runtime.bands import Region
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.workloads import workload_of


@dataclass(frozen=True, slots=True)
class ModelCut:
    """A cut of a model bounds the weights of a step, and names the steps that run in bands.

    Attributes:
        limit: the most bytes of weights of a part of a step.
        regions: steps that run in bands of rows.
        arena: bytes that a few parts of each step have to fit in beside its tensors, so that one is
            loaded while another is used: steps are cut finer for it; 0: none is.
    """

    limit: int
    regions: tuple[Region, ...] = ()
    arena: int = 0


@dataclass(frozen=True, slots=True)
class CostedProgram:
    """A program with what it takes.

    Attributes:
        folder: where it and its weights lie.
        form: how the model was cut.
        program, profile: see there.
        cutting_s, profiling_s: seconds it took to choose kernels and write weights, and to measure.
    """

    folder: Path
    form: ModelCut
    program: StreamProgram
    profile: StreamProfile
    cutting_s: float = 0.0
    profiling_s: float = 0.0

    @property
    def workload(self) -> Workload:
        """Make the workload that planners are asked for."""
        return workload_of(self.program, self.profile.compute_ms)

    @property
    def reader(self) -> Reader:
        """Make the reader that weights are read with."""
        return self.profile.reader

    @property
    def objects_bytes(self) -> int:
        """Return the bytes that running takes besides the arena."""
        return self.profile.objects_bytes

    def planned(self, budget: int, mode: Mode) -> PlannedMemory:
        """A plan whose arena leaves room for what running takes besides; no layout of tensors is searched for."""
        return plan(self.workload, self.reader, budget - self.objects_bytes, mode, work=0)

    def least_bytes(self) -> int:
        """Less than this is not enough, objects counted."""
        return bounds.least_bytes(self.workload) + self.objects_bytes

    def taking(self, more: int) -> CostedProgram:
        """The same, known to take so many bytes more besides the arena than was profiled."""
        profile = self.profile.model_copy(update={"objects_bytes": self.objects_bytes + more})
        return replace(self, profile=profile)


def all_bytes(candidate: CostedProgram) -> int:
    """Bytes with all weights in memory, objects counted."""
    weights = int(candidate.workload.weight_bytes.sum())
    return weights + int(candidate.workload.live_bytes.max()) + candidate.objects_bytes
