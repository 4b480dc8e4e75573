"""`edgeplan export`: a model of the zoo as a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edgeplan.cli import app
from edgeplan.errors import EdgeplanError, ModelError, StoreError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.zoo import prior_models


def test_an_exported_model_is_the_zoos(tmp_path: Path) -> None:
    path = tmp_path / "s.onnx"
    done = CliRunner().invoke(app, ["export", "squeezenet1_1", "-o", str(path)])
    assert (done.exit_code, done.output) == (0, f"{path}: {path.stat().st_size / 1e6:.1f} MB\n")
    read, built = load_onnx(path), prior_models()["squeezenet1_1"]()
    assert [(op.op_type, op.attributes) for op in read.operators] == [(op.op_type, op.attributes) for op in built.operators]


def test_without_a_name_the_models_are_listed() -> None:
    names = CliRunner().invoke(app, ["export"]).output.split()
    assert set(names) >= {"resnet50", "squeezenet1_1", "resnet50-cold-start", "crnn_lite"}
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("arguments", "error", "what"),
    [
        (["resnet5"], ModelError, "the zoo has no model 'resnet5'"),
        (["squeezenet", "-o", "nowhere/s.onnx"], StoreError, "cannot write: No such file"),
        (["squeezenet", "-o", "."], StoreError, "cannot write: this is a folder"),
    ],
)
def test_what_cannot_be_exported_is_told(
    arguments: list[str], error: type[EdgeplanError], what: str, tmp_path: Path, edgeplan: Callable[..., Any]
) -> None:
    done = edgeplan("export", *arguments, folder=tmp_path)
    assert done.code == error.exit_code
    assert done.err.startswith(f"error: {what}")
    assert "next:" in done.err
    assert list(tmp_path.iterdir()) == []
