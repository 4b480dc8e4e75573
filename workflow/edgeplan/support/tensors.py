"""Reads and writes users' tensors: .npz and .npy inputs, held against what a model expects, and .npz outputs.

Files are untrusted: names, shapes and element types are read from the headers and checked before any data is, and nothing is
unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np

from edgeplan.errors import InputError
from edgeplan.support.lazy import lazily

if TYPE_CHECKING:
    import zipfile
    from pathlib import Path
    from urllib import parse

    import numpy.typing as npt

    from edgeplan.support import files
else:  # the first run of a plan waits for this module, and reads no file
    zipfile, parse, files = lazily("zipfile"), lazily("urllib.parse"), lazily("edgeplan.support.files")

Array: TypeAlias = "npt.NDArray[np.float32]"
Shape = tuple[int, ...]
#: Outputs of our runtime agree with ONNX Runtime's when they differ by at most this share of their largest magnitude.
OUTPUT_TOLERANCE = 1e-4
#: The same where values are rounded to bytes on their way: what lies half-way between two may become either.
QUANTISED_TOLERANCE = 2e-2
#: How often as far as right implementations are from each other outputs may be (`allowed_error`).
OF_ITS_OWN = 2


class ModelInput(Protocol):
    """An input or output of a model."""

    @property
    def name(self) -> str:
        """Return the name of the tensor."""

    @property
    def shape(self) -> Shape:
        """Return the shape of the tensor."""

    @property
    def dtype(self) -> str:
        """Return the element type's name."""

    @property
    def below(self) -> int:
        """Return the limit that drawn integers stay below."""

    @property
    def size(self) -> int:
        """Return the size in bytes."""


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def _bad_file() -> tuple[type[Exception], ...]:
    return (OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile)


def _described(border: ModelInput) -> str:
    """Return an input as messages name it, e.g. "float32[1,3,224,224] named 'input'"."""
    return f"{_form(border.dtype, border.shape)} named {border.name!r}"


def _form(dtype: object, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def read_inputs(path: Path, expected: Sequence[ModelInput]) -> dict[str, Array]:
    """Read the inputs of a run: .npz with one array for each input, by name; or .npy for a model of one input."""
    try:
        with path.open("rb") as file:
            if zipfile.is_zipfile(file):
                return _from_archive(file, path, expected)
            file.seek(0)
            if len(expected) != 1:
                _refuse(expected, f"the file holds no named arrays for {len(expected)} inputs", str(path))
            return {expected[0].name: _array(file, expected[0], expected, str(path))}
    except _bad_file() as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(
            f"cannot read the inputs: {reason}",
            where=str(path),
            next_step="write them with numpy.savez(path, **arrays), or of a single one with numpy.save(path, array)",
        ) from error


def _from_archive(file: IO[bytes], path: Path, expected: Sequence[ModelInput]) -> dict[str, Array]:
    with zipfile.ZipFile(file) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        _check_names(members, expected, str(path))
        found = {}
        for border in expected:
            with archive.open(members[border.name]) as member:
                found[border.name] = _array(member, border, expected, str(path))
        return found


def _array(file: IO[bytes], border: ModelInput, expected: Sequence[ModelInput], where: str) -> Array:
    """Return one array of a file, read only if its header says what is expected."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"arrays of format {version[0]}.{version[1]} are not known")
    shape, by_columns, dtype = _HEADERS[version](file)
    _check(border, dtype, shape, expected, where)
    data = file.read(border.size)
    if len(data) != border.size:
        raise ValueError(f"the array {border.name!r} is cut short")
    values: npt.NDArray[Any] = np.frombuffer(data, border.dtype).reshape(shape, order="F" if by_columns else "C")
    return values


def checked_inputs(inputs: Mapping[str, npt.ArrayLike] | npt.ArrayLike, expected: Sequence[ModelInput]) -> dict[str, Array]:
    """Return inputs that a program was given, by name; of a model with one input the array alone will do."""
    where = "inputs"
    if not isinstance(inputs, Mapping):
        if len(expected) != 1:
            _refuse(expected, f"one array was given for {len(expected)} inputs", where)
        inputs = {expected[0].name: inputs}
    _check_names(inputs, expected, where)
    found = {border.name: np.asarray(inputs[border.name]) for border in expected}
    for border in expected:
        _check(border, found[border.name].dtype, found[border.name].shape, expected, where)
    return found


def _check_names(given: Mapping[str, object], expected: Sequence[ModelInput], where: str) -> None:
    wanted = [border.name for border in expected]
    if missing := [name for name in wanted if name not in given]:
        _refuse(expected, f"there is no array {missing[0]!r}, only {', '.join(map(repr, given)) or 'none'}", where)
    if more := [name for name in given if name not in wanted]:
        _refuse(expected, f"the model has no input {more[0]!r}", where)


def _check(border: ModelInput, dtype: object, shape: Sequence[int], expected: Sequence[ModelInput], where: str) -> None:
    if dtype != np.dtype(border.dtype) or tuple(shape) != border.shape:
        _refuse(expected, f"input {border.name!r} is {_form(dtype, shape)}", where)


def _refuse(expected: Sequence[ModelInput], what: str, where: str) -> NoReturn:
    raise InputError(
        what, where=where, next_step=f"correct the input: expected {' and '.join(_described(border) for border in expected)}"
    )


def write_outputs(path: Path, outputs: Mapping[str, Array]) -> None:
    """Write outputs as .npz, atomically; whatever an output is named (numpy.savez has names of its own)."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, value in outputs.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(value, order="C"), allow_pickle=False)

    files.write_atomically(path, write)


def read_outputs(path: files.FilePath) -> dict[str, Array]:
    """Read what `write_outputs` has written, by name and in its order."""
    with np.load(path, allow_pickle=False) as found:
        return dict(found)


def write_arrays(folder: Path, values: Mapping[str, npt.NDArray[Any]]) -> dict[str, Path]:
    """Write each of some arrays to a .npy of its own, as edgeplan-run reads them; the file of each."""
    files = {name: folder / f"{number}.npy" for number, name in enumerate(values)}
    for name, value in values.items():
        np.save(files[name], np.asarray(value, order="C"))
    return files


def read_arrays(folder: Path, outputs: Iterable[ModelInput]) -> dict[str, Array]:
    """Read what edgeplan-run has written of outputs, by name."""
    return {output.name: np.load(folder / f"{parse.quote(output.name, safe='')}.npy") for output in outputs}


def relative_error(outputs: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return the largest max|a - b| / max|b| over the outputs, taken in order, of values that are finite in both.

    What is no number in both, or the same infinity, is equal; where only one is so, or a shape differs, it is infinite.
    """
    if len(outputs) != len(expected):
        return math.inf
    worst = 0.0
    for found, wanted in zip(outputs, expected, strict=True):
        most, _, scale = _apart(found, wanted)
        worst = max(worst, most / scale if scale else (0.0 if most == 0 else math.inf))
    return worst


def _apart(found: Array, wanted: Array) -> tuple[float, float, float]:
    """Return the largest difference, the mean one, and the largest magnitude that is wanted."""
    a, b = (v.astype(np.int64) if v.dtype.kind in "biu" else v for v in (found, wanted))  # none wraps around
    if a.shape != b.shape:
        return math.inf, math.inf, 1.0
    numbers = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~numbers], b[~numbers], equal_nan=a.dtype.kind == "f"):
        return math.inf, math.inf, 1.0
    a, b = a[numbers], b[numbers]
    apart = np.abs(a - b)
    return float(apart.max(initial=0.0)), float(apart.sum() / max(1, apart.size)), float(np.abs(b).max(initial=0.0))


def allowed_error(
    outputs: Sequence[Array],
    expected: Sequence[Array],
    own: Sequence[tuple[Sequence[Array], Sequence[Array]]],
    tolerance: float,
) -> float:
    """Return how far outputs may be from those expected: further than the tolerance if right implementations are, too.

    An output may be twice as far as these are from each other at most, on average and at its farthest value: a wrong kernel
    moves all values, though the farthest one by no more than rounding may move one of a deep network.

    `own` is what two right implementations return for equal inputs, for some inputs; `tolerance` what rounding costs,
    relative to the largest magnitude (`relative_error`).
    """
    allowed = tolerance
    for k, (found, wanted) in enumerate(zip(outputs, expected, strict=True)):
        if relative_error([found], [wanted]) <= tolerance:
            continue
        apart = [_apart(one[k], other[k])[:2] for one, other in own]
        most, mean = (OF_ITS_OWN * max(filter(math.isfinite, each), default=0.0) for each in zip(*apart, strict=True))
        far, on_average, scale = _apart(found, wanted)
        if far > most or on_average > mean:
            return tolerance
        allowed = max(allowed, most / scale if scale else math.inf)
    return allowed
