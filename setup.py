"""Builds the native library and edgeplan-run into the package; a wheel holds no code of one Python, and fits each version."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_NATIVE = runpy.run_path(str(Path(__file__).parent / "native" / "build.py"))


class BuiltWithLibrary(build_py):
    """The modules, and the library and the program beside them."""

    def run(self) -> None:
        super().run()
        target = (
            _NATIVE["TARGET"] if self.editable_mode else Path(self.build_lib).absolute() / "edgeplan" / _NATIVE["TARGET"].name
        )
        try:
            _NATIVE["build"](target)
        except SystemExit as missing:  # predictions, tables and stock engines need none: the rest says how to build it
            print(missing, file=sys.stderr)


class WheelOfPlatform(bdist_wheel):
    """A wheel for every Python 3 of a platform."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_py": BuiltWithLibrary, "bdist_wheel": WheelOfPlatform})
