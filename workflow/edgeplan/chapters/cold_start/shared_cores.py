"""How much longer cold starts take where other processes use the cores.

`python -m edgeplan.chapters.cold_start.shared_cores PLAN...`

Plans' starts and ONNX Runtime's, each in a fresh process, in turn: with the cores free, beside a busy loop on the last core,
and beside one on each. Figures are printed as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from edgeplan.engines.cold import Artefact
from edgeplan.errors import DeviceError
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process.background import background_load
from edgeplan.measurement.process.inputs import job_inputs
from edgeplan.measurement.process.job import RunJob, RunResult
from edgeplan.measurement.process.prepared_plan import prepared
from edgeplan.runtime.folder import PROGRAM_NAME
from edgeplan.runtime.linked import LinkedProgram
from edgeplan.runtime.linked_file import read_linked
from edgeplan.support.subprocesses import module_command, run
from edgeplan.support.workers import ColdRunError

_OURS, _ONNX_RUNTIME = "edgeplan", "onnxruntime"
_BEGIN_SECONDS = 0.5  # until a loop runs
_TIMEOUT_SECONDS = 120


@dataclass(frozen=True, slots=True)
class TimedStarter:
    """Something whose starts are timed.

    Attributes:
        name: of it.
        setting: see `baselines.registry`.
        variables: its processes' environment beside this one's.
    """

    name: str
    setting: str
    variables: Mapping[str, str] = field(default_factory=dict)


#: Times in ms by model, starter and number of busy loops, in the order of the rounds.
Times = Mapping[tuple[str, str, int], Sequence[float]]


@contextmanager
def busy_loops(cores: Sequence[int]) -> Iterator[None]:
    """A busy loop on each of some processors while the block runs."""
    with ExitStack() as stack:
        for core in cores:
            stack.enter_context(background_load(core, 100))
        if cores:
            time.sleep(_BEGIN_SECONDS)
        yield


def _cold_ms(job: RunJob, variables: Mapping[str, str]) -> float:
    command = module_command("edgeplan.measurement.process.worker")
    done = run(command, input=job.model_dump_json().encode(), timeout=_TIMEOUT_SECONDS, variables=variables)
    result = (
        RunResult.model_validate_json(done.stdout) if done.returncode == 0 else RunResult(reason=done.stderr.decode()[-300:])
    )
    if result.cold_ms is None:
        raise ColdRunError(
            f"{job.setting} on {job.artefact.main}: {result.reason}",
            next_step="run the plan with `edgeplan run`, which says what is wrong",
        )
    return result.cold_ms


def _model_file(folder: Path, program: LinkedProgram) -> Path:
    path = Path(program.files[0].path)
    near = folder / path.name
    return (near if near.is_file() else path).resolve()


def _job(folder: Path, starter: TimedStarter, cores: Sequence[int]) -> RunJob:
    program = read_linked(folder / PROGRAM_NAME)
    artefact: Artefact | None
    if starter.setting == _ONNX_RUNTIME:
        model = _model_file(folder, program)
        artefact = Artefact(main=model, files=(model,))
    else:
        artefact = prepared(folder).artefact
    given = {"setting": starter.setting, "threads": program.threads, "cpus": tuple(cores[: program.threads])}
    return RunJob.model_validate(given | {"artefact": artefact, "state": "cached", **job_inputs(program.inputs)})


def measure(folders: Sequence[Path], starters: Sequence[TimedStarter], *, rounds: int, seconds: float) -> Times:
    """Starts in turn.

    Args:
        folders: plan folders, each for two equal cores.
        starters: what is started; those beyond the first two only with the cores free.
        rounds: starts of each, for each model and number of loops.
        seconds: no round begins after them, but for the first.

    Raises:
        DeviceError: this process may use fewer than two processors.
        ColdRunError: a start failed.
    """
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise DeviceError("the plans take two processors", where="processors of this process", next_step="allow it two")
    times = defaultdict[tuple[str, str, int], list[float]](list)
    jobs = {(folder, starter.name): _job(folder, starter, cores) for folder in folders for starter in starters}
    end = time.monotonic() + seconds
    for number, loops in itertools.product(range(rounds), range(len(cores) + 1)):
        if loops == 0 and number and time.monotonic() > end:
            break
        chosen = starters if loops == 0 else starters[:2]
        with busy_loops(cores[len(cores) - loops :]):
            for folder in folders:
                for starter in chosen if number % 2 else reversed(chosen):
                    found = _cold_ms(jobs[folder, starter.name], starter.variables)
                    times[folder.name, starter.name, loops].append(found)
    return times


def figures(times: Times) -> dict[str, float]:
    """Slowdowns: medians beside loops over those with the cores free, the median over the models; 1 is none."""
    models = sorted({model for model, _, _ in times})

    def slowdown(name: str, loops: int) -> float:
        medians = [[statistics.median(times[model, name, k]) for k in (loops, 0)] for model in models]
        return statistics.median(loaded / free for loaded, free in medians)

    found: dict[str, float] = {"pairs": float(min(len(values) for values in times.values()))}
    for loops, ending in ((2, ""), (1, "_one_loop")):
        ours, theirs = (slowdown(name, loops) for name in (_OURS, _ONNX_RUNTIME))
        found[f"runtime.shared_core_slowdown{ending}"] = ours
        found[f"runtime.shared_core_slowdown{ending}_over_onnxruntime"] = ours / theirs
    for other in sorted({name for _, name, _ in times} - {_OURS, _ONNX_RUNTIME}):
        pairs = [zip(times[model, _OURS, 0], times[model, other, 0], strict=True) for model in models]
        found[f"free_cores_over_{other.replace(' ', '_')}"] = statistics.median(
            statistics.median(ours / theirs for ours, theirs in pair) for pair in pairs
        )
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m edgeplan.chapters.cold_start.shared_cores", description=__doc__)
    parser.add_argument("plans", nargs="+", type=Path, help="plan folders, each for two equal cores")
    parser.add_argument("--pairs", type=int, default=30, help="starts of each, for each model and number of loops")
    parser.add_argument("--minutes", type=float, default=7.0, help="no round begins after them")
    parser.add_argument("--spins", type=int, nargs="*", default=[300_000], help="GOMP_SPINCOUNT to compare with, cores free")
    parser.add_argument("--before", type=Path, help="folder `workflow` of another checkout to compare with, cores free")
    given = parser.parse_args()
    others = [TimedStarter(f"spins {count}", _OURS, {"GOMP_SPINCOUNT": str(count)}) for count in given.spins]
    if given.before is not None:
        others.append(TimedStarter("before", _OURS, {"PYTHONPATH": str(given.before.resolve())}))
    starters = (TimedStarter(_OURS, _OURS), TimedStarter(_ONNX_RUNTIME, _ONNX_RUNTIME), *others)
    with machine_lock():
        times = measure(given.plans, starters, rounds=given.pairs, seconds=60 * given.minutes)
    medians = {f"{m}, {name}, {loops} loops": round(statistics.median(v), 2) for (m, name, loops), v in sorted(times.items())}
    print(json.dumps({"median_ms": medians, "figures": figures(times)}, indent=2))  # noqa: T201  what it is for


if __name__ == "__main__":
    main()
