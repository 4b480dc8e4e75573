"""Runs one stage of the pipeline for one target, in the workspace that is the current folder: `edgeplan stage NAME`.

Snakemake, DVC and people at a debugger run it by the same command, and what protects a workspace is in it: one run builds in a
workspace at a time, what a stage that fails had written is taken back, and what DVC notes is of the code that `make wire` saw.
"""

from __future__ import annotations

import fcntl
import inspect
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from edgeplan.chapters.base import ChapterParams, Stage
from edgeplan.chapters.check import check_params
from edgeplan.chapters.registry import CHECK, STAGES, load_params, params_on
from edgeplan.chapters.wiring import CODE, code_digest, noted_code
from edgeplan.engines.description import named_object
from edgeplan.errors import BusyError, EdgeplanError, ParamsError, StoreError
from edgeplan.support.files import write_text
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.termination import DVC_STAGE, ancestors
from edgeplan.terminal import EscapingFormatter
from edgeplan.writable import cannot_write, expected, require_writable

PARAMS = Path("params.yaml")
#: Held by the one run that builds in a workspace, with the number of its process; the system frees it when that ends.
LOCK = Path("work/build.lock")
#: Names the run that holds the workspace to jobs that a cluster starts for it.
HOLDER = "EDGEPLAN_WORKSPACE_HOLDER"
#: The exit code and the message of the stage that failed last, for who started the whole run.
ERROR = Path("work/error.txt")
_INSTEAD = "clone to a folder of yours"
_LOG = logging.getLogger("edgeplan")


def run_stage(name: str, target: Mapping[str, str]) -> None:
    """Run a stage for a target, names by wildcard ("device", "pair"); its log is a file below `work/logs`, too."""
    terminal = logging.StreamHandler()
    terminal.setFormatter(EscapingFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[terminal])
    try:
        _run(name, target)
    except EdgeplanError as error:
        _end(error)
    except OSError as error:
        if (message := expected(error)) is None:
            raise
        _end(message)


def _run(name: str, target: Mapping[str, str]) -> None:
    if not PARAMS.is_file():
        next_step = "run the command in the folder of the workspace, which a clone of the project is"
        raise ParamsError(f"there is no {PARAMS} here", where=str(Path.cwd()), next_step=next_step)
    if name == CHECK:
        check_params(PARAMS)
        return
    stage = _named(name)
    _require_target(stage, target)
    _log_to(Path(stage.log.format(**target)))
    params = load_params(PARAMS)
    names = target if stage.wildcards or not stage.targets else stage.targets.of(params.model_dump())[0]

    def at(path: str) -> str:
        return path.format(**names)

    _require(at(path) for path in stage.inputs.values())
    if "device" in stage.inputs:
        params = params_on(params, Path(at(stage.inputs["device"])))
    if DVC_STAGE in os.environ:
        _require_wired(stage)
    outputs = [Path(at(path)) for path in stage.outputs.values()]
    for folder in dict.fromkeys(path.parent for path in outputs):
        require_writable(folder, instead=_INSTEAD)  # before minutes of measuring, not after them
    function = named_object(stage.function)
    paths = {key: at(path) for group in (stage.inputs, stage.outputs, stage.folders) for key, path in group.items()}
    with held(wait=True), _taken_back_on_failure([*outputs, *(Path(at(path)) for path in stage.shown)]):
        function(**stage_arguments(function, params, stage.params, paths, names))


def _named(name: str) -> Stage:
    known = {stage.name: stage for stage in STAGES}
    if name not in known:
        near = get_close_matches(name, [*known, CHECK]) or [*known, CHECK]
        raise ParamsError(f"there is no stage {name!r}", where="edgeplan stage", next_step=f"name one: {', '.join(near)}")
    return known[name]


def _require_target(stage: Stage, target: Mapping[str, str]) -> None:
    if set(target) != set(stage.wildcards):
        what = f"runs for a {stage.wildcards[0]}" if stage.wildcards else "runs once"
        given = f", not for a {' and a '.join(target)}" if target else ""
        raise ParamsError(
            f"stage {stage.name} {what}{given}",
            where="edgeplan stage",
            next_step=stage.command.format(**{name: name.upper() for name in stage.wildcards}),
        )


def _require(paths: Iterable[str]) -> None:
    """Refuse inputs of which one is missing, and name the first one and the command that makes it."""
    missing = next((path for path in paths if not Path(path).exists()), None)
    if missing is not None:
        maker = next(((stage, match) for stage in STAGES for match in [_makes(stage, missing)] if match is not None), None)
        next_step = maker[0].command.format(**maker[1]) if maker else "write this file; no stage does"
        raise StoreError("an input of the stage is missing", where=missing, next_step=next_step)


def _makes(stage: Stage, path: str) -> Mapping[str, str] | None:
    """Return the target for which a stage writes a path; None: for none."""
    patterns = [*stage.written, *stage.outputs.values(), *stage.plots, *stage.metrics, *filter(None, [stage.rows])]
    for pattern in patterns:
        parts, own = pattern.split("/"), path.split("/")
        names = {part[1:-1]: name for part, name in zip(parts, own, strict=False) if part[:1] + part[-1:] == "{}"}
        if pattern.format(**{**dict.fromkeys(stage.targets.wildcards if stage.targets else (), ""), **names}) == path:
            return names
    return None


def _require_wired(stage: Stage) -> None:
    """Refuse to build for DVC what it would note as made by the code that `make wire` has seen, where the code is another."""
    if code_digest(stage.module) != noted_code().get(stage.name):
        raise ParamsError(
            f"the code of stage {stage.name} is not the one that {CODE} names, by which DVC tells what is current",
            where=stage.function.partition(":")[0],
            next_step="make wire, then run the same command again",
        )


def stage_arguments(
    function: Callable[..., Any],
    params: ChapterParams,
    sections: Iterable[str],
    paths: Mapping[str, Any],
    wildcards: Mapping[str, str],
) -> dict[str, Any]:
    """Return the arguments of a stage's function, each found by its name.

    They are params.yaml (`params`) and its sections, paths that the stage reads and writes, or else wildcards of its target.
    """
    known: dict[str, Any] = {"params": params}
    known |= {**wildcards, **{name: getattr(params, name) for name in sections if hasattr(params, name)}}
    known |= {name: Path(path) for name, path in paths.items() if isinstance(path, str)}
    asked = inspect.signature(function).parameters
    missing = [name for name, one in asked.items() if name not in known and one.default is one.empty]
    if missing:
        raise ParamsError(
            f"the stage declares no {missing[0]!r}",
            where=f"{function.__module__}.{function.__qualname__}",
            next_step="name it among the inputs, outputs, paths or params of the stage in chapter.py",
        )
    return {name: known[name] for name in asked if name in known}


@contextmanager
def held(*, wait: bool) -> Iterator[None]:
    """Hold the workspace: one run builds in it at a time, others wait or are refused. What a run has started holds it, too."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("a+") as lock:
        holder = _locked(lock)
        if holder is not None and holder not in (*map(str, ancestors()), os.environ.get(HOLDER)):
            if not wait:
                raise BusyError(
                    "another run is building in this folder",
                    where=f"process {holder}, which holds {LOCK}",
                    next_step="wait for it to end, then run this command again",
                )
            _LOG.info("waiting for process %s, which is building in this folder", holder)
            fcntl.flock(lock, fcntl.LOCK_EX)
            holder = None
        if holder is None:
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        yield


def _locked(lock: IO[str]) -> str | None:
    """Take a lock; return None, or who holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        return lock.read()
    return None


@contextmanager
def _taken_back_on_failure(paths: Iterable[Path]) -> Iterator[None]:
    """Put back what stood at some paths if what follows fails, however it does; what was not there is deleted."""
    with ScratchFolder("outputs") as scratch:
        kept = {path: Path(scratch, str(number)) for number, path in enumerate(paths)}
        for path, copy in kept.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _copy(path, copy)
        try:
            yield
        except BaseException:
            for path, copy in kept.items():
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
                _copy(copy, path)
            raise


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to)
    elif path.exists():
        shutil.copy2(path, to)


def _log_to(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = logging.FileHandler(path, mode="w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise cannot_write(error, path, instead=_INSTEAD) from error
    kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(kept)


def _end(error: EdgeplanError) -> None:
    _LOG.error("error: %s", error)
    with suppress(EdgeplanError):  # where nothing can be written, what stands above has to do
        write_text(ERROR, f"{error.exit_code}\nerror: {error}\n")
    sys.exit(error.exit_code)
