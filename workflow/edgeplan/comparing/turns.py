"""Asks the process that starts programs (`comparing.runner`) for turns of some sessions, and hands over what came of them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

from edgeplan.support.subprocesses import end, program_command, start
from edgeplan.support.workers import ColdRunError

_RUNNER = Path(__file__).with_name("runner.py")


@dataclass(frozen=True, slots=True)
class Session:
    """A session is a program that holds a model, and the processors that it may use.

    Attributes:
        command: that starts it.
        processors: their numbers.
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

    @classmethod
    def told(cls, answer: Mapping[str, Any]) -> Self:
        """Take it from what the runner says."""
        return cls(answer["first_ms"], tuple(map(tuple, answer["blocks"])), answer["peak"])

    @property
    def later_ms(self) -> float:
        """Return the median of all later inferences; of a session that ran none, its first answer."""
        return median(ms for block in self.blocks for ms in block) if any(self.blocks) else self.first_ms

    @property
    def per_second(self) -> float:
        """Return how many inferences it made a second, one after the other."""
        times = [ms for block in self.blocks for ms in block]
        return 1e3 * len(times) / sum(times) if times else 0.0


class Turns:
    """The process that runs sessions, each time in new processes. Use it as a context manager."""

    def __enter__(self) -> Self:
        command = program_command(sys.executable, "-I", "-S", str(_RUNNER))
        self._process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._process:
            end(self._process)

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
        assert self._process.stdin is not None  # noqa: S101  it is a pipe
        assert self._process.stdout is not None  # noqa: S101  likewise
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        told: dict[str, Any] = json.loads(answer) if answer else {"error": "the process that starts sessions ended"}
        if "error" in told:
            raise ColdRunError(told["error"], next_step="correct what it complains of, or leave it out")
        return [[Ran.told(one) for one in group] for group in told["groups"]]
