"""Functions are compiled for this processor once a user: every checkout, environment and wheel finds what another compiled.

Numba keeps what it compiled by the path of a source file, and looks at that file alone. Here the key is the content: the code
of a function and of all that is compiled into it, wherever that stands, with the types, the processor and the versions of
the tools. One pair of files belongs to one key, so that processes which compile the same at once write the same.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import config
from numba.core.caching import IndexDataCacheFile, _Cache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher

from edgeplan.support.machine_code import DAY_S, places, prune, say_compiling, writable

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile for the types that it is called with; meanwhile other threads have the interpreter."""
    found: Any = numba.njit(nogil=True)(function)
    if isinstance(found, Dispatcher):  # not under NUMBA_DISABLE_JIT
        vars(found)["_cache"] = _Kept(function, "nogil")  # what `enable_caching` sets
    return found  # type: ignore[no-any-return]  # a dispatcher, called as the function is


class _Kept(_Cache):
    """Keeps the compiled forms of one function: numba asks for one by its types, and hands over what it has to compile."""

    def __init__(self, function: Callable[..., object], options: str) -> None:
        self._function, self._options = function, options

    @property
    def cache_path(self) -> str | None:
        return next(map(str, places()), None)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        key = self._key(sig, target_context.codegen())
        for folder in places():
            if (payload := _loaded(folder, key)) is not None:
                return CompileResult._rebuild(target_context, *payload)  # type: ignore[no-untyped-call]  # noqa: SLF001
        say_compiling(keeps=writable() is not None)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        folder = writable()
        if folder is None or data.lifted or data.library.has_dynamic_globals:
            return
        key = self._key(sig, data.codegen)
        with suppress(OSError):  # a full disk: it is compiled again next time
            _file(folder, key).save(key, data._reduce())  # noqa: SLF001
            prune(folder)

    def enable(self) -> None:
        """Nothing is left to do: it is enabled as long as it lives."""

    def disable(self) -> None:
        """This method is required by numba's interface; nothing calls it."""

    def flush(self) -> None:
        """Nothing is out of date: another content has another key."""

    def _key(self, sig: Any, codegen: Any) -> str:
        told = (content(self._function), self._options, _tools(), codegen.magic_tuple(), str(sig), _fields(sig))
        return f"{self._function.__name__.strip('_')}-{hashlib.sha256(repr(told).encode()).hexdigest()[:40]}"


def _fields(sig: Any) -> list[tuple[str, ...]]:
    """Return names in the named tuples among the arguments: which field a function reads is compiled into it as a number."""
    pending, found = list(getattr(sig, "args", sig)), []
    while pending:
        one = pending.pop()
        found.append(getattr(getattr(one, "instance_class", None), "_fields", ()))
        pending += getattr(one, "types", ())
    return found


def _file(folder: Path, key: str) -> Any:
    return IndexDataCacheFile(str(folder), key, key)  # type: ignore[no-untyped-call]


def _loaded(folder: Path, key: str) -> Any:
    """Load the value kept under a key; None without one, or with an unreadable one, which is removed."""
    index = folder / f"{key}.nbi"
    try:
        payload = _file(folder, key).load(key)
        if payload is not None and time.time() - index.stat().st_mtime > DAY_S:
            for path in (index, *folder.glob(f"{key}.*.nbc")):
                os.utime(path)
    except FileNotFoundError:
        return None
    except Exception:  # noqa: BLE001  a torn file makes unpickling raise anything
        with suppress(OSError):
            index.unlink()
        return None
    return payload


@cache
def _tools() -> tuple[str, ...]:
    """Return versions of what compiles, and settings of the environment that change what it makes."""
    versions = (sys.implementation.cache_tag or "", numba.__version__, llvmlite.__version__, np.__version__)
    return (*versions, *(str(getattr(config, name, "")) for name in ("OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT")))


def content(function: Callable[..., object]) -> str:
    """Return the digest of all that is compiled with a function: its code, what it calls, and the constants they read.

    It is the same in every checkout. Comments and docstrings are no part of it.
    """
    state, seen, pending = hashlib.sha256(), set[int](), [function]
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        told, called = _described(one)
        state.update(told.encode() + b"\0")
        pending += called
    return state.hexdigest()


@cache
def _described(function: FunctionType) -> tuple[str, tuple[FunctionType, ...]]:
    """Return the text that stands for a function's own code and constants, and the functions that it refers to."""
    called: list[FunctionType] = []
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    values = [*_referred(function), *cells, *(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    constants = " ".join(_constant(value, called) for value in values)
    own = tuple(one for one in called if not _of_a_tool(one.__module__))
    return f"{function.__qualname__} {_code(function.__code__, function.__doc__)} {constants}", own


def _of_a_tool(module: str) -> bool:
    """Tell whether the version of a tool (`_tools`) says what a module holds."""
    top = module.partition(".")[0]
    return top in ("numba", "numpy", "llvmlite") or top in sys.stdlib_module_names


def _referred(function: FunctionType) -> Iterator[object]:
    """Yield values of the globals that a function and those defined in it name, and of attributes of modules among them."""
    names = list(dict.fromkeys(_names(function.__code__)))
    spaces = [function.__globals__]
    for name in names:
        if name in spaces[0]:
            value = spaces[0][name]
            if isinstance(value, ModuleType) and not _of_a_tool(value.__name__):
                spaces.append(vars(value))
    for space in spaces:
        yield from (space[name] for name in names if name in space)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _code(code: CodeType, docstring: str | None = None) -> str:
    constants: Iterable[object] = (one for one in code.co_consts if not (isinstance(one, str) and one == docstring))
    told = (_code(one) if isinstance(one, CodeType) else _constant(one, []) for one in constants)
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} {' '.join(told)}"


def _constant(value: object, called: list[FunctionType]) -> str:
    """Return the text that stands for a value; functions, which have a text of their own, are noted instead."""
    function = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value  # dispatchers, intrinsics
    if isinstance(function, FunctionType):
        called.append(function)
        return f"{function.__module__}.{function.__qualname__}"
    if isinstance(value, tuple):
        return f"({', '.join(_constant(one, called) for one in value)})"
    if isinstance(value, ModuleType):
        text = value.__name__
    elif isinstance(value, type):
        text = f"{value.__module__}.{value.__qualname__} {getattr(value, '_fields', '')}"
    elif isinstance(value, np.ndarray):
        text = f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, frozenset):
        text = f"{{{', '.join(sorted(map(repr, value)))}}}"
    else:
        text = re.sub(r" at 0x[0-9a-f]+", "", f"{type(value).__qualname__} {value!r}")
    return text
