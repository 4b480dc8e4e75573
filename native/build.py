"""Builds the native library: python native/build.py [--check | --sanitise] [TARGET].

It needs g++ or clang++ (or what CXX names), else the package ziglang, which brings a compiler. TARGET is the library's file;
--check compiles nothing to keep, with warnings as errors; --sanitise builds what ends a process at undefined behaviour and at
errors of memory (make test-sanitised).
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "workflow" / "edgeplan" / "libedgeplan.so"
# No -march: what gains by newer instructions is compiled for each of them.
_SAME_BITS = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")  # on each processor
_FLAGS = ("-std=c++17", "-O2", "-ftree-vectorize", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", *_SAME_BITS)
_STRICT = ("-Wall", "-Wextra", "-Werror", "-fsyntax-only")
_SANITISED = ("-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_LINK = ("-shared", "-pthread", "-Wl,--gc-sections", "-Wl,--exclude-libs,ALL", "-s")


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
    """Build the library as a whole; a build that fails leaves the old one. SystemExit: the compiler complains."""
    command, sources = compiler(), sorted((HERE / "src").rglob("*.cpp"))
    static = () if "ziglang" in command else ("-static-libstdc++", "-static-libgcc")
    more = _STRICT if check else _SANITISED if sanitise else ()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".native-") as folder:

        def compiled(source: Path) -> str:
            made = str(Path(folder) / f"{source.parent.name}-{source.stem}.o")
            _run([*command, *_FLAGS, *more, "-c", str(source), "-o", made])
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, sources))
        if not check:
            _run([*command, *_LINK, *more, *static, *objects, "-o", str(Path(folder) / target.name)])
            (Path(folder) / target.name).replace(target)


def _run(command: list[str]) -> None:
    if subprocess.run(command, check=False).returncode:  # noqa: S603  the compiler that was found
        sys.exit(
            f"error: the native library cannot be built\n  where: {shlex.join(command)}\n  next:  another compiler: CXX=..."
        )


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:] if not word.startswith("--")]
    build(*given, check="--check" in sys.argv, sanitise="--sanitise" in sys.argv)
