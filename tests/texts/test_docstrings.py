"""A docstring's first sentence says something: it has a noun and a verb, and begins with one of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Words that open a phrase which says nothing by itself.
_OPENINGS = {"what", "those", "it", "of", "whether", "how", "all"}
_LEAST_WORDS = 5
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _first_sentences(path: Path) -> Iterator[tuple[str, str]]:
    """The place and first sentence of each docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield f"{path.relative_to(ROOT)}:{node.body[0].lineno}", re.split(r"(?<=[.!?])\s|\n\n", text.strip())[0]


def _says_nothing(sentence: str) -> bool:
    words = sentence.split()
    return words[0].strip("`,.").lower() in _OPENINGS or len(words) < _LEAST_WORDS


def test_first_sentences_of_docstrings_say_something() -> None:
    paths = sorted((ROOT / "workflow").rglob("*.py"))
    found = [f"{where}: {s}" for path in paths for where, s in _first_sentences(path) if _says_nothing(s)]
    assert not found, "\n".join(["begin with a noun or a verb, and use five words or more:", *found])
