"""The C interface as C sees it: its headers, and the example of the documentation, compiled and run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_programs import compiler
from plan_folders import small_net

from edgeplan import native
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder

_ROOT = Path(__file__).parents[2]
_INCLUDE, _EXAMPLE = _ROOT / "native" / "include", _ROOT / "docs" / "runtime_example.c"
_STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")


def _compile(*arguments: str) -> None:
    command = [*compiler(), "-x", "c", *_STRICT, f"-I{_INCLUDE}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, compiled."""
    made, library = tmp_path_factory.mktemp("c") / "example", Path(native.PATH)
    _compile(str(_EXAMPLE), "-o", str(made), "-x", "none", str(library), f"-Wl,-rpath,{library.parent}")
    return made


@pytest.mark.parametrize("header", sorted(_INCLUDE.iterdir()), ids=lambda path: path.name)
def test_headers_are_c(header: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.c").write_text(f'#include "{header.name}"\nint main(void) {{ return EP_OK; }}\n')
    _compile("-fsyntax-only", str(tmp_path / "alone.c"))


def test_the_example_runs_a_plan(dnnl: Dnnl, planned: Callable[..., Plan], example: Path, tmp_path: Path) -> None:
    graph = small_net()
    model = save_onnx(graph, tmp_path / "net.onnx")
    folder = build_plan_folder(dnnl, model, planned(model, graph, widen_from=3), tmp_path / "plan")
    told = {**os.environ, "EDGEPLAN_ONEDNN": dnnl.info.path}
    done = subprocess.run([str(example), str(folder)], capture_output=True, text=True, check=False, env=told)
    assert done.returncode == 0, done.stderr
    with open_session(folder) as session:
        (wanted,) = session.run({one.name: np.ones(one.shape, one.dtype) for one in session.inputs}).values()
    *outputs, facts = done.stdout.splitlines()
    assert len(outputs) == 2
    for line in outputs:
        name, dtype, *values = line.split()
        assert (name, dtype) == (graph.outputs[0], "float32")
        assert np.allclose([float(value) for value in values], wanted.ravel()[:5], rtol=1e-4)
    assert facts.startswith("threads 2, steps ")


def test_the_example_tells_what_is_wrong(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([str(example), str(tmp_path / "nothing")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no plan folder\n  where: ")
    assert "\n  next:  " in done.stderr
    assert subprocess.run([str(example)], capture_output=True, check=False).returncode == 2
