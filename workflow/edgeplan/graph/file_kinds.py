"""Files that are no ONNX model are told by their first bytes: most are models of other tools, or no models at all."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

#: How much of a file is looked at.
HEAD_BYTES = 1 << 16
_TF2ONNX = "convert it: pip install tf2onnx, then python -m tf2onnx.convert"
_KERAS = f"export it: model.export('saved') in Keras, then {_TF2ONNX.removeprefix('convert it: ')} --saved-model saved"
_TORCH = 'export the model from its program: torch.onnx.export(model, (inputs,), "model.onnx")'
_DOWNLOAD = "download it again: open its address in a browser, and take the link to the file itself (GitHub: Raw)"


class FileKind(NamedTuple):
    """A file kind names what a file is ("a Git LFS pointer"), with advice for it."""

    what: str
    next_step: str


_Next = Callable[[str], str]


def _fixed(text: str) -> _Next:
    return lambda _path: text


#: By the first bytes: what it is, and the next step from the quoted path.
_BY_START: tuple[tuple[bytes, str, _Next], ...] = (
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer", _fixed("git lfs pull, in its repository")),
    (b"/annex/objects/", "a git-annex pointer", lambda p: f"git annex get {p}"),
    (b"\x1f\x8b", "a file packed by gzip", lambda p: f"unpack it: gunzip {p} (tar xzf for a .tar.gz)"),
    (b"BZh", "a file packed by bzip2", lambda p: f"unpack it: bunzip2 {p}"),
    (b"\xfd7zXZ\0", "a file packed by xz", lambda p: f"unpack it: unxz {p}"),
    (b"\x28\xb5\x2f\xfd", "a file packed by Zstandard", lambda p: f"unpack it: unzstd {p}"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", lambda p: f"unpack it: 7z x {p}"),
    (b"Rar!\x1a\x07", "a RAR archive", lambda p: f"unpack it: unrar x {p}"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes models", _fixed(_KERAS)),
    (b"\x93NUMPY", "an array of NumPy", _fixed("name an ONNX model; arrays are no models")),
    (b"GGUF", "a GGUF file of weights", _fixed("take an ONNX file of the model")),
    (b"\x80\x02", "a file that Python pickled, as PyTorch once wrote weights", _fixed(_TORCH)),
    (b"\x80\x03", "a file that Python pickled", _fixed(_TORCH)),
    (b"\x80\x04", "a file that Python pickled", _fixed(_TORCH)),
    (b"\x7fELF", "a program", _fixed("name an ONNX model")),
    (b"%PDF", "a PDF document", _fixed("name an ONNX model")),
)  # fmt: skip
#: The same by bytes further on: a safetensors file begins with the 8 bytes of a length, and a JSON document.
_BY_MARK: tuple[tuple[int, bytes, str, _Next], ...] = (
    (4, b"TFL3", "a TFLite model", lambda p: f"{_TF2ONNX} --tflite {p} --output model.onnx"),
    (4, b"ORTM", "a model in ONNX Runtime's own format", _fixed("take the ONNX file that it was converted from")),
    (257, b"ustar", "a tar archive", lambda p: f"unpack it: tar xf {p}"),
    (8, b'{"', "a safetensors file, which holds weights and no operators", _fixed(_TORCH)),
)
#: Operators that nearly all TensorFlow graphs hold; a name is a length-delimited field of protobuf.
_TENSORFLOW = re.compile(rb"[\x0a\x12][\x01-\x7f](?:Placeholder|VarHandleOp|StatefulPartitionedCall|NoOp|VariableV2)")
#: Text from the first byte to the last one looked at.
_TEXT = re.compile(rb"[\t\n\r\x20-\x7e\x80-\xff]+")


def file_kind(head: bytes, path: Path) -> FileKind | None:
    """Tell the kind of a file that is known to be no ONNX model.

    Args:
        head: its first `HEAD_BYTES` bytes.
        path: its path, for commands.
    """
    if not head:
        return FileKind("an empty file", "copy, download or export it again")
    quoted = shlex.quote(str(path))
    for start, what, then in _BY_START:
        if head.startswith(start):
            return FileKind(what, then(quoted))
    for place, mark, what, then in _BY_MARK:
        if head[place : place + len(mark)] == mark:
            return FileKind(what, then(quoted))
    if head.startswith(b"PK\x03\x04"):
        return _zip(head, quoted)
    return _text(head, path) if _TEXT.fullmatch(head) else None


def foreign_graph(content: bytes, path: Path) -> FileKind | None:
    """Tell the kind of a protobuf message without an ONNX graph: ONNX and TensorFlow number their fields alike.

    Args:
        content: the whole file, or its beginning.
        path: its path, for commands.
    """
    if not _TENSORFLOW.search(content):
        return None
    quoted = shlex.quote(str(path.parent if path.name == "saved_model.pb" else path))
    how = f"--saved-model {quoted}" if path.name == "saved_model.pb" else f"--graphdef {quoted} --inputs NAMES --outputs NAMES"
    return FileKind("a TensorFlow graph", f"{_TF2ONNX} {how} --output model.onnx")


def folder_kind(path: Path) -> FileKind:
    """Tell the kind of a folder that was named in place of a model file."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError:
        names = []
    if "saved_model.pb" in names:
        return FileKind("a SavedModel of TensorFlow", f"{_TF2ONNX} --saved-model {shlex.quote(str(path))} --output model.onnx")
    if "program.json" in names and "plan.json" in names:
        return FileKind("a plan folder", f"edgeplan run {shlex.quote(str(path))}, or name the model that it was made from")
    models = [name for name in names if name.endswith(".onnx")]
    if models:
        return FileKind("a folder", f"name a file in it: {shlex.quote(str(path / models[0]))}")
    return FileKind("a folder", "name an ONNX file")


def _zip(head: bytes, quoted: str) -> FileKind:
    if b"data.pkl" in head or b"constants.pkl" in head:
        return FileKind("a file of PyTorch", _TORCH)
    if b"config.json" in head and b"model.weights.h5" in head:
        return FileKind("a Keras model", _KERAS)
    if b".npy" in head:
        return FileKind("arrays of NumPy", "name an ONNX model; arrays are no models")
    return FileKind("a zip archive", f"unpack it: unzip {quoted}")


def _text(head: bytes, path: Path) -> FileKind:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    command = f"onnx.save(onnx.load({str(path)!r}, format='textproto'), 'model.onnx')"
    for pattern, what, next_step in (
        (rb"<(!doctype html|html|head|body)", "an HTML page: what a failed download leaves", _DOWNLOAD),
        (rb"<.*<net ", "an XML document, as OpenVINO writes models", "take the ONNX file that it was converted from"),
        (rb"<", "an XML document", _DOWNLOAD),
        (rb"[{\[]", "a JSON document", "name an ONNX model; what a failed download says may stand in it"),
        (rb"ir_?version\s*:", "an ONNX model as text", f"python -c {shlex.quote(f'import onnx; {command}')}"),
        (rb"(.*\n)?outs:", "a pointer of DVC", "dvc pull, and name the file itself"),
    ):
        if re.match(pattern, start, re.DOTALL):
            return FileKind(what, next_step)
    return FileKind("a text", "name an ONNX model")
