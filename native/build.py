"""Builds the native library and the program edgeplan-run beside it: python native/build.py [--check | --sanitise] [TARGET].

It needs g++ or clang++ (or what CXX names), else the package ziglang, which brings a compiler. TARGET is the library's file;
--check compiles nothing to keep, with warnings as errors; --sanitise builds what ends a process at undefined behaviour and at
errors of memory (make test-sanitised).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "workflow" / "edgeplan"
TARGET, PROGRAM = PACKAGE / "libedgeplan.so", "edgeplan-run"
# No -march: what gains by newer instructions is compiled for each of them.
_SAME_BITS = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")  # on each processor
_FLAGS = ("-std=c++17", "-O2", "-ftree-vectorize", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", *_SAME_BITS)
# Of what throws nothing, and of kernels by the hundred: tables of unwinding and gaps would be a tenth of the library.
_NOTHING_THROWN = ("-fno-exceptions", "-fno-rtti", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-falign-loops=1")
_THROWS_NOTHING = ("kernels", "run")
# What decides and asks the system: loops are elsewhere.
_SMALL, _NOT_HOT = ("-Os",), {"session", "program", "library", "measure", "indices", "run"}
_STRICT = ("-Wall", "-Wextra", "-Werror", "-fsyntax-only")
_SANITISED = ("-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_LINK = ("-pthread", "-Wl,--gc-sections,--as-needed", "-s")
_LIBRARY, _BESIDE = ("-shared", "-Wl,-z,nodelete"), ("-Wl,-rpath,$ORIGIN",)
_EXPORTED = "{ global: ep_*; local: *; };\n"  # templates of the C++ library would be, too


def compiler() -> list[str]:
    """Return the command of a C++ compiler; SystemExit where there is none."""
    if named := os.environ.get("CXX"):
        return shlex.split(named)
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    sys.exit("error: there is no C++ compiler\n  where: native/\n  next:  apt-get install g++, or pip install ziglang")


def build(target: Path = TARGET, *, check: bool = False, sanitise: bool = False) -> None:
    """Build the library and the program; a build that fails leaves the old ones. SystemExit: the compiler complains."""
    command, sources = compiler(), sorted((*(HERE / "src").rglob("*.cpp"), *(HERE / "run").glob("*.cpp")))
    # what is preloaded to look after memory stands for allocations of a library that all share
    static = () if "ziglang" in command or sanitise else ("-static-libstdc++", "-static-libgcc")
    more = _STRICT if check else _SANITISED if sanitise else ()
    defined = f'-DEDGEPLAN_VERSION="{_version()}"'
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".native-") as folder:
        library, program = Path(folder) / target.name, Path(folder) / PROGRAM

        def compiled(source: Path) -> str:
            made = str(Path(folder) / f"{source.parent.name}-{source.stem}.o")
            lean = _NOTHING_THROWN if source.parent.name in _THROWS_NOTHING and not sanitise else ()
            small = _SMALL if {source.parent.name, source.stem} & _NOT_HOT else ()
            _run([*command, *_FLAGS, *lean, *small, *more, defined, "-c", str(source), "-o", made])
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, sources))
        if check:
            return
        linking = [*command, *_LINK, *more, *static]
        of_program = [made for made, source in zip(objects, sources, strict=True) if source.parent.name == "run"]
        of_library = [made for made in objects if made not in of_program]
        exported = Path(folder) / "exported"
        exported.write_text(_EXPORTED, encoding="ascii")
        _run([*linking, *_LIBRARY, f"-Wl,--version-script={exported}", *of_library, "-o", str(library)])
        _run([*linking, *_BESIDE, *of_program, f"-L{folder}", f"-l:{target.name}", "-o", str(program)])
        for made in (library, program):
            made.replace(target.with_name(made.name))


def _version() -> str:
    """The version of the package, which setup.py reads from the same line."""
    found = re.search(r'^__version__ = "(.+)"$', (PACKAGE / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


def _run(command: list[str]) -> None:
    if subprocess.run(command, check=False).returncode:  # noqa: S603  the compiler that was found
        sys.exit(
            f"error: the native library cannot be built\n  where: {shlex.join(command)}\n  next:  another compiler: CXX=..."
        )


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:] if not word.startswith("--")]
    build(*given, check="--check" in sys.argv, sanitise="--sanitise" in sys.argv)
