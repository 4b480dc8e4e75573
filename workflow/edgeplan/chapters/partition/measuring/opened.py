"""The two processors of a pair, opened, and the ways to run a model on them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.devices.pairs import PairFile
from edgeplan.engines.pair import open_processors
from edgeplan.errors import DeviceError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.runtime.layouts import LIKELY
from edgeplan.runtime.partitioned.build import ProcessorSpec
from edgeplan.runtime.partitioned.program import Partitioned
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation, synchronisation_of
from edgeplan.runtime.processor import Host, Processor, Sharing
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession
from edgeplan.support.files import write_json
from edgeplan.support.frames import read_document
from edgeplan.support.machine import environment, fingerprint, machine_kind
from edgeplan.support.store import key_of, nothing_stored, stored_rows_only
from edgeplan.support.tensors import relative_error

_ABOUT = "about.json"
_OF_EARLIER = ("identity", "names", "versions", "environment")
#: Said where nothing may be measured and rows are not there.
LACKING = "rows of this pair are lacking"


@dataclass(frozen=True, slots=True)
class Opened:
    """The two processors of a pair at work, the host first; how they wait for each other, and why it is that."""

    pair: PairFile
    processors: tuple[Host, Processor]
    synchronisation: Synchronisation
    why: str

    @property
    def host(self) -> Host:
        """The processor of lane 0."""
        return self.processors[0]

    @property
    def other(self) -> Processor:
        """The processor of lane 1."""
        return self.processors[1]

    @property
    def block(self) -> int:
        """Channels of a block of the layout `blocked16`."""
        return self.host.dnnl.info.block

    @property
    def names(self) -> tuple[str, str]:
        """Return the names of the processors, as people read them."""
        return self.host.capabilities.name, self.other.capabilities.name

    def session(self, made: Partitioned, model: Path) -> PairSession:
        """Return a new session of a model's parts."""
        return PairSession.of(*self.processors, made, model, self.synchronisation)

    @property
    def versions(self) -> tuple[str, str]:
        """Return the versions of their libraries."""
        return self.host.capabilities.version, self.other.capabilities.version

    @property
    def numbers(self) -> dict[str, int]:
        """Return the numbers that kernels of lane 1 are dispatched by."""
        return dict(self.other.numbers)

    @property
    def identity(self) -> list[object]:
        """Return what rows of the pair are for, besides its protocol."""
        cores, others = (list(side.cores) for side in self.pair.processors)
        own = [fingerprint(), *self.versions, self.numbers, cores, others if len(others) > 1 else next(iter(others), None)]
        unusual = {
            "synchronisation": self.pair.synchronisation if self.pair.synchronisation != "auto" else "",
            "sharing": self.other.capabilities.sharing.value if self.other.capabilities.sharing != Sharing.fine else "",
        }
        return [*own, *(f"{name}: {value}" for name, value in unusual.items() if value)]


def about_pair(pair: PairFile, rows: Path) -> dict[str, Any]:
    """Return what rows of a pair are of, as it is written beside them; of stored rows where nothing may be measured.

    It tells the properties of `Opened`, the environment of the machine, and as `earlier` the same of other machines and drivers
    whose rows are stored.
    """
    path = rows / _ABOUT
    if stored_rows_only():
        if not path.is_file():
            raise nothing_stored(LACKING, rows)
        return read_document(path, "identity", "environment")
    with opened(pair) as both:
        names = ("identity", "numbers", "versions", "names", "synchronisation", "why")
        machine = environment() | {"load_1min": None, "affinity": sorted(pair.cores), "machine": fingerprint()}
        about = {**{name: getattr(both, name) for name in names}, "environment": machine}
    before = read_document(path, "identity", "environment") if path.is_file() else about
    others = [{name: before[name] for name in _OF_EARLIER if name in before}, *before.get("earlier", ())]
    if earlier := [one for one in others if one["identity"] != json.loads(json.dumps(about["identity"]))]:
        about["earlier"] = earlier
    write_json(path, about)
    return about


def identities(pair: PairFile, about: Mapping[str, Any]) -> dict[str, tuple[list[Any], Mapping[str, Any]]]:
    """List what rows of checked plans are of, the present machine and drivers first: of one machine, or of all of its kind.

    By a short digest of it: what the rows' keys hold, and the part of `about` that tells it.
    """
    found: dict[str, tuple[list[Any], Mapping[str, Any]]] = {}
    for one in (about, *about.get("earlier", ())):
        machine, *rest = one["identity"]
        own = [machine_kind(one["environment"]) if pair.rows_of == "kind" else machine, *rest]
        found.setdefault(key_of(own, 8), (own, one))
    return found


@contextlib.contextmanager
def opened(pair: PairFile, *, profiling: bool = False) -> Iterator[Opened]:
    """Open both processors of a pair, and close them."""
    pair.check_cores()
    with contextlib.ExitStack() as stack:
        host, other = open_processors(specs_of(pair), stack, profiling=profiling)
        chosen, why = synchronisation(pair, host, other)
        yield Opened(pair, (host, other), chosen, why)


def specs_of(pair: PairFile) -> tuple[ProcessorSpec, ...]:
    """The processors of a pair, as plan folders name them."""
    sides = zip(pair.processors, pair.devices(), strict=True)
    return tuple(ProcessorSpec(device.engine, side.cores, dict(device.options)) for side, device in sides)


def synchronisation(pair: PairFile, host: Host, other: Processor) -> tuple[Synchronisation, str]:
    """Choose how a pair waits, and say why."""
    best, why = synchronisation_of(host, other)
    if pair.synchronisation == "auto":
        return best, why
    asked = Synchronisation(pair.synchronisation)
    if asked == Synchronisation.polling and best != asked:
        raise DeviceError(
            f"the pair cannot poll: {why}",
            where=f"pair {pair.name!r}, field synchronisation",
            next_step="synchronisation: auto, or events",
        )
    return asked, "the pair file asks for it"


def ends_of_runs(
    session: PairSession, made: Partitioned, run: Callable[[], object], runs: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Run a session once, then so often as it counts.

    Returns:
        in ns, when each step's part began and ended on each lane (2, runs, steps); infinite where it has none.
    """
    at, shape = (np.array(made.lanes), np.array(made.ranged.origin)), (2, runs, len(made.lowered.steps))
    first, last = np.full(shape, np.inf), np.full(shape, -np.inf)
    for k in range(-1, runs):
        run()
        if k >= 0:
            np.minimum.at(first[:, k], at, session.times[:, 0])
            np.maximum.at(last[:, k], at, session.times[:, 1])
    return first, last


#: Of the largest magnitude; Winograd's transforms lose a digit.
_EXACT, _WINOGRAD = 1e-5, 1e-4
#: One inference, and how long it took in ms.
Runner = Callable[[], float]


def running(
    pair: Opened,
    stack: contextlib.ExitStack,
    made: Partitioned,
    model: Path,
    inputs: Mapping[str, Any],
    expected: Mapping[str, Any],
    exact: float = _EXACT,
) -> tuple[Runner, dict[str, float]]:
    """Open a way to run a model on the pair; tell the error of its first outputs, and by how much they may differ."""
    session = stack.enter_context(pair.session(made, model))
    outputs = session.run(inputs)
    error = relative_error([outputs[name] for name in expected], list(expected.values()))
    return partial(session.inference_ms, inputs), {"error": error, "tolerance": _WINOGRAD if session.winograd else exact}


def on_all_cores(pair: Opened, model: Path, inputs: Mapping[str, Any]) -> list[Runner]:
    """Inferences by oneDNN on all cores of the pair, one runner for each likely layout; each ran once."""
    threads, graph, runners = len(pair.pair.cores), load_onnx(model), list[Runner]()

    def inference_ms(session: SequentialSession) -> float:
        with wide(pair):
            session.executable.bind(inputs)
            began = time.perf_counter()
            session.execute()
            return (time.perf_counter() - began) * 1e3

    with wide(pair):
        for home in LIKELY:
            program = default_program(pair.host.dnnl, model, graph, home, threads=threads)
            session = SequentialSession(pair.host.dnnl, program, model.parent, threads)
            session.run(inputs)
            runners.append(partial(inference_ms, session))
    return runners


@contextlib.contextmanager
def wide(pair: Opened) -> Iterator[None]:
    """Compute on all cores of the pair, a thread bound to each: two threads that share one take up to twice the time."""
    own, cores = os.sched_getaffinity(0), pair.pair.cores
    os.sched_setaffinity(0, cores)
    pair.host.dnnl.set_threads(len(cores))
    pair.host.dnnl.bind_threads(cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
        pair.host.ready()
