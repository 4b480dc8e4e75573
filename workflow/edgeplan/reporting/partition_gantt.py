"""Draws a plan of a pair: one line for each processor, as text for terminals and as SVG."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgeplan.support.files import write_atomically

if TYPE_CHECKING:
    from edgeplan.planning.partition.plan import PartitionPlan, PlannedStep

_COLUMNS = 96
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_IDLE = "."
_NAMED = 0.03  # share of the makespan from which a bar has room for a name
_LONGEST_NAME = 24
_SPLIT, _WHOLE = 2, 0  # of the palette


class TimedStep(msgspec.Struct, frozen=True):
    """A timed step is what a picture shows of a `PlannedStep`, which has more fields, or of a step that ran."""

    name: str
    on: str
    start_ms: float
    cpu_end_ms: float
    gpu_end_ms: float


class TimedPlan(msgspec.Struct, frozen=True):
    """A timed plan is what a picture shows of a `PartitionPlan`, which has more fields, or of a run."""

    model: str
    processors: tuple[str, str]
    steps: tuple[TimedStep, ...]
    makespan_ms: float


def letter(position: int, step: PlannedStep | TimedStep) -> str:
    """Return the letter of a step in a text: a small one if whole, a capital if split."""
    found = _LETTERS[position % len(_LETTERS)]
    return found.upper() if step.on == "split" else found


def parts(plan: PartitionPlan | TimedPlan, processor: int) -> Iterator[tuple[int, PlannedStep | TimedStep, float, float]]:
    """Yield position, step, start and end (ms) of all that a processor (0 the CPU) is busy with."""
    steps: Sequence[PlannedStep | TimedStep] = plan.steps
    for k, step in enumerate(steps):
        end = (step.cpu_end_ms, step.gpu_end_ms)[processor]
        if end > step.start_ms:
            yield k, step, step.start_ms, end


def text_lines(plan: PartitionPlan | TimedPlan, columns: int = _COLUMNS) -> list[str]:
    """Draw both processors over time as text; each column shows the step that takes the most of it."""
    total = plan.makespan_ms
    labels = [name[:_LONGEST_NAME] for name in plan.processors]
    width = max(map(len, labels))
    lines = []
    for processor, label in enumerate(labels):
        shown, most = [_IDLE] * columns, [0.0] * columns
        for k, step, start, end in parts(plan, processor):
            first, last = start / total * columns, end / total * columns
            for column in range(int(first), min(int(last) + 1, columns)):
                covered = min(last, column + 1) - max(first, column)
                if covered > most[column]:
                    most[column], shown[column] = covered, letter(k, step)
        lines.append(f"{label:<{width}} |{''.join(shown)}|")
    lines.append(f"{'':<{width}}  0{f'{total:.3f} ms':>{columns - 1}}")
    return lines


def write_svg(plan: PartitionPlan, path: Path) -> None:
    """Draw a plan, atomically; the same plan gives the same bytes."""
    from edgeplan.reporting.drawing import PALETTE, canvas, name_axes  # noqa: PLC0415  only pictures need Matplotlib
    from edgeplan.reporting.svg import svg  # noqa: PLC0415  likewise

    figure, (axis,) = canvas(12.0, 2.6)
    for processor in (0, 1):
        for k, step, start, end in parts(plan, processor):
            colour = PALETTE[_SPLIT if step.on == "split" else _WHOLE]
            axis.barh(processor, end - start, left=start, height=0.76, color=colour, edgecolor="white", linewidth=0.5)
            if end - start > _NAMED * plan.makespan_ms:
                name = step.name if len(step.name) <= _LONGEST_NAME else letter(k, step)
                axis.text(
                    (start + end) / 2, processor, _plain(name), ha="center", va="center", rotation=90, fontsize=7, color="white"
                )
    axis.set_yticks((0, 1), [_plain(name[:_LONGEST_NAME]) for name in plan.processors])
    axis.invert_yaxis()
    axis.set_xlim(0, plan.makespan_ms * 1.01 or 1.0)
    axis.grid(visible=False, axis="y")
    name_axes(axis, "ms", "", _plain(f"{plan.model[:80]}: {plan.makespan_ms:.3f} ms predicted"))
    for label, place in (("whole", _WHOLE), ("split", _SPLIT)):
        axis.plot([], [], "s", color=PALETTE[place], label=label)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # names are kept as text: the viewer has other fonts
        document = svg(figure)
    write_atomically(path, partial(Path.write_bytes, data=document))


def _plain(name: str) -> str:
    """Return a name without what XML cannot hold and without what starts a formula."""
    return "".join(c if c.isprintable() else "?" for c in name).replace("$", r"\$")
