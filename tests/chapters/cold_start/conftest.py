"""What the tests of the cold-start chapter share."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tiny_profiled import MORE_PLANS, PLAN_TINY, git, tiny
from typer.testing import CliRunner

from edgeplan.cli.commands import app
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.runtime.dnnl import Dnnl


@pytest.fixture(scope="session")
def planned_tiny(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A workspace in which the small model was profiled and planned, and what the command said; tests add plans to it.

    To profile takes many fresh processes, so all modules share one.
    """
    assert dnnl
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "config/devices").mkdir(parents=True)
    (folder / "config/devices/dev.yaml").write_text(yaml.safe_dump({"format_version": 1, "name": "dev", "engine": "onednn"}))
    save_onnx(tiny(), folder / "tiny.onnx")
    (folder / ".gitignore").write_text("".join(f"/{name}/\n" for name in ("state", "plan", *MORE_PLANS)))
    for arguments in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "a clone")):
        git(folder, *arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("EDGEPLAN_WORKSPACE", "")
        patch.chdir(folder)
        done = CliRunner().invoke(app, PLAN_TINY)
    assert done.exit_code == 0, done.output
    return folder, done.output
