"""What tests make of plan folders, do to them, and expect of what starts from them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgeplan.engines.base import random_inputs
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.planning.document import Plan, plan_of
from edgeplan.runtime import loops
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.native_session import NativeSession, open_session
from edgeplan.runtime.program_file import PROGRAM_BIN, Section, rows_of


def body_of(folder: Path) -> dict[str, Any]:
    """What `plan.json` says."""
    found: dict[str, Any] = json.loads((folder / "plan.json").read_bytes())["body"]
    return found


def changed_plan(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write `plan.json` with something changed, as if it had been planned so."""
    path = folder / "plan.json"
    document = json.loads(path.read_bytes())
    change(document["body"])
    body = json.dumps(document["body"], separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{{"format_version":{document["format_version"]},"sha256":"{digest}","body":{body}}}\n')


def cold_plan(folder: Path) -> Plan:
    """The plan document that a plan folder of a cold start was written from."""
    found = read_folder(folder)
    made = found.made_for
    target = {"model": Path(made.model).name, "library": "onednn", "library_version": made.library, "isa": made.isa}
    target |= {"model_sha256": made.model_sha256, "machine": made.machine, "threads": made.threads}
    return plan_of(json.dumps(found.scheduled(dict) | found.predicted(dict) | target), str(folder))


class RecordHead(NamedTuple):
    """The head of a record of a program (native/src/loops/loops.h)."""

    source: int
    segment: int
    weight_bytes: int
    place: int
    groups: int
    slots: int
    calls: int

    @property
    def cached(self) -> bool:
        """Tell whether weights come from the cache."""
        return self.source in (loops.COPIED, loops.MAPPED)


def records_in(folder: Path) -> tuple[list[RecordHead], list[RecordHead | None]]:
    """The heads of the steps of a cold start, and of those of later runs; None where these do the same."""
    path = folder / PROGRAM_BIN
    records, starts, later = rows_of(path, Section.RECORDS, Section.RECORD_STARTS, Section.LATER)
    heads = [RecordHead(*records[at : at + loops.HEAD].tolist()) for at in starts]
    return heads[: len(later)], [heads[number] if number >= 0 else None for number in later]


def start_right(folder: Path, graph: Graph, wanted: Mapping[str, np.ndarray]) -> bool:
    """A cold start that must give the right outputs; tells whether its weights were checked."""
    with open_session(folder) as session:
        assert_close(session.run(random_inputs(graph)), wanted)
        return session.fact("checked") == 1


def small_net() -> Graph:
    """Depthwise and pointwise convolutions with residual sums, ended by a classifier."""
    b, width = GraphBuilder("net", (1, 3, 20, 20)), 24
    x = b.conv_bn(b.input, width, 3, 2)
    for _ in range(3):
        y = b.conv_bn(x, width, 3, groups=width, act="relu6")
        x = b.relu(b.add(b.conv_bn(y, width, 1, act=""), x))
    return b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10)))


def wait_while(condition: Callable[[], object]) -> None:
    """Wait as long as a condition holds, but no longer than a minute."""
    deadline = time.monotonic() + 60
    while condition() and time.monotonic() < deadline:
        time.sleep(1e-3)


def assert_close(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    """Outputs within 1e-4 of the largest magnitude."""
    for name, value in wanted.items():
        assert np.abs(found[name] - value).max() <= 1e-4 * np.abs(value).max()


class Span(NamedTuple):
    """A stage of a step on a core, -1 the main one, ms."""

    core: int
    layer: int
    stage: str
    start_ms: float
    end_ms: float


def spans_of(session: NativeSession) -> list[Span]:
    """The timeline of a cold start, ms of the monotonic clock."""
    return [Span(core - 1, step, stage, begin / 1e6, end / 1e6) for core, step, stage, begin, end in session.trace()]


#: Libraries that no process that runs a plan loads.
HEAVY = ("onnx", "onnxruntime", "pydantic", "pandas", "scipy", "yaml", "matplotlib", "pyarrow")
COMMAND = "from edgeplan.cli import main\nsys.argv[0] = 'edgeplan'\nmain()"
OPENED = """
import edgeplan, numpy as np
with edgeplan.open_plan(sys.argv[1]) as session:
    session.run({border.name: np.zeros(border.shape, border.dtype) for border in session.inputs})
"""
_TOLD = """
import atexit, sys
def tell(names):
    maps = open("/proc/self/maps").read()
    print("loaded:", *sorted(name for name in names if name in sys.modules or f"/{name}/" in maps))
atexit.register(tell, sys.argv.pop().split(","))
"""


def loaded_by(code: str, *words: str | Path) -> list[str]:
    """Which of the heavy libraries a process of Python code, which reads `sys.argv`, has loaded when it ends."""
    command = [sys.executable, "-c", _TOLD + code, *map(str, words), ",".join(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("loaded:")).split()[1:]
