"""Opens a plan folder of a pair: both processors, and the session that runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from edgeplan.engines.registry import PROCESSORS, face
from edgeplan.errors import DeviceError, ModelError
from edgeplan.runtime.executable import Buffer, allocate, read_into
from edgeplan.runtime.folder import WEIGHTS_NAME, PlanFolder, plan_again
from edgeplan.runtime.partitioned.build import PairSchedule, ProcessorSpec
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation
from edgeplan.runtime.processor import Host, Processor
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.support.machine import fingerprint


def open_pair(plan: PlanFolder, *, profiling: bool = False) -> PairSession:
    """Open a plan folder of a pair, with the processors that it names; they are closed with the session.

    With `profiling` the GPU tells when its kernels ran: a mark on each side of a kernel takes microseconds.
    """
    schedule, program = plan.scheduled(PairSchedule), plan.program_of(StreamProgram)
    with ExitStack() as stack:
        host, other = open_processors(schedule.processors, stack, profiling=profiling)
        info = host.dnnl.info
        driver = "" if other is host else other.capabilities.version
        plan.require_here(fingerprint(), info.version, info.isa, driver=driver)
        plan.require_whole(WEIGHTS_NAME)
        path = plan.path / WEIGHTS_NAME
        try:
            weights = _read_weights(path, program.weights_bytes)
        except OSError as error:
            what = f"cannot read the weights: {error.strerror}"
            raise ModelError(what, where=str(path), next_step=plan_again(plan.kind)) from error
        synchronisation = Synchronisation(schedule.synchronisation) if schedule.synchronisation else None
        session = PairSession(host, other, program, schedule.placed, weights, plan.path, synchronisation)
        return session.holding(stack.pop_all())


def _read_weights(path: Path, size: int) -> Buffer:
    """The weights of a program, read whole."""
    found = allocate(size)
    with path.open("rb", buffering=0) as file:
        if not read_into(file.fileno(), found.data, 0):
            raise OSError(0, f"it ends before byte {size}")
    return found


def open_processors(specs: Sequence[ProcessorSpec], stack: ExitStack, *, profiling: bool = False) -> tuple[Host, Processor]:
    """Open the processors of a pair in the order of lanes; they are closed with the stack. One alone stands for both."""
    found: list[Processor] = []
    for spec in specs:
        kind: type[Processor] = face(PROCESSORS, spec.engine, "processor", "processor")
        block = found[0].numbers["block"] if found else 0
        found.append(stack.enter_context(kind.open(spec.options, spec.cores, block, profiling=profiling)))
    host, other = found[0], found[-1]
    if not isinstance(host, Host):
        what = f"{specs[0].engine} does not compute in the calling thread, as the first of a pair has to"
        raise DeviceError(what, where="the processors of a pair", next_step="plan the model again for another pair")
    return host, other
