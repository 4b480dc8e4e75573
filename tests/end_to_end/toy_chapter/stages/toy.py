"""Stage `toy`: sorting timed, each size once for a key, then planned."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
from edgeplan.chapters.toy.planners.longest_first import longest_first
from edgeplan.chapters.toy.settings import ToySettings

from edgeplan.measurement.process.journal import Journal
from edgeplan.reporting.page import ChapterPage, write_chapter
from edgeplan.reporting.table import write_table
from edgeplan.support.files import write_json

_PROTOCOL = "toy/1"


def measure(*, seed: int, toy: ToySettings, device: str, rows: Path, table: Path, metrics: Path, part: Path) -> None:
    """Measure what no row holds, plan, and write all of it."""
    journal = Journal(rows / "rows.jsonl")
    known = {row["key"]: row["ms"] for row in journal.records()}
    for size in toy.sizes:
        key = _key(device, size, seed)
        if key not in known:
            values = np.random.default_rng(seed).random(size)
            start = perf_counter()
            np.sort(values)
            known[key] = 1e3 * (perf_counter() - start)
            journal.append({"key": key, "ms": known[key]})
    times_ms = np.array([known[_key(device, size, seed)] for size in toy.sizes])
    frame = pd.DataFrame({"size": toy.sizes, "sort_ms": times_ms, "lane": longest_first(times_ms, toy.lanes)})
    write_table(frame, table.with_suffix(""), "Sorting", "What sorting takes, and in which lane.", "now")
    write_json(metrics, {"toy.sort_ms": float(times_ms.sum())})
    shown = table("sorting", "Sorting", "What sorting takes (ms), and in which lane.", frame)
    write_chapter(ChapterPage("toy", f"Sorting, on {device}", "How long sorting takes.", "now", tables=(shown,)), part)


def _key(device: str, size: int, seed: int) -> str:
    return hashlib.sha256(json.dumps([_PROTOCOL, device, size, seed]).encode()).hexdigest()[:12]
