"""Compares the ways to serve a model on this machine: `edgeplan.compare`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from edgeplan.comparing.bench import Bench
from edgeplan.comparing.result import Comparison, Held, LeftOut, Row, Verdict, read
from edgeplan.comparing.turns import Ran, Turns
from edgeplan.comparing.ways import REFERENCE, Source, Way, engines, processors_of, ways
from edgeplan.devices.pairs import load_pair
from edgeplan.engines.registry import SETTINGS
from edgeplan.errors import EdgeplanError, ParamsError, require_known
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.prepare import Preparation, Shapes, prepare_file
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import DISTURBED, Others
from edgeplan.measurement.references import References
from edgeplan.measurement.settings import TimeBudget
from edgeplan.support.files import FilePath
from edgeplan.support.machine import fingerprint
from edgeplan.support.numerics import around_median
from edgeplan.support.scratch import ScratchFolder

#: Looks at what was found so far, after so many rounds; each claims by an interval that is wrong once in 200 times.
_ROUNDS, _LEVEL = (10, 15, 20), 0.995
_BLOCKS, _SECONDS = 6, 0.08  # of each model in a round, and of each block at least
_PATIENCE_SECONDS = 10.0  # with a round, whatever the budget
#: Within this of each other two models are as fast; less than half of it is no difference that a verdict is given for.
_ALIKE = 0.04
_STARTS_DIFFER = 0.05  # figures of other processes at another time, on a quiet machine


def in_turns(turns: Turns, way: Way, ours: Bench, theirs: Bench, processors: tuple[int, ...], budget: TimeBudget) -> Held:
    """Start a session of each model in each round, and have them infer in turns: whatever load there is meets both.

    Args:
        turns: what starts sessions.
        way: that both are served by, by one session.
        ours: the model.
        theirs: the other one.
        processors: of each session.
        budget: seconds for all rounds; the first one is in any case.

    Raises:
        EdgeplanError: one of them cannot be served.
    """
    own, other, ratios, runs, seconds = list[float](), list[float](), list[float](), 0, 0.0
    while not ratios or (len(ratios) < _ROUNDS[-1] and seconds < budget.left_s):
        began = time.monotonic()
        pair = [[bench.server(way.engine).session(way.threads, processors, runs)] for bench in (ours, theirs)]
        step = 1 if len(ratios) % 2 == 0 else -1  # who is started first
        ran = turns.run(*pair[::step], seconds=_SECONDS, patience=max(budget.left_s, _PATIENCE_SECONDS), blocks=_BLOCKS)
        (mine,), (yours,) = ran[::step]
        own.append(mine.later_ms)
        other.append(yours.later_ms)
        ratios.append(median(a / b for a, b in zip(_by_block(mine), _by_block(yours), strict=True)))
        runs = int(_BLOCKS * _SECONDS * 1e3 / max(own[-1], other[-1]))
        seconds = time.monotonic() - began
        if len(ratios) in _ROUNDS and judged(ratios)[2] != "not told apart":
            break
    low, high, verdict = judged(ratios)
    few = f"a verdict takes {_ROUNDS[0]} rounds: give more seconds" if len(ratios) < _ROUNDS[0] else ""
    return Held(way.name, median(own), median(other), median(ratios), low, high, len(ratios), verdict, few)


def _by_block(ran: Ran) -> list[float]:
    return [median(block) for block in ran.blocks]


def judged(ratios: Sequence[float]) -> tuple[float, float, Verdict]:
    """Return the ends of the interval of the median of all rounds' ratios, and what follows."""
    low, high, sure = around_median(ratios, _LEVEL)
    return low, high, _verdict(median(ratios), low, high, _ALIKE) if sure else "not known"


def _verdict(found: float, low: float, high: float, alike: float) -> Verdict:
    if low > 1 and found > 1 + alike / 2:
        return "slower"
    if high < 1 and found < 1 - alike / 2:
        return "faster"
    return "the same" if 1 - alike < low and high < 1 + alike else "not told apart"


def with_kept(now: Comparison, kept: Comparison) -> tuple[Held, ...]:
    """Hold a comparison against an earlier one, way by way; where the machine was another, or busy, there is no verdict."""
    before, busy = {row.name: row for row in kept.rows}, max(now.others, kept.others)
    reason = "" if (now.machine, now.processors) == (kept.machine, kept.processors) else "it is of another machine"
    if not reason and busy > DISTURBED:
        reason = f"other work had {100 * busy:.0f} % of the time: hold it against the file of the other model"
    clock = now.compute_us / kept.compute_us
    return tuple(_with_row(row, before[row.name], clock, reason) for row in now.rows if row.name in before)


def _with_row(row: Row, other: Row, clock: float, reason: str) -> Held:
    """Hold a way against the same one of another time; the ends allow for a clock that was another, and for other processes."""
    (low, high, sure), (least, most, known) = around_median(row.latencies_ms), around_median(other.latencies_ms)
    low, high = low / most / max(clock, 1) / (1 + _STARTS_DIFFER), high / least / min(clock, 1) * (1 + _STARTS_DIFFER)
    reason = reason or ("" if sure and known else "one of them had too few turns: give more seconds")
    ratio, rounds = row.latency_ms / other.latency_ms, min(len(row.latencies_ms), len(other.latencies_ms))
    verdict: Verdict = "not known" if reason else _verdict(ratio, low, high, 2 * _STARTS_DIFFER)
    return Held(row.name, row.latency_ms, other.latency_ms, ratio, low, high, rounds, verdict, reason)


_LOOKS = 8  # at the reference, before and after


def compare(
    model: FilePath,
    *,
    device: FilePath = "cpu-onednn",
    budget_seconds: float = 60.0,
    engine: Sequence[str] = (),
    against: FilePath = "",
    pair: FilePath = "",
    at_once: int = 16,
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
) -> Comparison:
    """Serve a model in all ways that there are on this machine, in turns, and tell what each takes.

    An interrupt from the keyboard ends it; what is known by then is returned.

    Args:
        model: ONNX file.
        device: name of a device file, or a path to one: its processors are used, and plans are made for it.
        budget_seconds: that all of it may take.
        engine: those to compare; without any, all that are known; with a model to hold it against, ONNX Runtime.
        pair: name of a pair file, or a path to one: its second processor serves alone, beside the first, and in a split.
        at_once: requests that come at once, for one of the goals.
        against: ONNX file of another model, or a comparison that was kept as .json.
        preparation: as for `predict`; of the other model, too.
        shape: likewise.
        set: likewise.
        batch: likewise.

    Raises:
        ModelError: a model cannot be read, or what it leaves open is not given.
        ParamsError: there is no such engine, or no time is given.
        FormatError: what was kept is no comparison.
        BusyError: another process is measuring on this machine.
    """
    began, budget, wanted = time.monotonic(), TimeBudget.of(budget_seconds), Preparation.given(preparation, shape, set, batch)
    if not budget_seconds >= 1:
        raise ParamsError(f"nothing runs in {budget_seconds:g} s", where="--budget-seconds", next_step="give 10 or more")
    require_known("engine", engine, [*engines(), *SETTINGS], "--engine")
    kept = read(Path(against)) if Path(against).suffix == ".json" else None
    other = Path(against) if str(against) and kept is None else None
    names, processors = tuple(engine) or ((REFERENCE,) if other else engines()), processors_of(device)
    two = load_pair(Path(pair) if isinstance(pair, os.PathLike) else pair) if pair else None
    held, left_out, interrupted = list[Held](), list[LeftOut](), False
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(ScratchFolder("compare")))
        stack.enter_context(machine_lock(budget_seconds))
        turns, benches = stack.enter_context(Turns()), list[Bench]()
        for path in filter(None, (Path(model), other)):
            source = prepare_file(path, wanted, scratch / f"{len(benches)}.onnx")
            benches.append(
                Bench(turns, Source(source, scratch / f"of-{len(benches)}"), device, processors, budget, at_once, two)
            )
        watch, references = Others(processors), References()
        clock = references.time(_LOOKS).compute_us
        try:
            if other is None:
                benches[0].measure(ways(names, len(processors), two))
            for number, name in enumerate(names if other else ()):
                way = Way(name, len(processors), 1)
                try:
                    part = budget.part(1 / (len(names) - number))
                    held.append(in_turns(turns, way, benches[0], benches[1], processors, part))
                except EdgeplanError as error:
                    left_out.append(LeftOut(way.title, error.what))
        except KeyboardInterrupt:
            interrupted = True
        found = Comparison(
            model=Path(model).name, sha256=model_sha256(Path(model)), machine=fingerprint(), processors=processors,
            seconds=time.monotonic() - began, others=watch.share(), compute_us=min(clock, references.time(_LOOKS).compute_us),
            at_once=at_once, rows=benches[0].rows,
            left_out=(*benches[0].left_out, *left_out), held=tuple(held), interrupted=interrupted,
        )  # fmt: skip
    return found if kept is None else replace(found, held=with_kept(found, kept))
