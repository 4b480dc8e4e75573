"""The command `edgeplan run` executes a plan folder of any kind.

Plans of cold starts and of memory are run by edgeplan-run (`cli.native_run`), whose process holds nothing else. Files of
tensors and comparisons are around it: in a folder of their own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeplan.cli.ending import guarded
from edgeplan.cli.native_run import become, is_of_memory, require_built
from edgeplan.errors import InfeasibleError, InputError, ParamsError
from edgeplan.runtime.folder import COLD_START, ENGINE, GPU_START, read_folder
from edgeplan.runtime.installed import MOST_RUNS, PROGRAM, runs_natively, words_for
from edgeplan.support import subprocesses
from edgeplan.terminal import escaped, median, milliseconds, say

if TYPE_CHECKING:
    from edgeplan.runs import Run

ABOUT = """Run a plan folder: a first inference and warm ones after it, or cold starts alone, each in a fresh process.

While a plan made with --continuous runs, idle cores prepare the kernels that later inferences switch to.
"""
#: Of the command in typer's list, which hands everything over.
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
_MB = 1e6


class _Help(argparse.HelpFormatter):
    """Formats help as the other commands do."""

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, prefix or "Usage: ")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    made = argparse.ArgumentParser("edgeplan run", description=ABOUT, allow_abbrev=False, formatter_class=_Help)
    add = made.add_argument
    add("folder", type=Path, nargs="+", help="Plan folder, from `edgeplan plan cold-start`, `memory` or `partition`.")
    inputs = "File of inputs: .npz by name, or .npy for a single one. Default: random values."
    add("--input", "-i", dest="given", type=Path, metavar="FILE", help=inputs)
    add("--output", "-o", type=Path, metavar="FILE", help="File to write the outputs to, .npz.")
    add("--check", action="store_true", help="Compare the outputs with ONNX Runtime's on the same inputs.")
    add("--model", type=Path, help="ONNX file to compare with, where it has moved since it was planned (--check).")
    add("--cold", action="store_true", help="Start a fresh process for each run.")
    add("--evicted", action="store_true", help="Drop the plan's files from the page cache before each run (--cold).")
    add("--repeat", type=_count, default=1, metavar="N", help="Number of runs, 1 to 10000. Default: 1.")
    cores = "Device that the plan was made for, whose cores are taken: its name, or the path of its file. "
    add("--device", "-d", default="", help=f"{cores}Default: the first processors that this process may use.")
    add("--budgets", default="", help="Budgets that a memory plan runs under, one after the other: 300MB,100MB,200MB.")
    add("--budget", "-b", default="", help=argparse.SUPPRESS)  # of several plans in one process, before
    add("--workspace", type=Path, help="Folder with config/devices. Default: the nearest folder upwards.")
    return made


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RUNS:
        raise argparse.ArgumentTypeError(f"{text!r} is not in the range 1 to {MOST_RUNS}")
    return int(text)


def main() -> None:
    """Run the command of this process."""
    guarded(lambda: run(parser().parse_args(sys.argv[2:]), alone=True))


def run(given: argparse.Namespace, *, alone: bool = False) -> None:
    """Run a plan as the options say; a process that does nothing else (`alone`) may become edgeplan-run."""
    if given.output is not None:
        if given.cold:
            raise ParamsError(
                "the outputs of a fresh process stay there", where="--output", next_step="leave out --cold, or --output"
            )
        if given.output.suffix != ".npz" or given.output.is_dir():
            what, next_step = "outputs are written as .npz", "name a file that ends in .npz"
            raise InputError(what, where=str(given.output), next_step=next_step)
    if len(given.folder) > 1 or given.budget:
        budgets = f" --budgets {given.budget}" if given.budget else ""
        raise ParamsError(
            "a process runs one plan, a plan of memory within budgets of its own",
            where=", ".join(map(str, given.folder)),
            next_step="run each by itself: " + "; ".join(f"edgeplan run {folder}{budgets}" for folder in given.folder),
        )
    if given.workspace is not None:
        from edgeplan.workspace import use  # noqa: PLC0415  few runs need it

        use(given.workspace)
    folder = given.folder[0]
    if runs_natively(str(folder)) and not (given.cold or given.evicted):
        _run_natively(folder, given, alone=alone)
    else:
        _run_here(folder, given)


def _run_natively(folder: Path, given: argparse.Namespace, *, alone: bool) -> None:
    """Run a plan by edgeplan-run; what that refuses, it has told, and its exit code is raised."""
    words, of_memory = words_for(str(folder), str(given.repeat)), is_of_memory(str(folder))
    if given.budgets:
        from edgeplan.chapters.memory.budget import budget_sizes  # noqa: PLC0415  each kind loads its own

        if not of_memory:
            raise ParamsError(
                "a plan of a cold start has no budget",
                where="--budgets",
                next_step="plan with edgeplan plan memory, or leave it out",
            )
        sizes = budget_sizes(tuple(filter(None, given.budgets.split(","))))
        words.append("--budgets=" + ",".join(f"{size}B" for size in sizes))
    if given.device and not of_memory:
        from edgeplan.runs import cores_of_device  # noqa: PLC0415  likewise

        words.append("--processors=" + ",".join(map(str, cores_of_device(read_folder(folder), given.device))))
    if given.given is not None or given.output is not None or given.check:
        _run_with_files(folder, given, words, of_memory=of_memory)
    elif alone:
        become(words)
    elif code := _ran(words):
        sys.exit(code)


def _run_with_files(folder: Path, given: argparse.Namespace, words: list[str], *, of_memory: bool) -> None:
    """The same with tensors of the user's files, or compared with ONNX Runtime's."""
    from edgeplan import runs  # noqa: PLC0415  numpy and what it computes with
    from edgeplan.engines.onnxruntime.reference import model_apart, reference_apart  # noqa: PLC0415  likewise
    from edgeplan.measurement.process.inputs import random_inputs_of  # noqa: PLC0415  likewise
    from edgeplan.support.tensors import read_arrays, read_inputs, write_arrays, write_outputs  # noqa: PLC0415  likewise

    plan = read_folder(folder)
    inputs, outputs = plan.head.inputs, plan.head.outputs
    values = read_inputs(given.given, inputs) if given.given else random_inputs_of(inputs)
    odd = runs.named_not_finite(values)
    source = model_apart(folder, given.model) if given.check else None
    with tempfile.TemporaryDirectory(prefix="edgeplan-run-") as work:
        words += [word for name, file in write_arrays(Path(work), values).items() for word in ("-i", f"{name}={file}")]
        last, first = Path(work) / "last", Path(work) / ("last" if of_memory else "first")
        words += ["-o", str(last), *([] if of_memory else ["--first", str(first)])]
        code = _ran(words)
        if code not in (0, InfeasibleError.exit_code) or not any(last.iterdir()):
            sys.exit(code)
        found = [read_arrays(folder, outputs) for folder in (first, last)]
    if given.output is not None:
        write_outputs(given.output, found[-1])
        say(f"outputs: {', '.join(found[-1])} in {given.output}")
    if source is not None:
        difference, tolerance = reference_apart(source, values, found)
        held = runs.Run(plan, difference=difference, tolerance=tolerance, not_finite=odd)
        say(held.compared)
        held.require_checked()
    if code:
        sys.exit(code)


def _ran(words: Sequence[str]) -> int:
    """Run edgeplan-run and print what it prints; return its exit code."""
    require_built()
    ended = subprocesses.run(subprocesses.program_command(PROGRAM, *words))
    for text, err in ((ended.stdout, False), (ended.stderr, True)):
        if text:
            say(text.decode(errors="replace").rstrip("\n"), err=err)
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode  # as shells tell of signals


def _run_here(folder: Path, given: argparse.Namespace) -> None:
    """Run the plan of a folder in this process, or cold starts in processes of their own."""
    plan = read_folder(folder)
    from edgeplan.runs import run as run_plan  # noqa: PLC0415  likewise
    from edgeplan.support.tensors import write_outputs  # noqa: PLC0415  likewise

    found = run_plan(
        plan, given.given,
        repeat=given.repeat, budgets=tuple(filter(None, given.budgets.split(","))), device=given.device,
        check=given.check, model=given.model, cold=given.cold, evicted=given.evicted,
    )  # fmt: skip
    lines = {COLD_START: _cold_lines, GPU_START: _gpu_lines}.get(plan.kind, _pair_lines)
    for line in lines(found):
        say(line)
    if given.output is not None:
        write_outputs(given.output, found.outputs)
        say(f"outputs: {', '.join(found.outputs)} in {given.output}")
    if found.difference is not None:
        say(found.compared)
        found.require_checked()


def _pair_lines(found: Run) -> list[str]:
    from edgeplan.cli.run_pair import engine_lines, run_lines  # noqa: PLC0415  each kind loads its own

    return [*engine_lines(found), *_times("warm", found.warm_ms)] if found.plan.kind == ENGINE else run_lines(found)


def _gpu_lines(found: Run) -> list[str]:
    from edgeplan.runtime.gpu_program import GpuProgram  # noqa: PLC0415  each kind loads its own

    program = found.plan.program_of(GpuProgram)
    lines = [f"{program.model}: {len(program.steps)} steps on {found.plan.made_for.driver}"]
    if found.stages_ms:
        lines.append("milliseconds of all threads: " + ", ".join(f"{stage} {ms:.2f}" for stage, ms in found.stages_ms.items()))
    return [*lines, *_times("cold", found.cold_ms), *_times("warm", found.warm_ms)]


def _cold_lines(found: Run) -> list[str]:
    program = found.plan.head
    of, cache = f"{program.step_count} steps, layout {program.layout}, {program.threads} threads", program.cache_bytes / _MB
    lines = [f"{program.model}: {of}, weight cache {cache:.1f} MB", *_times("cold", found.cold_ms)]
    if found.stages_ms:
        lines.append("core-milliseconds: " + ", ".join(f"{stage} {ms:.2f}" for stage, ms in found.stages_ms.items()))
    later = [ms for k, ms in enumerate(found.warm_ms, start=2) if found.handed_over and k >= found.handed_over]
    if later:
        lines.append(f"the later plan answers from inference {found.handed_over} on")
        lines += _times("later plan", later)
    elif found.stayed_because:
        lines.append(f"the first plan answers all inferences: {escaped(found.stayed_because)}")
    return [*lines, *_times("warm", found.warm_ms)]


def _times(what: str, times_ms: Sequence[float]) -> list[str]:
    if not times_ms:
        return []
    middle = f", median {milliseconds(median(times_ms))} of {len(times_ms)}" if len(times_ms) > 1 else ""
    return [f"{what}: {milliseconds(min(times_ms))}{middle}"]
