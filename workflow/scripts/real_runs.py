"""Try what people do with files from elsewhere: `python workflow/scripts/real_runs.py LIST FOLDER -o RESULTS`.

LIST and FOLDER are those of `real_files.py`. Each file is predicted, planned for its first inference from predicted costs,
planned for the least memory that makes it half as slow again, and both plans are run and compared with ONNX Runtime, by the
commands that people type, one after the other, each as a process of its own. RESULTS is a CSV with a row for each file, written
after each: what is in it is not tried again, unless its file is another now.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from csv_rows import write_rows
from edgeplan.errors import EdgeplanError
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.subprocesses import ending, module_command, run
from real_files import RealFile, read_list, require

#: Of a plan of memory. A budget in its place would have to be another for each file: small ones take no less than the library.
_SLOWDOWN = "50%"
_LONGEST_S = 900.0


@dataclass
class Tried:
    """A row tells how far one file came.

    Attributes:
        file: its path in the list.
        sha256: its digest.
        predicts: whether `edgeplan predict` answers.
        plans_cold_start: whether `edgeplan plan cold-start --costs predicted` writes a plan.
        plans_memory: whether `edgeplan plan memory` writes a plan.
        runs: whether `edgeplan run --check` agrees with ONNX Runtime on both plans.
        seconds: how long all of that took.
        refused_by: the commands that failed, in their order.
        refused_because: their messages.
    """

    file: str
    sha256: str
    predicts: bool = False
    plans_cold_start: bool = False
    plans_memory: bool = False
    runs: bool = False
    seconds: float = 0.0
    refused_by: str = ""
    refused_because: str = ""

    @property
    def whole(self) -> bool:
        """Tell whether every command has succeeded."""
        return self.predicts and self.plans_cold_start and self.plans_memory and self.runs


def tried(file: RealFile, folder: Path, device: str) -> Tried:
    """Try one file by the commands."""
    row, start = Tried(file.path, file.sha256), time.monotonic()
    try:
        model = str(require(file, folder))
    except EdgeplanError as error:
        row.refused_by, row.refused_because = "fetch", error.what
        return row
    with ScratchFolder("real") as scratch:
        # below the scratch folder, which this process has locked: writers of plans lock the folder that a plan goes to
        plans = Path(scratch) / "plans"
        plans.mkdir()
        cold, memory = str(plans / "cold"), str(plans / "memory")
        row.predicts = _succeeds(row, "predict", model, "--device", device, *file.options)
        row.plans_cold_start = _succeeds(
            row, "plan", "cold-start", model, "--output", cold, "--costs", "predicted", *file.options
        )
        budget = ("--max-slowdown", _SLOWDOWN)
        row.plans_memory = _succeeds(row, "plan", "memory", model, "--output", memory, *budget, *file.options)
        made = [plan for plan, there in ((cold, row.plans_cold_start), (memory, row.plans_memory)) if there]
        row.runs = bool(made) and all(_succeeds(row, "run", plan, "--check") for plan in made)
    row.seconds = round(time.monotonic() - start, 1)
    return row


def _succeeds(row: Tried, *arguments: str) -> bool:
    """Run a command; what fails is told in the row."""
    try:
        done = run(module_command("edgeplan", *arguments), timeout=_LONGEST_S)
        message = "" if done.returncode == 0 else _message(done)
    except subprocess.TimeoutExpired:
        message = f"took longer than {_LONGEST_S:.0f} s"
    if message:
        command = " ".join(arguments[: 2 if arguments[0] == "plan" else 1])
        row.refused_by = "; ".join(filter(None, (row.refused_by, command)))
        row.refused_because = " | ".join(filter(None, (row.refused_because, message)))
    return not message


def _message(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith(("error", "Error"))), lines[-1] if lines else "")
    return told or ending(done.returncode)


def figures(rows: Sequence[Tried]) -> dict[str, float]:
    """Return the share of files of which everything succeeded."""
    return {"real.files": float(len(rows)), "real.runs": sum(row.whole for row in rows) / max(1, len(rows))}


def known(target: Path) -> dict[str, Tried]:
    """Read the rows that were written before, by file."""
    if not target.is_file():
        return {}
    with target.open(newline="", encoding="utf-8") as listed:
        rows = [Tried(**row) for row in csv.DictReader(listed)]  # type: ignore[arg-type]  # text, as it is
    for row in rows:
        for name in ("predicts", "plans_cold_start", "plans_memory", "runs"):
            setattr(row, name, getattr(row, name) == "True")
        row.seconds = float(row.seconds)
    return {row.file: row for row in rows}


def main() -> None:
    """Try each file of the list that is not in the results yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("list", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV to write")
    parser.add_argument("-d", "--device", default="cpu-onnxruntime", help="device to predict for")
    parser.add_argument("--failed", action="store_true", help="try again what failed before")
    arguments = parser.parse_args()
    before, rows = known(arguments.output), list[Tried]()
    for file in read_list(arguments.list):
        old = before.get(file.path)
        if old is None or old.sha256 != file.sha256 or (arguments.failed and not old.whole):
            row = tried(file, arguments.folder, arguments.device)
            print(f"{file.path}: {row.refused_by or 'all'} {row.refused_because} ({row.seconds} s)", flush=True)  # noqa: T201
        else:
            row = old
        rows.append(row)
        write_rows(Tried, [*rows, *(before[name] for name in before if name not in {r.file for r in rows})], arguments.output)
    print(figures(rows))  # noqa: T201  what the script is for


if __name__ == "__main__":
    main()
