"""`edgeplan export`: a published model as a file, drawn and written piece by piece, whole or not at all."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from shipped_params import PARAMS_FILE
from typer.testing import CliRunner

from edgeplan.cli import app
from edgeplan.errors import EdgeplanError, ModelError, StoreError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx import write
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import SeededModel, seeded
from edgeplan.workloads.registry import WORKLOADS, named_models, seeded_workload
from edgeplan.zoo import prior_models
from edgeplan.zoo.unseen import UNSEEN

ROOT = Path(__file__).parents[2]


def test_an_exported_model_is_the_zoos(tmp_path: Path) -> None:
    path = tmp_path / "new/folder/s.onnx"
    done = CliRunner().invoke(app, ["export", "squeezenet1_1", "-o", str(path)])
    assert (done.exit_code, done.output) == (0, f"{path}: {path.stat().st_size / 1e6:.1f} MB\n")
    read, built = load_onnx(path), prior_models()["squeezenet1_1"]()
    assert [(op.op_type, op.attributes) for op in read.operators] == [(op.op_type, op.attributes) for op in built.operators]


@pytest.mark.parametrize("arguments", [["export"], ["export", "--list"]])
def test_the_models_are_listed(arguments: list[str]) -> None:
    names = CliRunner().invoke(app, arguments).output.split()
    assert set(names) >= {"resnet50", "squeezenet1_1", "resnet50-cold-start", "crnn_lite", "resnet152", "vit_b_16", "gpt2"}
    assert names == sorted(names)


def _named(document: Any, key: str = "") -> Iterator[str]:
    """Models that a part of params.yaml names: lists whose key ends in `models`."""
    if isinstance(document, dict):
        for inner, value in document.items():
            yield from _named(value, str(inner))
    elif isinstance(document, list) and key.endswith("models"):
        yield from document


def test_whatever_a_table_names_can_be_exported() -> None:
    params = yaml.safe_load(PARAMS_FILE.read_text())
    named = set(_named(params)) | set(UNSEEN) | set(WORKLOADS)
    assert len(named) > 50
    assert named <= set(named_models())


@pytest.mark.parametrize(
    ("arguments", "error", "what"),
    [
        (["resnet5"], ModelError, "there is no model 'resnet5' to export"),
        (["squeezenet", "-o", "file/s.onnx"], StoreError, "cannot write: .*file is a file, not a folder"),
        (["squeezenet", "-o", "."], StoreError, "cannot write: this is a folder"),
    ],
)
def test_what_cannot_be_exported_is_told(
    arguments: list[str], error: type[EdgeplanError], what: str, tmp_path: Path, edgeplan: Callable[..., Any]
) -> None:
    (tmp_path / "file").touch()
    done = edgeplan("export", *arguments, folder=tmp_path)
    assert done.code == error.exit_code
    assert re.match(f"error: {what}", done.err), done.err
    assert "next:" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def _small() -> SeededModel:
    b = GraphBuilder("net", (1, 3, 8, 8))
    return seeded(b.build(b.fc(b.flatten(b.gap(b.conv_bn(b.input, 40, 3))), 5)), 7)


@pytest.mark.parametrize("name", ["lstm", "squeezenet", "net"])
def test_the_file_holds_the_bytes_that_protobuf_writes(tmp_path: Path, name: str) -> None:
    def model() -> SeededModel:
        return _small() if name == "net" else seeded_workload(WORKLOADS[name](), 7)

    path = model().save(tmp_path / "m.onnx")
    assert path.read_bytes() == model().whole().SerializeToString()
    assert SeededModel(model().whole()).save(path).read_bytes() == model().whole().SerializeToString()


def test_chunks_are_what_is_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = np.random.default_rng(3).random(101, dtype=np.float32)
    monkeypatch.setattr(write, "_CHUNK_ELEMENTS", 10)
    chunks = [*write.uniform(np.random.default_rng(3), 101)]
    assert [len(chunk) for chunk in chunks] == [10] * 10 + [1]
    np.testing.assert_array_equal(np.concatenate(chunks), at_once)
    assert [len(chunk) for chunk in write.uniform(np.random.default_rng(3), 0)] == [0]


def test_weights_beyond_the_limit_of_protobuf_lie_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = _small().whole()
    monkeypatch.setattr(write, "EXTERNAL_DATA_THRESHOLD_BYTES", 1000)
    path = tmp_path / "m.onnx"
    for _ in range(2):  # one that is there is replaced, not appended to
        _small().save(path)
        assert {file.name for file in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}
        found = onnx.load(path)
        for tensor, other in zip(found.graph.initializer, wanted.graph.initializer, strict=True):
            np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), onnx.numpy_helper.to_array(other))
    onnx.checker.check_model(str(path))
    assert path.stat().st_size < 3000


def test_a_large_model_is_written_in_little_memory(tmp_path: Path) -> None:
    """vgg19 takes 575 MB as a file."""
    program = (
        "import resource, sys; from pathlib import Path; from edgeplan.workloads.registry import named_models;"
        "model = named_models()['vgg19'](); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "size = model.save(Path(sys.argv[1]), sync=False).stat().st_size;"
        "print(size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)"
    )
    path = tmp_path / "m.onnx"
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
    path.unlink()
    size, grown = map(int, done.stdout.split())
    assert size > 570e6
    assert grown < 50e6


@pytest.mark.parametrize("before", [b"the file that was there", None])
def test_where_there_is_no_room_the_file_that_was_there_is_kept(tmp_path: Path, before: bytes | None) -> None:
    """The size of files is limited, which ends writing half-way, as a full disk does."""
    path = tmp_path / "m.onnx"
    if before is not None:
        path.write_bytes(before)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    command = [sys.executable, "-m", "edgeplan", "export", "squeezenet", "-o", str(path)]
    done = subprocess.run(command, preexec_fn=limited, capture_output=True, text=True, check=False)
    assert done.returncode == StoreError.exit_code, done.stderr
    assert "cannot write: File too large" in done.stderr
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == ([(path.name, before)] if before else [])
