"""Lists the ways to serve a model on this machine, and makes what each starts.

A way is an engine with so many threads a session and so many sessions. What serves is a `Server`: a stock engine as it comes,
or a plan of this package. A further kind, such as a GPU or a board, is one more class and a line of `serve`.
"""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from edgeplan.chapters.cold_start.api import ColdStartPlan, plan_cold_start
from edgeplan.chapters.cold_start.gpu.planned import plan_gpu_start
from edgeplan.chapters.cold_start.measuring.planning import on_cores
from edgeplan.chapters.cold_start.planners.registry import plan_start, with_warm_kernels
from edgeplan.chapters.partition.checked.planning import OPENED, CheckLimits, checked_plan
from edgeplan.devices.config import load_device
from edgeplan.devices.pairs import STOCK_GPU, PairFile
from edgeplan.engines.program import words_of
from edgeplan.engines.registry import SETTINGS, owner, setting, version_of
from edgeplan.measurement.process.inputs import drawn
from edgeplan.measurement.process.job import PrepareJob
from edgeplan.measurement.process.starts import prepare_offline
from edgeplan.measurement.process.stock import inputs_of
from edgeplan.profiling.settings import cores_of
from edgeplan.profiling.subjects import target_of
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.installed import MOST_RUNS, PROGRAM, runs_natively, words_for
from edgeplan.runtime.plan_folder import write_linked
from edgeplan.support.answers import Answering
from edgeplan.support.cpus import pinned, workers
from edgeplan.support.files import FilePath
from edgeplan.support.subprocesses import program_command
from edgeplan.support.tensors import Array, read_arrays, read_outputs, write_arrays, write_outputs
from edgeplan.support.workers import ColdRunError

_RUNNER = Path(__file__).with_name("runner.py")


@dataclass(frozen=True, slots=True)
class Session:
    """A session is a program that holds a model, and the processors that it may use.

    Attributes:
        lines: whether it is asked by lines, as of `engines.program`; else it says its times when it ends.
    """

    command: tuple[str, ...]
    processors: tuple[int, ...]
    lines: bool = True


@dataclass(frozen=True, slots=True)
class Ran:
    """Tells how a session ran in one turn.

    Attributes:
        first_ms: from exec to its first answer.
        blocks: ms of each later inference, by block.
        peak: the most bytes that it held, all pages.
    """

    first_ms: float
    blocks: tuple[tuple[float, ...], ...]
    peak: int

    @property
    def later_ms(self) -> float:
        """Return the median of all later inferences; of a session that ran none, its first answer."""
        return median(ms for block in self.blocks for ms in block) if any(self.blocks) else self.first_ms

    @property
    def per_second(self) -> float:
        """Return how many inferences it made a second, one after the other."""
        times = [ms for block in self.blocks for ms in block]
        return 1e3 * len(times) / sum(times) if times else 0.0


class Turns(Answering):
    """The process that runs sessions, each time in new processes. Use it as a context manager."""

    def __init__(self) -> None:
        super().__init__(program_command(sys.executable, "-I", "-S", str(_RUNNER)))

    def run(
        self, *groups: Sequence[Session], seconds: float, patience: float, blocks: int = 1, save: bool = False
    ) -> list[list[Ran]]:
        """Start groups of sessions one after the other, and have them infer in turns.

        Args:
            groups: each of sessions that run side by side.
            seconds: of each block.
            patience: seconds that all of it may take.
            blocks: of each group.
            save: whether the first session of each group writes its outputs where its command says.

        Raises:
            ColdRunError: one ended, or took too long.
        """
        asked = {"seconds": seconds, "patience": patience, "blocks": blocks, "save": save}
        job = {"groups": [[asdict(session) for session in group] for group in groups], **asked}
        self.tell(json.dumps(job))
        line = self.answer()
        told: dict[str, Any] = json.loads(line) if line else {"error": f"the process that starts sessions ended{self.words()}"}
        if "error" in told:
            raise ColdRunError(told["error"], next_step="correct what it complains of, or leave it out")
        return [
            [Ran(one["first_ms"], tuple(map(tuple, one["blocks"])), one["peak"]) for one in group] for group in told["groups"]
        ]


#: The engine that outputs are compared with, and plans of this package: on the CPU, on a pair's second processor, on both.
REFERENCE, OWN, OWN_GPU, SPLIT = "onnxruntime", "edgeplan", "edgeplan-gpu", "edgeplan-split"
_OWN_TITLES = {OWN: "edgeplan", OWN_GPU: "edgeplan on the second processor", SPLIT: "edgeplan on both, operators split"}
_SPLIT_SECONDS = 25.0  # a split is not planned where less is left
_LEAST_RUNS = 3  # of a program that is told how often it runs when it is started


@dataclass(frozen=True, slots=True)
class Way:
    """A way serves by an engine, on so many threads a session, by so many sessions at once.

    Attributes:
        engine: on the CPU; "" where nothing serves there.
        threads, sessions: of it.
        beside: what serves by one session more on a pair's second processor, or on both; "" without.
    """

    engine: str
    threads: int
    sessions: int
    beside: str = ""

    @property
    def engines(self) -> tuple[str, ...]:
        """Return the names of what serves."""
        return tuple(filter(None, (self.engine, self.beside)))

    @property
    def title(self) -> str:
        """Return the names of its engines for people."""
        return " beside ".join(_OWN_TITLES.get(name) or setting(name).title for name in self.engines)

    @property
    def name(self) -> str:
        """Return the name of the way for people."""
        if not self.sessions:
            return self.title
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        sessions = threads if self.sessions == 1 else f"{self.sessions} sessions of {threads}"
        return ", ".join((self.title, f"{sessions} on the first" if self.beside else sessions))

    def places(self, processors: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the processors of each session: as many as it has threads."""
        return [tuple(processors[k * self.threads : (k + 1) * self.threads]) for k in range(self.sessions)]


def processors_of(device: FilePath) -> tuple[int, ...]:
    """Return the processors of a device that this process may use: by affinity, a control group's quota and SLURM."""
    found = cores_of(load_device(device)).all
    job = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return found[: min(workers(), int(job) if job.isdecimal() and int(job) else len(found))]


def engines() -> tuple[str, ...]:
    """Name the engines that are compared: stock ones as they come, and plans of this package behind the reference."""
    stock = [name for name in SETTINGS if setting(name).stock and owner(name).name == name]
    return REFERENCE, OWN, *(name for name in stock if name != REFERENCE)


def all_ways(names: Sequence[str], count: int, pair: PairFile | None = None) -> list[Way]:
    """Return all ways on so many processors, those first that are usually best: on all, by one session, by many, on a pair."""
    sizes = dict.fromkeys((count, 1, max(1, count // 2)))
    shapes = dict.fromkeys([*((size, count // size) for size in sizes), *((size, 1) for size in sizes)])
    found, early = [Way(name, threads, sessions) for threads, sessions in shapes for name in names], 2 * len(names)
    if pair is None:
        return found
    return [*found[:early], *_pair_ways(pair, names), *found[early:], Way("", 0, 0, SPLIT)]  # planning a split takes longest


def _pair_ways(pair: PairFile, names: Sequence[str]) -> list[Way]:
    """Return a pair's second processor alone, and from one queue with sessions on the first."""
    count, gpus = len(host_cores(pair)), (OWN_GPU, *([STOCK_GPU] if pair.takes_stock_gpu() else []))
    # costs of our plans are known for all processors and for one
    sizes = [one for one in ((REFERENCE, count), (REFERENCE, 1), (OWN, 1)) if count and one[0] in names]
    shared = [Way(name, threads, count // threads, gpu) for name, threads in dict.fromkeys(sizes) for gpu in gpus]
    return [*(Way("", 0, 0, gpu) for gpu in gpus), *shared]


def host_cores(pair: PairFile) -> tuple[int, ...]:
    """Return the cores of the first processor that the second leaves to it: a device of its own needs one for its driver."""
    return tuple(core for core in pair.processors[0].cores if core not in beside_cores(pair))


def beside_cores(pair: PairFile) -> tuple[int, ...]:
    """Return where the process of the second processor runs."""
    host, other = pair.processors
    return other.cores or host.cores[:1]


class Source:
    """A model that is served, of static shape, what it is given, and a folder for what is made of it."""

    def __init__(self, path: Path, folder: Path) -> None:
        folder.mkdir()
        self.path, self.folder, self.inputs = path, folder, inputs_of(path)
        self.values: Mapping[str, Array] = drawn(self.inputs)
        write_outputs(folder / "inputs.npz", self.values)


class Server(ABC):
    """A server makes the sessions of an engine for one model; `version` is the engine's."""

    version: str
    _outputs: Path

    @abstractmethod
    def session(self, threads: int, processors: tuple[int, ...], runs: int) -> Session:
        """Return a session of so many threads; one that takes no lines infers so often. EdgeplanError: there is none."""

    def outputs(self) -> list[Array]:
        """Return the outputs that a session has written last."""
        return [*read_outputs(self._outputs).values()]


class _Stock(Server):
    """A stock engine serves as it comes, in a program that holds nothing of this package."""

    def __init__(self, name: str, source: Source, threads: int, seconds: float) -> None:
        self._name, self.version, work = name, version_of(name), source.folder / name
        if not self.version:
            raise ColdRunError(f"not installed: {owner(name).install}")
        work.mkdir()
        job = PrepareJob(setting=name, threads=threads, model=source.path, folder=work, **source.inputs)
        found = prepare_offline(job, seconds)
        if found.artefact is None:
            raise ColdRunError(found.reason)
        self._artefact, self._inputs, self._outputs = found.artefact, source.folder / "inputs.npz", work / "outputs.npz"

    def session(self, threads: int, processors: tuple[int, ...], runs: int) -> Session:
        del runs
        return Session(words_of(self._name, self._artefact, threads, self._inputs, self._outputs), processors)


class _Own(Server):
    """Plans of cold starts serve, with kernels for later inferences, by edgeplan-run."""

    def __init__(self, source: Source, device: FilePath, processors: Sequence[int], seconds: float) -> None:
        self._source, self._outputs = source, source.folder / "outputs"
        widest = source.folder / f"plan-{len(processors)}"
        with pinned(*processors):
            self._made = plan_cold_start(source.path, widest, device, continuous=True, budget_seconds=seconds)
        self._borders, self.version = read_folder(widest).head.outputs, self._made.plan.target.library_version
        files = write_arrays(source.folder, source.values)
        self._words = [word for name, file in files.items() for word in ("-i", f"{name}={file}")]

    def session(self, threads: int, processors: tuple[int, ...], runs: int) -> Session:
        folder = self._source.folder / f"plan-{threads}"
        if not folder.exists():
            _narrow(self._made, self._source.path, folder, threads)
        return plan_session(folder, processors, runs, *self._words, "-o", str(self._outputs))

    def outputs(self) -> list[Array]:
        return [*read_arrays(self._outputs, self._borders).values()]


class _Opened(Server):
    """A plan of a pair serves, opened by this package: of its second processor alone, or of both."""

    def __init__(self, name: str, source: Source, pair: PairFile, seconds: float) -> None:
        self._folder, self._outputs = source.folder / name, source.folder / f"{name}.npz"
        self._words = (str(self._folder), str(source.folder / "inputs.npz"), str(self._outputs))
        if name == OWN_GPU:
            plan_gpu_start(source.path, self._folder, pair.devices()[1])
        elif seconds < _SPLIT_SECONDS:
            raise ColdRunError(f"not tried: planning it takes {_SPLIT_SECONDS:.0f} s, and {seconds:.0f} are left")
        else:
            checked_plan(pair, source.path, self._folder, CheckLimits(stock=()))  # they are ways of their own
        self.version = read_folder(self._folder).made_for.driver

    def session(self, threads: int, processors: tuple[int, ...], runs: int) -> Session:
        del threads, runs
        return Session((sys.executable, "-m", OPENED, *self._words), processors)


def _narrow(made: ColdStartPlan, model: Path, folder: Path, threads: int) -> None:
    """Write the plan for fewer cores, by the costs that were measured for all of them."""
    profiles = on_cores(made.profiles, threads)
    if not profiles:
        raise ColdRunError(f"no costs of plans on {threads} cores: taskset -c 0-{threads - 1} edgeplan compare measures them")
    dnnl = Dnnl()
    narrow = plan_start(profiles, "optimal", target_of(model, dnnl, threads))
    write_linked(dnnl, model, with_warm_kernels(narrow, profiles), folder)


def plan_session(folder: Path, processors: tuple[int, ...], runs: int, *words: str) -> Session:
    """Return the session of a plan folder of any kind: by edgeplan-run where that runs it, else in Python.

    Where edgeplan-run runs it, it infers `runs` times behind the first, and takes the words as options.
    """
    if not runs_natively(str(folder)):
        return Session((sys.executable, "-m", OPENED, str(folder)), processors)
    count = 1 + min(max(runs, _LEAST_RUNS), MOST_RUNS - 1)
    return Session((PROGRAM, *words_for(str(folder), str(count)), "--json", *words), processors, lines=False)


def serve(
    name: str, source: Source, device: FilePath, processors: Sequence[int], seconds: float, pair: PairFile | None = None
) -> Server:
    """Make what serves a model by an engine.

    All sessions together use the processors; making it may take the seconds, as far as can be held.

    Raises:
        EdgeplanError: the engine is not installed, or cannot serve the model.
    """
    if name == OWN:
        return _Own(source, device, processors, seconds)
    if pair is not None and name in _OWN_TITLES:
        return _Opened(name, source, pair, seconds)
    return _Stock(name, source, len(processors), seconds)
