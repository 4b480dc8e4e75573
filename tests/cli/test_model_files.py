"""What a path may lead to that is no ONNX model: each is said by name, with the next command, by every command."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from camera_model import save_predictors
from model_file_runs import made, node, values, write
from onnx import TensorProto
from typer.testing import CliRunner

from edgeplan.cli import app
from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.graph.onnx.read import load_onnx

MODEL = made([node("Conv", "x w")], {"x": (1, 3, 6, 6)}, {"w": values(5, 3, 3, 3)})
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


def _zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return buffer.getvalue()


def _tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.onnx"))
    return buffer.getvalue()


def _array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


#: A GraphDef of TensorFlow: nodes with name and operator; and a SavedModel around it: version, graph.
GRAPH = b"".join(_field(1, _field(1, n) + _field(2, op)) for n, op in ((b"input", b"Placeholder"), (b"y", b"Relu")))
SAVED = b"\x08\x01" + _field(2, _field(2, GRAPH))

KINDS: dict[str, tuple[bytes, str, str]] = {
    "Git LFS": (LFS, "Git LFS pointer", "git lfs pull"),
    "git-annex": (b"/annex/objects/SHA256E-s1--00.onnx\n", "git-annex pointer", "git annex get"),
    "DVC": (b"outs:\n- md5: 00\n  path: model.onnx\n", "pointer of DVC", "dvc pull"),
    "HTML": (b"<!DOCTYPE html><html></html>", "an HTML page", "download it again"),
    "HTML, indented": (b"\n  <html lang='de'>\xc3\xa4</html>", "an HTML page", "download it again"),
    "XML": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML document", "download it again"),
    "OpenVINO": (b'<?xml version="1.0"?>\n<net name="m" version="11"></net>', "OpenVINO", "ONNX file"),
    "JSON": (b'{"error": "not found"}', "a JSON document", "name an ONNX model"),
    "text": (b"hello\n", "a text", "name an ONNX model"),
    "text of ONNX": (b"ir_version: 8\ngraph {\n}\n", "as text", "textproto"),
    "gzip": (gzip.compress(MODEL.SerializeToString()), "packed by gzip", "gunzip"),
    "tar": (_tarred(), "a tar archive", "tar xf"),
    "zip": (_zipped("model.onnx"), "a zip archive", "unzip"),
    "PyTorch": (_zipped("archive/data.pkl", "archive/version"), "a file of PyTorch", "torch.onnx.export"),
    "PyTorch of old": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "pickled", "torch.onnx.export"),
    "Keras": (_zipped("metadata.json", "config.json", "model.weights.h5"), "a Keras model", "tf2onnx"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file", "tf2onnx"),
    "TFLite": (b"\x1c\0\0\0TFL3" + bytes(40), "a TFLite model", "--tflite"),
    "ONNX Runtime": (b"\x1c\0\0\0ORTM" + bytes(40), "ONNX Runtime's own format", "converted from"),
    "safetensors": (
        (64).to_bytes(8, "little") + b'{"w":{"dtype":"F32"}}' + bytes(80),
        "a safetensors file",
        "torch.onnx.export",
    ),
    "TensorFlow": (GRAPH, "a TensorFlow graph", "--graphdef"),
    "SavedModel": (SAVED, "a TensorFlow graph", "tf2onnx"),
    "NumPy": (_array(), "an array of NumPy", "name an ONNX model"),
    "nothing": (b"", "an empty file", "export it again"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_file_is_that_is_no_model(tmp_path: Path, kind: str) -> None:
    content, what, following = KINDS[kind]
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


def test_folders_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(SAVED)
    write(MODEL, tmp_path / "models" / "some.onnx")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, what, following in (
        ("saved", "a SavedModel of TensorFlow", f"--saved-model {tmp_path / 'saved'}"),
        ("saved/saved_model.pb", "a TensorFlow graph", f"--saved-model {tmp_path / 'saved'}"),
        ("models", "a folder", "some.onnx"),
        ("empty", "a folder", "name an ONNX file"),
        ("pipe", "a pipe or device", "save it to a file"),
    ):
        with pytest.raises(ModelError, match=what) as caught:
            load_onnx(tmp_path / name)
        assert following in caught.value.next_step


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "gone.onnx").symlink_to("blobs/aaa")
    with pytest.raises(ModelError, match="a link to blobs/aaa, which is not there"):
        load_onnx(tmp_path / "gone.onnx")
    (tmp_path / "circle.onnx").symlink_to("circle.onnx")
    with pytest.raises(ModelError, match="cannot read the model") as caught:
        load_onnx(tmp_path / "circle.onnx")
    assert caught.value.next_step


@contextmanager
def _as_somebody() -> Iterator[None]:
    """As a user to whom permissions apply: root reads everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("denied", ["inner/m.onnx", "inner"])
def test_a_model_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: str) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    monkeypatch.chdir(tmp_path / "open")  # relative paths lead past pytest's own folders, which are closed to others
    path = write(MODEL, Path("inner/m.onnx"))
    Path(denied).chmod(0)
    try:
        with _as_somebody(), pytest.raises(ModelError, match="cannot read the model: Permission denied") as caught:
            load_onnx(path)
    finally:
        Path("inner").chmod(0o755)
    assert "chmod u+r" in caught.value.next_step


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where both commands have their devices."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config/devices").mkdir(parents=True)
    (tmp_path / "config/devices/dev.yaml").write_text("format_version: 1\nname: dev\nengine: onednn\n")
    save_predictors(tmp_path / "results/dev")
    return tmp_path


def _doubles() -> onnx.ModelProto:
    return made(
        [node("Conv", "x w", "h"), node("Relu", "h")],
        {"x": (1, 3, 6, 6)},
        {"w": values(5, 3, 3, 3).astype(np.float64)},
        kind=TensorProto.DOUBLE,
    )


@pytest.mark.parametrize(
    ("content", "said"), [(LFS, "a Git LFS pointer"), (_doubles().SerializeToString(), "the model is of float64: export it in")]
)
@pytest.mark.parametrize("command", [("predict",), ("plan", "cold-start", "-o", "plan")])
def test_every_command_says_it(workspace: Path, command: tuple[str, ...], content: bytes, said: str) -> None:
    (workspace / "m.onnx").write_bytes(content)
    done = CliRunner().invoke(app, [*command, "m.onnx", "-d", "dev"])
    assert isinstance(done.exception, EdgeplanError), done.output
    assert said in done.exception.what
    assert done.exception.next_step
    assert not (workspace / "plan").exists()
