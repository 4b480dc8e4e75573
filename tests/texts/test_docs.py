"""The texts of the repository: links resolve, commands exist, and what is generated is current."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import typer

from edgeplan.cli import app, run
from edgeplan.reporting.page import bar_lines

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

import results_page  # noqa: E402  a script, of the folder above

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "config/**/*.md", "data/rows/*.md", "workflow/**/*.md")
    for path in ROOT.glob(pattern)
    if "generated" not in path.parts
)
#: Captions link nowhere.
_WRITTEN = [path for path in PAGES if "captions" not in path.parts]
_LINK = re.compile(r"\]\(\s*([^()\s]+)\s*\)")
_COLUMNS, _README_LINES, _FIRST_PREDICTION, _RELEASE_LINES = 100, 152, 25, 10


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _without_code(text: str) -> str:
    """A page without fenced and indented code and without code spans, where brackets are no links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings: lower case, words joined by hyphens, punctuation dropped."""
    headings = re.findall(
        r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", heading.strip().lower())) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_and_anchors_resolve(page: Path) -> None:
    broken = []
    for target in _LINK.findall(_without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        inside = found.is_relative_to(ROOT) and found.exists()
        if not inside or (anchor and (found.suffix != ".md" or anchor not in _anchors(found))):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_prose_keeps_to_its_columns(page: Path) -> None:
    text = re.sub(r"^<!-- begin: .*?^<!-- end -->", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()
    assert [line for line in lines if len(line) > _COLUMNS and not line.lstrip().startswith("|")] == []


@pytest.mark.parametrize("name", results_page.PAGES)
def test_generated_parts_are_current(name: str) -> None:
    text = (ROOT / name).read_text()
    written = results_page.rendered(text, results_page.Results(ROOT / "results"))
    assert written == text, "run: make results-page"
    assert "<!-- begin: " in text


def test_bars_that_are_asked_of_some_pairs_name_them(tmp_path: Path) -> None:
    """A figure without a bar stands on the row of the pair that has one; what misses is bold."""
    (tmp_path / "params.yaml").write_text("devices: []")
    gain, seconds = ("partition.speedup_over_best", "partition.seconds_to_checked_plan")
    bars = {bar.key: bar for bar in results_page.ASKED}
    metrics = {gain: 0.9, f"{gain}.low": 0.8, f"{gain}.high": 1.0, seconds: 3.0}
    for pair, asked in (("pair-a", [seconds]), ("pair-b", [seconds, gain])):
        lines = [asdict(line) for line in bar_lines([bars[key] for key in asked], metrics)]
        for name, document in (
            (f"{pair}/metrics.json", metrics),
            (f"chapters/{pair}/partition_checked.page.json", {"lines": lines, "cards": []}),
        ):
            path = tmp_path / "results" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document))
    text = results_page.checked(results_page.Results(tmp_path / "results"))
    assert f"| {bars[seconds].title} | 3 | 3 | <= 60 | 20 |" in text
    assert f"| {bars[gain].title} | 0.9 (0.8 to 1) | **0.9 (0.8 to 1)** | >= 1.2 (pair-b) | 1.35 |" in text


def test_readme_is_short_and_begins_with_a_first_prediction() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= _README_LINES
    first = "\n".join(lines[:_FIRST_PREDICTION])
    assert [command for command in ("git clone", "pip install", "edgeplan predict") if f"\n    {command} " not in first] == []


def test_releases_in_the_changelog_are_short() -> None:
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert releases
    assert [part.splitlines()[0] for part in releases if len(part.strip().splitlines()[1:]) > _RELEASE_LINES + 1] == []


def _sources() -> Iterator[Path]:
    for pattern in (
        "workflow/**/*.py",
        "workflow/**/*.smk",
        "tests/**/*.py",
        "*.yaml",
        "config/**/*.yaml",
        "Makefile",
        "dvc.yaml",
    ):
        yield from ROOT.glob(pattern)


def test_pages_that_sources_name_exist() -> None:
    named = {(path, page) for path in _sources() for page in re.findall(r"\bdocs/[\w-]+\.md\b", path.read_text())}
    assert sorted(f"{_name(path)}: {page}" for path, page in named if not (ROOT / page).is_file()) == []


def test_make_targets_in_texts_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (page, target)
        for page in PAGES
        for target in re.findall(r"(?:^    |`)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE)
    }
    assert named
    assert sorted(f"{_name(page)}: make {target}" for page, target in named if target not in targets) == []


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Every call of `edgeplan` in a text: indented code, and code spans."""
    for page in PAGES:
        for call in re.findall(r"(?:^    (?:\$ )?|`)edgeplan ([^`\n#]+)", page.read_text(), re.MULTILINE):
            yield f"{_name(page)}: edgeplan {call.strip()}", shlex.split(call)


def _unknown(words: list[str]) -> list[str]:
    """What the command line does not know of a call: a command, or options."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            break
        if words[0] not in command.commands:
            if command.name != "plan" or "." not in words[0].replace("MODEL", "model.onnx"):
                return words[:1]
            words = ["front", *words]  # a model in a command's place
        command, words = command.get_command(None, words[0]), words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    if command.name == "run":  # which reads its options itself
        known |= {name for option in run.parser()._actions for name in option.option_strings}
    return [word for word in words if word.startswith("-") and word.split("=")[0] not in known]


def test_commands_in_texts_exist_with_their_options() -> None:
    found = list(_commands())
    assert len(found) > len(_WRITTEN)
    assert [call for call, words in found if _unknown(words)] == []
