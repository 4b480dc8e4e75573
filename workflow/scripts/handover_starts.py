"""First and later inferences of plans that hand over to a second processor, beside the host's cold start alone.

    python workflow/scripts/handover_starts.py --pair PAIR MODEL.onnx... [--repeat N] [--runs N] [--json results/handover.json]

Each model is planned for both goals on the pair. Fresh processes then start the plan and a copy without its later half in
turns, and run it back to back. `joint.first_on_pair` is the geometric mean over the models of the ratio of the medians of the
first inference, from the start of the interpreter to its outputs; `joint.steady_on_pair` the same of the last ten inferences.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgeplan.front import write_front_plan
from edgeplan.runtime.folder import LATER_NAME
from edgeplan.support.files import write_json
from edgeplan.support.subprocesses import program_command, run
from edgeplan.terminal import say

_LAST = 10  # inferences that tell the steady state
_MOST_SECONDS = 60.0
#: A process that runs a plan until it has handed over or stays, and says when its first outputs were there.
_STARTED = """
import time
began = time.perf_counter()
import json, sys
from edgeplan.opening import open_plan
from edgeplan.measurement.process.inputs import random_inputs_of
plan, runs, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
session = open_plan(plan)
inputs = random_inputs_of(session.inputs)
session.run(inputs)
first = time.perf_counter()
times, until, done = [], first + seconds, not hasattr(session, "handed_over")
while (len(times) < runs or not done) and time.perf_counter() < until:
    again = time.perf_counter()
    session.run(inputs)
    times.append((time.perf_counter() - again) * 1e3)
    if not done and (session.handed_over or session.stayed_because):
        done, runs = True, len(times) + runs
handed, stayed = getattr(session, "handed_over", 0), getattr(session, "stayed_because", "")
print(json.dumps({
    "first_ms": (first - began) * 1e3, "times_ms": times[-runs:], "handed_over": handed, "stayed": stayed,
    "handed_over_s": sum(times[:max(0, handed - 1)]) / 1e3,
}))
session.close()
"""


def main() -> None:
    """Plan all models, start both plans of each, and print how they compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--pair", required=True)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = [compared(model, given.pair, given.repeat, given.runs) for model in given.models]
    figures = {f"joint.{name}_on_pair": geomean([row[name] for row in rows]) for name in ("first", "steady")}
    for row in rows:
        say("{model:<16} first {first:.3f}, steady {steady:.3f}; {told}".format(**row))
    say(", ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    if given.json:
        known = json.loads(given.json.read_text(encoding="utf-8")) if given.json.exists() else {}
        write_json(given.json, {**known, given.pair: {**rounded(figures), "models": [rounded(row) for row in rows]}})


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Round the numbers of a row: ratios to thousandths, times to tenths of a millisecond."""
    ratios = {name: round(value, 3) for name, value in row.items() if isinstance(value, float)}
    times = {name: [round(v, 1) for v in value] for name, value in row.items() if isinstance(value, list)}
    return row | ratios | times


def geomean(values: list[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def compared(model: Path, pair: str, repeat: int, runs: int) -> dict[str, Any]:
    """Plan a model and start both plans in turns: ratios of what hands over to what does not."""
    with tempfile.TemporaryDirectory() as scratch:
        both, alone = Path(scratch) / "both", Path(scratch) / "alone"
        write_front_plan(model, both, goal="both", pair=pair)
        shutil.copytree(both, alone, copy_function=shutil.copy2, ignore=shutil.ignore_patterns(LATER_NAME))
        found: dict[Path, list[dict[str, Any]]] = {both: [], alone: []}
        for _ in range(repeat):
            for plan, starts in found.items():
                starts.append(started(plan, runs))
    first, steady = (
        {plan: statistics.median(value(start) for start in starts) for plan, starts in found.items()}
        for value in (lambda start: start["first_ms"], lambda start: statistics.median(start["times_ms"][-_LAST:]))
    )
    over = [start for start in found[both] if start["handed_over"]]
    seconds = statistics.median(start["handed_over_s"] for start in over) if over else math.nan
    told = f"handed over in {len(over)} of {repeat}" + (f", {seconds:.2f} s after the first" if over else "")
    reasons = {start["stayed"].partition(":")[0] for start in found[both] if start["stayed"]}
    told += "".join(f"; {reason}" for reason in sorted(reasons))
    return {
        "model": model.stem, "first": first[both] / first[alone], "steady": steady[both] / steady[alone],
        "first_ms": [first[both], first[alone]], "steady_ms": [steady[both], steady[alone]], "told": told,
    }  # fmt: skip


def started(plan: Path, runs: int) -> dict[str, Any]:
    """Start a plan in a fresh process; its first outputs are timed from the start of the interpreter."""
    ran = run(program_command(sys.executable, "-c", _STARTED, str(plan), str(runs), str(_MOST_SECONDS)))
    if ran.returncode:
        raise SystemExit(ran.stderr.decode())
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
