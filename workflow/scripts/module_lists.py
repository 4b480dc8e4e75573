"""Writes the list of modules into the docstring of each package of edgeplan: `make modules`.

A line is the first sentence of the module's own docstring, so that a package's `__init__` is its table of contents.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "edgeplan"
_HEAD, _WIDTH = "Modules:", 100
_END_OF_SENTENCE = re.compile(r"(?<!Fig)\.\s+(?=[A-Z`0-9])")


def _about(path: Path) -> str:
    """The first sentence of a module's docstring."""
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(told.split(f"\n\n{_HEAD}")[0].split("\n\n")[0].split())
    return _END_OF_SENTENCE.split(paragraph)[0].rstrip(".") + "."


def _lines(package: Path) -> Iterator[str]:
    """The list of a package: its modules and the packages in it, by name."""
    for path in sorted(package.iterdir()):
        inner = path / "__init__.py"
        if inner.is_file() or (path.suffix == ".py" and path.stem not in ("__init__", "__main__")):
            name, source = (f"{path.name}/", inner) if inner.is_file() else (path.stem, path)
            yield textwrap.fill(f"* `{name}`: {_about(source)}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def listed(package: Path) -> str:
    """The text of a package's `__init__` with the list of its present modules."""
    text = (package / "__init__.py").read_text(encoding="utf-8")
    node = ast.parse(text).body[0]
    told = (ast.get_docstring(ast.parse(text)) or "").split(f"\n\n{_HEAD}")[0].rstrip()
    found = "\n".join(_lines(package))
    body = (
        f'"""{told}\n\n{_HEAD}\n\n{found}\n"""\n' if found else f'"""{told}"""\n' if "\n" not in told else f'"""{told}\n"""\n'
    )
    return body + "".join(text.splitlines(keepends=True)[node.end_lineno :])


def packages() -> list[Path]:
    """The folders of the package and of those in it."""
    return sorted(path.parent for path in PACKAGE.rglob("__init__.py"))


if __name__ == "__main__":
    for folder in packages():
        (folder / "__init__.py").write_text(listed(folder), encoding="utf-8")
