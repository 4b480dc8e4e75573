"""Cuts and kills around a board behind ssh, at random moments while it measures: are rows lost, or measured twice?

python tests/end_to_end/board_cuts.py --cuts 20 --kills 10 --output results/farm.json    (as root)

A cut pulls the cable until the host notices. Kills hit the worker, the ssh client and the host. Each row is a batch, so
at most one is begun and not journalled at a kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from ssh_board import ROOT, SshBoard, lacking, ssh_board

from edgeplan.measurement.rows import read_rows
from edgeplan.support.files import write_json
from edgeplan.terminal import say

_HOST = Path(__file__).with_name("board_host.py")
_ROWS = 900
_LONGEST_SECONDS = 120.0


class Trial:
    """A host that measures on a board, and what happens to both.

    Args:
        board: the board.
        folder: of the host.
        seed: of the moments.
    """

    def __init__(self, board: SshBoard, folder: Path, seed: int) -> None:
        self._board, self._folder, self._random = board, folder, random.Random(seed)  # noqa: S311  no secret
        self._stop = folder / "stop"
        self._device = board.device(folder / "dev.yaml", reconnect_seconds=300.0)
        self._lines = list[str]()
        self.start()

    def start(self) -> None:
        """Start the host."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow"), "XDG_STATE_HOME": str(self._folder / "state")}
        command = [sys.executable, str(_HOST), self._device, self._folder / "rows/dev", _ROWS, self._stop, 1]
        self.host = self._board.on_host(
            *map(str, command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, process_group=0
        )
        threading.Thread(target=self._listen, args=(self.host,), daemon=True).start()

    def _listen(self, host: subprocess.Popen[str]) -> None:
        assert host.stdout is not None
        self._lines.extend(iter(host.stdout.readline, ""))

    def heard(self, word: str, since: int) -> None:
        """Wait until the host says a word."""
        end = time.monotonic() + _LONGEST_SECONDS
        while not any(word in line for line in self._lines[since:]):
            if (self.host.poll() is not None and self._stop.exists()) or time.monotonic() > end:
                raise RuntimeError(f"no {word!r} in {self._lines[since:][-20:]}")
            time.sleep(0.02)

    def measuring(self) -> int:
        """Wait until rows come that were not there, then for a random moment. Gives what the host has said until now."""
        known = self._begun()
        end = time.monotonic() + _LONGEST_SECONDS
        while self._begun() < known + 2:
            if time.monotonic() > end:
                raise RuntimeError(f"nothing is measured: {self._lines[-20:]}")
            time.sleep(0.01)
        time.sleep(self._random.uniform(0.0, 0.8))
        return len(self._lines)

    def cut(self) -> None:
        """Pull the cable until the host notices."""
        since = self.measuring()
        self._board.link("down")
        self.heard("the link was cut", since)
        time.sleep(self._random.uniform(0.0, 1.0))
        self._board.link("up")

    def kill(self, what: str) -> int:
        """Kill one side; tells how many rows were begun and not journalled, more than before."""
        before = self._lost_begun()
        since = self.measuring()
        if what == "worker":
            os.kill(self._board.worker(), signal.SIGKILL)
            self.heard("the link was cut", since)
        elif what == "ssh":
            for pid in _children(self.host.pid, "ssh"):
                os.kill(pid, signal.SIGKILL)
            self.heard("the link was cut", since)
        else:
            os.killpg(self.host.pid, signal.SIGKILL)
            self.host.wait()
            time.sleep(self._random.uniform(0.0, 1.0))
            self.start()
        self.measuring()
        return self._lost_begun() - before

    def end(self) -> None:
        """Let the host end."""
        self._stop.touch()
        self.host.wait(_LONGEST_SECONDS)
        if self.host.returncode:
            raise RuntimeError(f"the host failed: {self._lines[-20:]}")

    def journalled(self) -> Counter[str]:
        """How often each row is in the board's journal."""
        files = (self._board.folder / "disk/edgeplan/worker").rglob("*.jsonl")
        whole = [path.read_text().rpartition("\n")[0].splitlines() for path in files]
        return Counter(json.loads(line)["row"]["name"] for lines in whole for line in lines)

    def stored(self) -> Counter[str]:
        """How often each row is in the host's store."""
        return Counter(row["subject"] for path in (self._folder / "rows").rglob("*.parquet") for row in read_rows(path))

    def _begun(self) -> int:
        path = self._board.folder / "begun"
        return len(path.read_text().split()) if path.is_file() else 0

    def _lost_begun(self) -> int:
        """Count how often rows were begun again: what was begun and not journalled is."""
        begun = Counter((self._board.folder / "begun").read_text().split()) if self._begun() else Counter[str]()
        return sum(count - 1 for count in begun.values())


def _children(pid: int, name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = path.read_text().split(" (", 1)
            command, _, fields = rest.rpartition(") ")
        except (OSError, ValueError):
            continue
        if int(fields.split()[1]) == pid and command == name:
            found.append(int(number))
    return found


def trial(cuts: int, kills: int, seed: int) -> dict[str, float]:
    """Cut and kill so often, and count."""
    with tempfile.TemporaryDirectory(prefix="edgeplan-cuts-") as made:
        folder = Path(made)
        (folder / "board").mkdir()
        with ssh_board(folder / "board") as board:
            one = Trial(board, folder, seed)
            for number in range(cuts):
                one.cut()
                say(f"cut {number + 1} of {cuts}")
            begun_only = []
            for number in range(kills):
                for what in ("worker", "ssh", "host"):
                    begun_only.append(one.kill(what))
                    say(f"kill {number + 1} of {kills}: {what}, begun and not journalled: {begun_only[-1]}")
            one.end()
            journalled, stored = one.journalled(), one.stored()
    return {
        "farm.rows_lost": sum((Counter(journalled.keys()) - stored).values()),
        "farm.rows_twice": sum(count - 1 for count in (*journalled.values(), *stored.values())),
        "farm.begun_not_journalled_max": max(begun_only, default=0),
        "farm.rows": len(stored),
        "farm.cuts": cuts,
        "farm.kills": 3 * kills,
    }


def main() -> None:
    """Run the trial, and print or write its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if reason := lacking():
        sys.exit(reason)
    found = trial(given.cuts, given.kills, given.seed)
    say(json.dumps(found, indent=2))
    if given.output:
        known = json.loads(given.output.read_text()) if given.output.is_file() else {}
        write_json(given.output, {**known, **found})


if __name__ == "__main__":
    main()
