"""Models as files: what is exported whole or not at all, and what a path may lead to that is no ONNX model."""

from __future__ import annotations

import gzip
import io
import os
import re
import resource
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from model_file_runs import made, node, values
from model_file_runs import write as write_model
from onnx import TensorProto
from shipped_params import PARAMS_FILE
from typer.testing import CliRunner

from edgeplan import plan_cold_start
from edgeplan.cli.commands import app
from edgeplan.errors import EdgeplanError, ModelError, StoreError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx import write
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import SeededModel, seeded
from edgeplan.workloads.registry import WORKLOADS, named_models, seeded_workload
from edgeplan.zoo import prior_models
from edgeplan.zoo.unseen import UNSEEN

MODEL = made([node("Conv", "x w")], {"x": (1, 3, 6, 6)}, {"w": values(5, 3, 3, 3)})
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


def _zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return buffer.getvalue()


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


#: A GraphDef of TensorFlow: nodes with name and operator; and a SavedModel around it: version, graph.
GRAPH = b"".join(_field(1, _field(1, n) + _field(2, op)) for n, op in ((b"input", b"Placeholder"), (b"y", b"Relu")))
SAVED = b"\x08\x01" + _field(2, _field(2, GRAPH))
SAFETENSORS = (64).to_bytes(8, "little") + b'{"w":{"dtype":"F32"}}' + bytes(80)


@pytest.mark.parametrize(
    ("content", "what", "following"),
    [
        (LFS, "Git LFS pointer", "git lfs pull"),
        (b"/annex/objects/SHA256E-s1--00.onnx\n", "git-annex pointer", "git annex get"),
        (b"outs:\n- md5: 00\n  path: model.onnx\n", "pointer of DVC", "dvc pull"),
        (b"\n  <html lang='de'>\xc3\xa4</html>", "an HTML page", "download it again"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML document", "download it again"),
        (b'<?xml version="1.0"?>\n<net name="m" version="11"></net>', "OpenVINO", "ONNX file"),
        (b'{"error": "not found"}', "a JSON document", "name an ONNX model"),
        (b"hello\n", "a text", "name an ONNX model"),
        (b"ir_version: 8\ngraph {\n}\n", "as text", "textproto"),
        (gzip.compress(MODEL.SerializeToString(), mtime=0), "packed by gzip", "gunzip"),
        (tarfile.TarInfo("model.onnx").tobuf() + bytes(1024), "a tar archive", "tar xf"),
        (_zipped("model.onnx"), "a zip archive", "unzip"),
        (_zipped("archive/data.pkl", "archive/version"), "a file of PyTorch", "torch.onnx.export"),
        (_zipped("metadata.json", "config.json", "model.weights.h5"), "a Keras model", "tf2onnx"),
        (b"\x1c\0\0\0TFL3" + bytes(40), "a TFLite model", "--tflite"),
        (b"\x1c\0\0\0ORTM" + bytes(40), "ONNX Runtime's own format", "converted from"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file", "tf2onnx"),
        (b"\x93NUMPY\x01\0" + bytes(40), "an array of NumPy", "name an ONNX model"),
        (SAFETENSORS, "a safetensors file", "torch.onnx.export"),
        (GRAPH, "a TensorFlow graph", "--graphdef"),
        (SAVED, "a TensorFlow graph", "tf2onnx"),
        (b"", "an empty file", "export it again"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_a_file_is_that_is_no_model(tmp_path: Path, content: bytes, what: str, following: str) -> None:
    path = tmp_path / "a model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not an ONNX model but") as caught:
        load_onnx(path)
    assert what in caught.value.what
    assert following in caught.value.next_step
    assert caught.value.where == str(path)


def test_a_truncated_model_is_said_to_be_damaged_at_every_length(tmp_path: Path) -> None:
    whole, path = MODEL.SerializeToString(), tmp_path / "m.onnx"
    for length in range(1, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError) as caught:
            load_onnx(path)
        assert "but" not in caught.value.what, length


def test_folders_pipes_and_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(SAVED)
    write_model(MODEL, tmp_path / "models" / "some.onnx")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone.onnx").symlink_to("blobs/aaa")
    (tmp_path / "circle.onnx").symlink_to("circle.onnx")
    for name, what, following in (
        ("saved", "a SavedModel of TensorFlow", f"--saved-model {tmp_path / 'saved'}"),
        ("saved/saved_model.pb", "a TensorFlow graph", f"--saved-model {tmp_path / 'saved'}"),
        ("models", "a folder", "some.onnx"),
        ("empty", "a folder", "name an ONNX file"),
        ("pipe", "a pipe or device", "save it to a file"),
        ("gone.onnx", "a link to blobs/aaa, which is not there", ""),
        ("circle.onnx", "cannot read the model", ""),
    ):
        with pytest.raises(ModelError, match=what) as caught:
            load_onnx(tmp_path / name)
        assert caught.value.next_step
        assert following in caught.value.next_step


@pytest.mark.parametrize("denied", ["inner/m.onnx", "inner"])
def test_a_model_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: str) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    monkeypatch.chdir(tmp_path / "open")  # relative paths lead past pytest's own folders, which are closed to others
    path = write_model(MODEL, Path("inner/m.onnx"))
    Path(denied).chmod(0)
    before = os.geteuid()
    os.seteuid(before or 65534)  # a user to whom permissions apply: root reads everything
    try:
        with pytest.raises(ModelError, match="cannot read the model: Permission denied") as caught:
            load_onnx(path)
    finally:
        os.seteuid(before)
        Path("inner").chmod(0o755)
    assert "chmod u+r" in caught.value.next_step


def test_a_model_of_doubles_is_no_model_to_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(made([node("Relu", "x")], {"x": (1, 3, 6, 6)}, kind=TensorProto.DOUBLE), Path("m.onnx"))
    with pytest.raises(ModelError, match="the model is of float64: export it in"):
        plan_cold_start("m.onnx", "plan")
    assert not Path("plan").exists()


def test_an_exported_model_is_the_zoos(tmp_path: Path) -> None:
    path = tmp_path / "new/folder/s.onnx"
    done = CliRunner().invoke(app, ["export", "squeezenet1_1", "-o", str(path)])
    assert (done.exit_code, done.output) == (0, f"{path}: {path.stat().st_size / 1e6:.1f} MB\n")
    read, built = load_onnx(path), prior_models()["squeezenet1_1"]()
    assert [(op.op_type, op.attributes) for op in read.operators] == [(op.op_type, op.attributes) for op in built.operators]


def _named(document: Any, key: str = "") -> Iterator[str]:
    """Models that a part of params.yaml names: lists whose key ends in `models`."""
    if isinstance(document, dict):
        for inner, value in document.items():
            yield from _named(value, str(inner))
    elif isinstance(document, list) and key.endswith("models"):
        yield from document


def test_whatever_a_table_names_can_be_exported_and_is_listed() -> None:
    named = set(_named(yaml.safe_load(PARAMS_FILE.read_text()))) | set(UNSEEN) | set(WORKLOADS)
    assert len(named) > 50
    for arguments in (["export"], ["export", "--list"]):
        names = CliRunner().invoke(app, arguments).output.split()
        assert set(names) >= named
        assert names == sorted(named_models())


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
def test_the_file_holds_the_bytes_that_protobuf_writes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether weights are drawn at once or in chunks."""

    def model() -> SeededModel:
        return _small() if name == "net" else seeded_workload(WORKLOADS[name](), 7)

    wanted = model().whole().SerializeToString()
    monkeypatch.setattr(write, "_CHUNK_ELEMENTS", 1000)
    path = model().save(tmp_path / "m.onnx")
    assert path.read_bytes() == wanted
    assert SeededModel(model().whole()).save(path).read_bytes() == wanted


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
    """alexnet takes 244 MB as a file."""
    program = (
        "import resource, sys; from pathlib import Path; from edgeplan.workloads.registry import named_models;"
        "model = named_models()['alexnet'](); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "size = model.save(Path(sys.argv[1]), sync=False).stat().st_size;"
        "print(size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)"
    )
    path = tmp_path / "m.onnx"
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
    path.unlink()
    size, grown = map(int, done.stdout.split())
    assert size > 240e6
    assert grown < 50e6


def test_where_there_is_no_room_the_file_that_was_there_is_kept(tmp_path: Path) -> None:
    """The size of files is limited, which ends writing half-way, as a full disk does."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"the file that was there")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    command = [sys.executable, "-m", "edgeplan", "export", "squeezenet", "-o", str(path)]
    done = subprocess.run(command, preexec_fn=limited, capture_output=True, text=True, check=False)
    assert done.returncode == StoreError.exit_code, done.stderr
    assert "cannot write: File too large" in done.stderr
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(path.name, b"the file that was there")]
