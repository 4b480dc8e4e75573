"""Names the measuring protocols: what a stored number means, without looking at source files.

A row is keyed by the name of the protocol that measured it. A change to the code that cannot change
numbers leaves the name, and every stored row is found again; a change that can gets a new name, in
words (`onnxruntime/2`), and a line in the changelog. `protocols.lock.json` holds a digest of the
sources behind each name, so that a test notices when they change. Comments, docstrings, imports and
layout are no part of the digest.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from edgeplan.errors import DeviceError
from edgeplan.support.files import write_text

PACKAGE = Path(__file__).parents[1]
LOCK = Path(__file__).with_name("protocols.lock.json")
NATIVE = "../../native/src"  # of the native library, in a checkout
_KERNEL_SUFFIXES = (".cl", ".h", ".cpp")


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol names a way of measuring or computing.

    Attributes:
        name: part of the keys of rows.
        sources: files and folders below the package that decide what a number means.
        earlier: names whose shipped rows tables may be built from, too; what is measured anew never counts as theirs.
    """

    name: str
    sources: tuple[str, ...]
    earlier: tuple[str, ...] = ()

    @property
    def readable(self) -> tuple[str, ...]:
        """Return all names that tables may be built from, the present one first."""
        return (self.name, *self.earlier)


def files_of(folder: str, *names: str) -> tuple[str, ...]:
    """Return the Python files of a folder, by the names of their modules."""
    return tuple(f"{folder}/{name}.py" for name in names)


_files = files_of
#: What every engine's rows share.
_MEASURING = (
    *_files("measurement", "blocks", "preemption", "references"),
    *_files("engines", "base", "copies"),
    *_files("graph", "onnx/write", "nodes", "kernel_nodes"),
)
#: What a model's operators are executed as; those of the 13 models are.
_LOWERING = (
    *_files("graph", "steps", "axis_matrices", "blocks"),
    *_files("graph/operators", "base", "windows", "products", "elementwise", "reductions", "copies", "resizing", "compiled"),
)
_RUNTIME = (
    *_files(
        "runtime",
        *("candidates", "creation", "descriptors", "executable", "layouts", "lowering", "primitive_kinds"),
        *("primitives", "program", "session", "transform", "weights", "streaming/build", "streaming/calls"),
    ),
    "runtime/native/calls.py",
    *(f"{NATIVE}/{part}" for part in ("base.h", "kernels", "loops/loops.h", "loops/partner.cpp")),
    *_LOWERING,
)
#: What prepares and executes the steps of a cold start, in a session and on a bench.
_SESSIONS = tuple(f"{NATIVE}/{part}" for part in ("base.h", "library", "loops", "program", "session"))
_PROFILES = (
    "measurement/preemption.py",
    *_files(
        "measurement/process", "clock", "first_execution", "interference", "prepare_machine", "host_memory", "record_bench"
    ),
    *_files("profiling", "rounds", "samples", "fresh_process_factors", "profiles", "contention", "profiler"),
    *_files("runtime", "tape", "cold_program", "recipes", "transform", "dnnl", "creation", "linking"),
    *_SESSIONS,
    f"{NATIVE}/measure",
)
_COLD_RUN = (
    *_files(
        "measurement/process",
        *("child", "program", "undisturbed_start", "interference", "prepare_machine", "host_memory", "clock", "page_cache"),
        *("counters", "inputs"),
    ),
    "runtime/bringing.py",
)


def _measured(engine: str, name: str, earlier: tuple[str, ...], *more: str) -> Protocol:
    return Protocol(name, (*_MEASURING, f"engines/{engine}/session.py", *more), earlier)


def _dispatched(engine: str, name: str, *more: str) -> Protocol:
    sources = (f"engines/{engine}/session.py", "engines/opencl/dispatching.py", f"processors/{engine}.py", "opencl", *more)
    return Protocol(name, (*_MEASURING, *sources, *_RUNTIME))


def _started(engine: str, *earlier: str, version: int = 2) -> Protocol:
    """Since 2 a file that imports the engine alone starts it; since 3 our sessions are native, with nothing to set up."""
    return Protocol(f"cold-{engine}/{version}", (*_COLD_RUN, *_files(f"engines/{engine}", "cold", "start")), earlier)


#: By what is measured; a chapter has its own in `protocols.py` of its folder.
#: Names of hexadecimal digits are those of rows that were stored when keys held digests of sources.
PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        # times of models and kernels on an engine; since 2 interrupted runs do not count, since 3 Python calls no step
        "measure/onnxruntime": _measured(
            "onnxruntime", "onnxruntime/2", ("a29787b50778deab",), "engines/onnxruntime/copies.py"
        ),
        "measure/openvino": _measured("openvino", "openvino/2", ("8c2223949c86d63f",)),
        "measure/onednn": _measured("onednn", "onednn/3", ("47e305f54f670757",), *_RUNTIME),
        # since 2 the steps of a run take together what it takes unmarked, beside loads of the processor itself
        "measure/opencl": _dispatched("opencl", "opencl/2"),
        "measure/cuda": _dispatched("cuda", "cuda/1", "cuda"),
        "measure/onnxruntime_cuda": _measured("onnxruntime_cuda", "onnxruntime-cuda/1", ()),
        # which operators a node holds that an engine counts
        "mapping/onnxruntime": Protocol("2e4960ae", _files("engines", "mapping", "onnxruntime/nodes")),
        "mapping/openvino": Protocol("260d8671", _files("engines", "mapping", "openvino/session")),
        "mapping/onednn": Protocol("0e25a4e4", ("engines/mapping.py",)),
        "mapping/opencl": Protocol("opencl-nodes/1", _files("engines/opencl", "dispatching")),
        "mapping/cuda": Protocol("cuda-nodes/1", _files("engines/opencl", "dispatching")),
        "mapping/onnxruntime_cuda": Protocol("onnxruntime-cuda-nodes/1", _files("engines/onnxruntime_cuda", "session")),
        # cold starts; since 2 interrupted samples do not count, and waiting threads sleep; since 3 Python calls no step of
        # later runs
        # since profile/3 and runtime/4 sessions are native, and raw weights are transformed without the interpreter
        "profile": Protocol("profile/3", _PROFILES, ("aeed753171347bb1",)),
        "runtime": Protocol("runtime/4", ("runtime", *_SESSIONS, *_LOWERING), ("1897c2256586d160",)),
        "cold/disk": Protocol("fa3e6948cb01cfb8", _COLD_RUN),
        "cold/onnxruntime": _started("onnxruntime", "d1fde67e447a6f2c"),
        "cold/openvino": _started("openvino", "c74e47ce02c58d0c"),
        "cold/ncnn": _started("ncnn", "eb572db824d755cd"),
        "cold/litert": _started("litert", "38a27a1e51f5f6ab"),
        "cold/onednn": _started("onednn", "21273a43a0c6e429", version=3),
    }
)


def protocol(what: str) -> Protocol:
    """Return the protocol of a measurement, by its key in `PROTOCOLS`."""
    if what in PROTOCOLS:
        return PROTOCOLS[what]
    known = all_protocols()
    if what not in known:
        raise DeviceError(
            f"there is no measuring protocol {what!r}",
            where="edgeplan.support.protocols",
            next_step="name one in PROTOCOLS; known: " + ", ".join(known),
        )
    return known[what]


def all_protocols() -> Mapping[str, Protocol]:
    """Return the protocols of the foundation and of the chapters, whose files are found by their place as tests are."""
    files = sorted(PACKAGE.glob("chapters/*/protocols.py"))
    own = (import_module(f"edgeplan.chapters.{path.parent.name}.protocols").PROTOCOLS for path in files)
    return {**PROTOCOLS, **{what: found for protocols in own for what, found in protocols.items()}}


def digest(sources: tuple[str, ...]) -> str:
    """Return the digest of what the files say, wherever they stand: without comments, docstrings, imports and white space."""
    state = hashlib.sha256()
    for path in _source_files(sources):
        text = path.read_text(encoding="utf-8")
        state.update((essence(text) if path.suffix == ".py" else kernel_essence(text)).encode() + b"\0")
    return state.hexdigest()


def essence(source: str) -> str:
    """Return Python source without what cannot change a number: comments, docstrings, imports and white space.

    Names, literals and the order of statements stay. The result is the same on every version of Python.
    """
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    kept = bytearray(b"".join(lines))
    for first, start, last, end in _left_out(source):
        begin, stop = starts[first - 1] + start, starts[last - 1] + end
        kept[begin:stop] = b" " * (stop - begin)
    return "".join(kept.decode().split())


def kernel_essence(source: str) -> str:
    """Return source of OpenCL or C++ without comments; white space, which ends macros there, as single characters."""
    told = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", source, flags=re.DOTALL)
    return re.sub(r"\s+", lambda space: "\n" if "\n" in space[0] else " ", told)


def _left_out(source: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield line and byte of the begin and the end of what a digest leaves out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield _span(node)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                yield _span(first)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            begin = len(token.line[: token.start[1]].encode())
            yield token.start[0], begin, token.start[0], begin + len(token.string.encode())


def _span(node: ast.stmt) -> tuple[int, int, int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: S101, PT018  ast.parse sets them
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _source_files(sources: tuple[str, ...]) -> Iterator[Path]:
    for name in sources:
        path = PACKAGE / name
        inner = (one for one in sorted(path.rglob("*")) if one.suffix in (".py", *_KERNEL_SUFFIXES))
        yield from inner if path.is_dir() else (path,)


def written() -> dict[str, dict[str, str]]:
    """Compute the lock file's content: the name of each protocol and the digest of its sources."""
    return {what: {"name": p.name, "sources_sha256": digest(p.sources)} for what, p in all_protocols().items()}


def main() -> None:
    """Write the lock file anew (`make protocols`)."""
    write_text(LOCK, json.dumps(written(), indent=1) + "\n")


if __name__ == "__main__":
    main()
