"""Two models that run in turns within one budget: as one program, and in two processes with shares of the budget.

In two processes each computes when its turn is, and reads weights while the other one computes, as far as its share has room. A
named pipe says whose turn it is. All plans for shares come from the profiles that the one of both comes from.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process.memory_group import NoGroupError, run_paying
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.subprocesses import end, module_command, start
from edgeplan.support.workers import ColdRunError, last_words

TOGETHER, EQUAL, PROPORTIONAL = "one program", "two processes, equal shares", "two processes, proportional shares"
PAID_TOGETHER = "one program, paying for all"
PAIR_WAYS = (TOGETHER, EQUAL, PROPORTIONAL, PAID_TOGETHER)
_ROUND = re.compile(r"^together: ([0-9.]+) ms", re.MULTILINE)
_PREDICTED = re.compile(r"^together: .* predicted ([0-9.]+) ms", re.MULTILINE)
_OVER = re.compile(r"MiB: ([0-9.]+) over the")
_SECONDS = 600.0
_MIB = 1 << 20
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PairedModel:
    """A paired model runs in turns with another one.

    Attributes:
        name: of the model.
        plan: folder of a plan of memory.
        share: bytes over idle that it gets in proportion.
        files: that the process of its plan maps.
    """

    name: str
    plan: Path
    share: int
    files: tuple[str, ...]


def pair_rows(pair: Sequence[PairedModel], turns: int, rounds: int, wait_seconds: float) -> list[Row]:
    """Run two models in turns by all ways, one way after the other.

    Args:
        pair: the models.
        turns: processes of each way.
        rounds: inferences of each model in one of these.
        wait_seconds: how long to wait while another process measures.

    Raises:
        BusyError: another process still measures then.
    """
    budget = sum(model.share for model in pair)
    folders = [model.plan for model in pair]
    shares = {EQUAL: [budget // len(pair)] * len(pair), PROPORTIONAL: [model.share for model in pair]}
    rows: list[Row] = []
    with machine_lock(wait_seconds):
        for turn in range(turns):
            for way in (TOGETHER, *shares):
                runs = [(folders, budget)] if way == TOGETHER else [([f], s) for f, s in zip(folders, shares[way], strict=True)]
                try:
                    rows.append({"way": way, "turn": turn, **_in_turns(runs, rounds)})
                except ColdRunError as error:
                    rows.append({"way": way, "turn": turn, "reason": error.reason})
        rows.append({"way": PAID_TOGETHER, **_paid(pair, budget, rounds)})
    return [{"budget": budget, **row} for row in rows]


def _in_turns(runs: Sequence[tuple[Sequence[Path], int]], rounds: int) -> Row:
    """Run plans within budgets, each in a process of its own, one inference of each at a time.

    Args:
        runs: of each process, its plans and its budget.
        rounds: inferences of each plan.

    Raises:
        ColdRunError: a process failed; its last words are in the message.
    """
    with _pipes(len(runs)) as pipes, contextlib.ExitStack() as ended:
        processes = []
        for (folders, budget), baton in zip(runs, pipes, strict=True):
            command = _command(folders, budget, rounds, f"--baton={baton}")
            process = start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            ended.callback(end, process)
            processes.append(process)
        _await_all(processes)
        told = [process.communicate()[0].decode(errors="replace") for process in processes]
    return _told(told)


def _await_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all have ended; one that fails never hands its turn over, so the others are not waited for.

    Raises:
        ColdRunError: one failed, or took too long.
    """
    deadline = time.monotonic() + _SECONDS
    while None in (codes := [process.poll() for process in processes]) or any(codes):
        for process, code in zip(processes, codes, strict=True):
            if code:
                what = f"edgeplan run ended with {code}{last_words(process.communicate()[1])}"
                raise ColdRunError(what, next_step="give a larger share")
        if time.monotonic() > deadline:
            raise ColdRunError(f"over {_SECONDS:g} s", next_step="give a larger share")
        time.sleep(0.05)


def _command(folders: Sequence[Path], budget: int, rounds: int, *options: str) -> list[str]:
    words = (*map(str, folders), "--budget", f"{budget // 1024}KiB", "--repeat", str(rounds), *options)
    return module_command("edgeplan", "run", *words)


def _told(texts: Sequence[str]) -> Row:
    """The times and the peaks that processes told, added up."""
    round_ms, predicted_ms, peak = (
        sum(float(found[1]) for text in texts for found in pattern.finditer(text)) for pattern in (_ROUND, _PREDICTED, _OVER)
    )
    return {"round_ms": round_ms, "predicted_ms": predicted_ms, "peak": peak * _MIB, "killed": 0.0}


@contextlib.contextmanager
def _pipes(count: int) -> Iterator[list[str]]:
    """Pipes from each process to the next one, as `--baton` takes them; the first one has its turn."""
    with ScratchFolder("turns") as folder:
        paths = [str(Path(folder) / str(number)) for number in range(count)]
        for path in paths:
            os.mkfifo(path)
        first = os.open(paths[0], os.O_RDWR)
        try:
            os.write(first, b".")
            yield [",".join(both) for both in pairwise([*paths, paths[0]])]
        finally:
            os.close(first)


def _paid(pair: Sequence[PairedModel], budget: int, rounds: int) -> Row:
    """Hold both, as one program, to the budget in a group that pays for its libraries."""
    files = {file for model in pair for file in model.files}
    with ScratchFolder("libraries", pair[0].plan.parent) as folder:
        gate = Path(folder) / "gate"
        command = _command([model.plan for model in pair], budget, rounds, "--gate", str(gate))
        try:
            paid = run_paying(command, b"", gate, files, Path(folder), budget=budget, timeout_seconds=_SECONDS)
        except (NoGroupError, TimeoutError) as error:
            return {"reason": str(error)}
    if paid.code:
        return {"killed": float(paid.code < 0), "reason": f"ended with {paid.code}{last_words(paid.stderr)}"}
    row = _told([paid.stdout.decode(errors="replace")])
    return row | {"peak": float(paid.peak_bytes - paid.idle_bytes), "failures": paid.failures}
