"""Run a command that builds results, and say what came out.

A failure ends with its own message and leaves no figures of another run.

Usage: python reproduce.py DEVICE COMMAND ...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import yaml

from edgeplan.chapters.registry import load_params, merged_figures
from edgeplan.chapters.running import ERROR, PARAMS
from edgeplan.errors import EdgeplanError
from edgeplan.report.stage import summary
from edgeplan.support import lifeline, termination
from edgeplan.support.subprocesses import child_environment, module_command, program_command, run

#: The page of the run, written last.
_PAGE = Path("results/report.html")
#: What a machine lacks that has no second processor; all else is an error that the stage itself tells.
_LACKS = (
    "no OpenCL platform",
    "no OpenCL device",
    "no OpenCL kernel works",
    "pyopencl is not installed",
    "does not exist on this machine",
    "may not be used by this process",
    "cuda-bindings is not installed",
    "there is no CUDA here",
    "cuInit reports",
)


def _asked(path: str, command: Sequence[str]) -> list[str]:
    """Read the names of a list of params.yaml, or those that the command gives in its place; the last `-S` counts."""
    for word in reversed(command):
        if word.startswith(f"{path}="):
            return yaml.safe_load(word.partition("=")[2]) or []
    section, name = path.split(".")
    params = yaml.safe_load(PARAMS.read_text(encoding="utf-8")) if PARAMS.is_file() else {}
    return params.get(section, {}).get(name, [])


def _is_here(*named: str) -> bool:
    """Return whether a device or a pair can be used on this machine; say why one is left out."""
    done = run(module_command("edgeplan", "device", "check", *named))
    said = done.stderr.decode(errors="replace")
    lacking = done.returncode != 0 and any(lack in said for lack in _LACKS)
    if lacking:
        print(f"{named[-1]} is left out: {_reason(said)}", file=sys.stderr)  # noqa: T201  for people
    return not lacking


def _without_what_is_not_here(device: str, command: Sequence[str]) -> list[str]:
    """Make the options by which a command leaves out pairs and GPUs that are not here, and devices that are not trained."""
    pair_is_here = cache(lambda pair: _is_here("--pair", pair))
    stay: dict[str, Callable[[str], bool]] = {
        "partition.pairs": pair_is_here,
        "partition.checked_pairs": pair_is_here,
        "cold_gpu.devices": _is_here,
        "unseen.devices": lambda name: name == device,
    }
    options = []
    for path, stays in stay.items():
        names = _asked(path, command)
        if (found := [name for name in names if stays(name)]) != names:
            options += ["-S", f"{path}=[{','.join(found)}]"]
    return options


def _code_of(command: Sequence[str]) -> int:
    """Run a command, which ends with this process; SIGTERM and the end of `make` end what it runs first."""
    process = subprocess.Popen(program_command(*command), env=child_environment())  # noqa: S603  no shell
    try:
        code = process.wait()
    except (SystemExit, KeyboardInterrupt):
        lifeline.end_descendants(termination.seconds())
        os._exit(128 + signal.SIGTERM)  # nothing is left to put away, which takes the interpreter a second
    if code:
        lifeline.end_descendants(termination.seconds())
    return code


def _outcome(device: str) -> list[Path]:
    """List the files that a reader takes for the outcome: the page, and the figures of merit of each device and pair."""
    try:
        params = load_params(PARAMS).model_dump() | {"devices": [device]}
    except EdgeplanError:  # which the run tells itself
        return [_PAGE]
    return [_PAGE, *map(Path, merged_figures(params))]


def _reason(told: str) -> str:
    """Extract from an error's text, which stands last, what was wrong and what to do next, in one line."""
    lines = [line.strip() for line in told.splitlines()]
    begin = max(place for place, line in enumerate(lines) if line.startswith("error: "))
    parts = [lines[begin].removeprefix("error: "), *lines[begin + 1 :]]
    return "; ".join(part.removeprefix("next:").strip() for part in parts if part and not part.startswith("where:"))


def main() -> int:
    """Run the command; its exit code, or that of the error that a stage ended with."""
    termination.end_orderly()
    termination.end_with_starter()
    device, *command = sys.argv[1:]
    command += _without_what_is_not_here(device, command)
    ERROR.unlink(missing_ok=True)
    known = [path for path in _outcome(device) if path.is_file()]
    for path in known:
        path.unlink()
    code = _code_of(command)
    if code == 0:
        print(*summary(load_params(PARAMS)), f"done: {_PAGE}; 'git status' shows what changed", sep="\n")  # noqa: T201  for people
        return 0
    code_of_stage, said = ERROR.read_text(encoding="utf-8").split("\n", 1) if ERROR.is_file() else (str(code), "")
    if gone := [str(path) for path in known if path != _PAGE and not path.is_file()]:
        print(  # noqa: T201  for people
            f"{', '.join(gone)}: gone, since figures of an earlier run stood there; `git checkout -- {' '.join(gone)}` brings "
            "the committed ones back; what was measured is kept, and the same command goes on from there",
            file=sys.stderr,
        )
    unknown = f"error: {' '.join(command[:3])} ended with exit code {code}\n  next:  read what stands above, then run it again"
    print(said.strip() or unknown, file=sys.stderr)  # noqa: T201
    return int(code_of_stage)


if __name__ == "__main__":
    sys.exit(main())
