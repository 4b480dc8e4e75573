"""Libraries that a process has loaded when it ends, to hold what runs plans to the few that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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


def loaded_by(code: str, *words: str | Path, names: Sequence[str] = HEAVY) -> list[str]:
    """Which libraries of some names a process of Python code has loaded at its end.

    Args:
        code: `COMMAND`, `OPENED` or other code, which reads `sys.argv`.
        words: its arguments.
        names: of libraries.
    """
    command = [sys.executable, "-c", _TOLD + code, *map(str, words), ",".join(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("loaded:")).split()[1:]
