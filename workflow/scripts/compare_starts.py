"""Cold starts of plan folders of one model, interleaved: `python workflow/scripts/compare_starts.py FIRST SECOND --pairs 30`.

Prints the median of each folder over the starts that lost least to other work, and the ratio of the second to the first with
its 95 % interval over resampled pairs. Fresh processes, the page cache warm, all threads of the plans.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process.child import Forks
from edgeplan.profiling.check import start_job
from edgeplan.runtime.folder import COLD_START, read_folder
from edgeplan.runtime.plan_folder import cold_plan

_SHARE = 0.5  # of the pairs, those that lost least
_RESAMPLED = 2000
_LOCK_SECONDS = 600.0


def main() -> None:
    """Start both versions in turns, compare their times, and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs=2)
    parser.add_argument("--pairs", type=int, default=30)
    arguments = parser.parse_args()
    jobs = []
    for folder in arguments.folders:
        plan = cold_plan(read_folder(folder, COLD_START))
        jobs.append(start_job(plan, folder, tuple(sorted(os.sched_getaffinity(0)))[: plan.threads]))
    times, lost = np.empty((arguments.pairs, 2)), np.empty((arguments.pairs, 2))
    with machine_lock(_LOCK_SECONDS), Forks() as forks:
        for pair in range(arguments.pairs):
            for k in (0, 1) if pair % 2 else (1, 0):
                run = forks.run_cold(jobs[k])
                times[pair, k] = run.cold_ms if run.cold_ms is not None else np.nan
                lost[pair, k] = run.waited_ms + run.stolen_ms
    least = times[np.argsort(lost.sum(axis=1), kind="stable")[: max(int(_SHARE * len(times)), 1)]]
    medians = np.median(least, axis=0)
    picked = np.random.default_rng(0).integers(0, len(least), (_RESAMPLED, len(least)))
    ratios = np.median(least[picked, 1], axis=1) / np.median(least[picked, 0], axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    for folder, median, every in zip(arguments.folders, medians, np.median(times, axis=0), strict=True):
        print(f"{folder}: {median:.2f} ms, {every:.2f} over all starts")  # noqa: T201  what the script is for
    print(f"ratio {medians[1] / medians[0]:.3f} ({low:.3f} to {high:.3f}), {len(least)} of {len(times)} pairs")  # noqa: T201


if __name__ == "__main__":
    main()
