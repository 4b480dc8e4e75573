"""Texts: links resolve, commands exist, what is generated is current; stages are declared once, and what they name fits."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
import yaml

from edgeplan.chapters.base import Stage, covered
from edgeplan.chapters.partition.settings import ALL_CORES, PLANNED
from edgeplan.chapters.profiles import overrides, profile
from edgeplan.chapters.registry import CHAPTERS, REPORT, STAGES, Params, load_params, parts_of_report, rebuilt
from edgeplan.chapters.running import stage_arguments
from edgeplan.chapters.wiring import written
from edgeplan.cli import run
from edgeplan.cli.commands import app
from edgeplan.engines import description
from edgeplan.engines.registry import SETTINGS
from edgeplan.errors import ParamsError
from edgeplan.reporting.page import caption
from edgeplan.support.sources import NEUTRAL

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

import code_documents  # noqa: E402  a script, of the folder above
import results_page  # noqa: E402  likewise

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "config/**/*.md", "data/rows/*.md", "workflow/**/*.md")
    for path in ROOT.glob(pattern)
    if "generated" not in path.parts
)
_SOURCES = ("workflow/**/*.py", "workflow/**/*.smk", "tests/**/*.py", "*.yaml", "config/**/*.yaml", "Makefile")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(\s*([^()\s]+)\s*\)")
_COLUMNS, _README_LINES, _FIRST_PREDICTION, _RELEASE_LINES = 100, 152, 25, 10


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _without_code(text: str) -> str:
    """A page without fenced and indented code and without code spans, where brackets are no links."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^    .*$", "", _FENCED.sub("", text), flags=re.MULTILINE))


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings: lower case, words joined by hyphens, punctuation dropped."""
    headings = re.findall(r"^#+ +(.*)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", heading.strip().lower())) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_and_anchors_resolve_and_prose_keeps_to_its_columns(page: Path) -> None:
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
    text = re.sub(r"^<!-- begin: .*?^<!-- end -->", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = _FENCED.sub("", text).splitlines()
    assert [line for line in lines if len(line) > _COLUMNS and not line.lstrip().startswith("|")] == []


@pytest.mark.parametrize("name", results_page.PAGES)
def test_generated_parts_are_current(name: str) -> None:
    text = (ROOT / name).read_text()
    written = results_page.rendered(text, results_page.Results(ROOT / "results"))
    assert written == text, "run: make results-page"
    assert "<!-- begin: " in text


def test_readme_and_releases_are_short_and_a_first_prediction_comes_first() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= _README_LINES
    first = "\n".join(lines[:_FIRST_PREDICTION])
    assert [command for command in ("git clone", "pip install", "edgeplan predict") if f"\n    {command} " not in first] == []
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert releases
    assert [part.splitlines()[0] for part in releases if len(part.strip().splitlines()[1:]) > _RELEASE_LINES + 1] == []


def test_pages_that_sources_name_exist() -> None:
    sources = [path for pattern in _SOURCES for path in ROOT.glob(pattern)]
    named = {(path, page) for path in sources for page in re.findall(r"\bdocs/[\w-]+\.md\b", path.read_text())}
    assert sorted(f"{_name(path)}: {page}" for path, page in named if not (ROOT / page).is_file()) == []


def test_make_targets_in_texts_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = re.compile(r"(?:^    |`)make ([a-z][a-z-]*)", re.MULTILINE)
    named = {(_name(page), target) for page in PAGES for target in asked.findall(page.read_text())}
    assert len(named) > 10
    assert sorted((page, target) for page, target in named if target not in targets) == []


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
    assert len(found) > 50
    assert [call for call, words in found if _unknown(words)] == []


PAIRS = yaml.safe_load((ROOT / "params.yaml").read_text())["partition"]["checked_pairs"]


@pytest.mark.parametrize("pair", PAIRS)
def test_the_docs_answer_as_the_figures_do(pair: str) -> None:
    """The table of docs/partition.md says what to expect of every measured pair."""
    figures = json.loads((ROOT / f"results/{pair}/metrics.json").read_text())
    (line,) = re.findall(rf"^\| `{pair}` \|.*\|$", (ROOT / "docs/partition.md").read_text(), re.MULTILINE)
    _, most, over, _, wins = [cell.strip() for cell in line.strip("|").split("|")]
    assert most == f"{figures['partition.most_gain']:.2f}"
    name = "partition.speedup_over_best"
    assert over == f"{figures[name]:.2f} ({figures[f'{name}.low']:.2f} to {figures[f'{name}.high']:.2f})"
    table = pd.read_csv(ROOT / f"results/{pair}/partition/checked/tables/partition_checked.csv")
    counts = {
        "the plan for both": (table["way"] == PLANNED).sum(),
        "all cores": table["way"].str.startswith(ALL_CORES).sum(),
        "the GPU": (table["way"] == "gpu").sum(),
        "the CPU": (table["way"] == "cpu").sum(),
        "stock engines": table["way"].isin([*SETTINGS]).sum(),
    }
    told = {who: int(count) for who, count in re.findall(r"([a-zA-Z ]+?) on (\d+)", wins)}
    assert {who.strip(): count for who, count in told.items()} == {who: count for who, count in counts.items() if count}
    assert f"of {len(table)}" in wins, "models"
    assert sum(told.values()) == len(table)


PACKAGE = ROOT / "workflow/edgeplan"
PIPELINE: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
ALL = {name: stage.get("do", stage) for name, stage in PIPELINE.items()}
NAMES = [stage.name for stage in STAGES]
VALUES = yaml.safe_load((ROOT / "params.yaml").read_text())


def test_what_is_made_from_the_stages_is_current() -> None:
    assert [path for path, text in written().items() if text != (ROOT / path).read_text()] == [], (
        "if numbers that a stage measures may differ, give their protocol a new name (in words: 'onnxruntime/2') and "
        "CHANGELOG.md a line; then, or if none can: make wire, make relock"
    )
    assert len(set(NAMES)) == len(NAMES)


def test_pages_and_schemas_are_current() -> None:
    assert (ROOT / code_documents.PAGE).read_text() == code_documents.page(), "run `make operators-page`"
    for name in code_documents.SCHEMAS:
        assert (ROOT / f"config/schema/{name}.schema.json").read_text() == code_documents.schema(name), "run `make schema`"


@pytest.mark.parametrize("stage", STAGES, ids=NAMES)
def test_a_function_gets_all_that_it_asks_for_and_nothing_twice(stage: Stage) -> None:
    function = description.named_object(stage.function)
    asked = inspect.signature(function).parameters
    paths = {**stage.inputs, **stage.outputs, **stage.folders}
    wildcards = {name: name for name in stage.targets.wildcards} if stage.targets else {}
    given = stage_arguments(function, load_params(ROOT / "params.yaml"), stage.params, paths, wildcards)
    assert given.keys() >= {name for name, one in asked.items() if one.default is one.empty}
    groups = (stage.folders, stage.inputs, stage.outputs)
    twice = [name for name in asked if name not in stage.folders and sum(name in group for group in groups) > 1]
    assert not twice, "which of the paths is meant?"


def test_a_stage_that_lacks_an_argument_is_told() -> None:
    def function(params: object, rows: Path) -> None: ...

    with pytest.raises(ParamsError, match="declares no 'rows'"):
        stage_arguments(function, load_params(ROOT / "params.yaml"), (), {}, {})


def test_texts_for_people_lie_in_no_folder_that_a_stage_besides_those_of_pages_depends_on() -> None:
    texts = [path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("captions/*/*.md")]
    assert len(texts) > 50
    writing = {stage.name for stage in STAGES if stage.function.startswith("edgeplan.report.")}
    for name, stage in ALL.items():
        own = tuple(stage.get("deps", []))
        assert name in writing or [text for text in texts if covered(text, own)] == [], name
    assert [name for name in texts if not covered(name, tuple(REPORT.read))] == []


def test_neutral_modules_exist() -> None:
    assert [pattern for pattern in NEUTRAL if not list(PACKAGE.glob(pattern))] == []


@pytest.mark.parametrize("stage", STAGES, ids=NAMES)
def test_code_of_a_stage_reads_no_other_params(stage: Stage) -> None:
    source = Path(inspect.getsourcefile(description.named_object(stage.function)) or "").read_text()
    read = set(re.findall(r"\bparams\.(\w+)", source)) & set(Params.model_fields)
    assert read <= set(stage.params)


def test_every_section_of_params_is_read_by_a_stage() -> None:
    read = {section.partition(".")[0] for stage in STAGES for section in stage.params}
    assert read | {"devices"} == set(Params.model_fields) == set(VALUES)


def test_a_stage_is_built_before_what_reads_it() -> None:
    for place, stage in enumerate(STAGES):
        earlier = [path for other in STAGES[:place] for path in other.read]
        assert not [path for path in stage.written if covered(path, tuple(earlier)) and path not in stage.read], stage.name


def test_tables_are_built_without_predictors_and_the_nodes_that_are_told() -> None:
    """Both fill the cache alone, and give the same again. The order is that of reading."""
    assert [*rebuilt(VALUES), "report"] == [name for name in NAMES if name not in ("nodes", "training")]


def test_one_stage_takes_in_what_every_chapter_hands_over() -> None:
    """Each chapter writes its own figures of merit and pages; the paths of both are those of the registry."""
    parts = parts_of_report(VALUES)
    for name, chapter in CHAPTERS.items():
        for target in chapter.targets.of(VALUES):
            own = [f"results/chapters/{next(iter(target.values()))}/{name}{end}" for end in (".json", ".page.json")]
            assert [parts[path] for path in own] == [name, name]
    assert covered(next(iter(parts)), REPORT.read)
    assert list(parts).count("results/chapters/transfer/transfer.page.json") == 1
    assert set(REPORT.params) == {stage.targets.path for stage in STAGES if stage.targets}
    merged = [path for stage in STAGES for path in stage.metrics]
    assert len(set(merged)) == len(merged)


def test_chapters_have_the_same_names_and_registries() -> None:
    for name, chapter in CHAPTERS.items():
        folder = PACKAGE / "chapters" / name
        assert chapter.name == name
        assert {path.name for path in folder.iterdir()} >= {"chapter.py", "settings.py", "stages", "evaluation"}
        assert (folder / "paper.py").is_file() == (chapter.paper != "none")
        for kind, registry in (("tables", chapter.tables), ("figures", chapter.figures)):
            captions, shown = folder / "captions" / kind, description.named_object(registry)
            assert {path.stem for path in captions.iterdir()} == set(shown)
            assert all(one.title and caption(captions, name) for name, one in shown.items())


_INSTALLED = {"dvc", "snakemake", "lightgbm", "onnxruntime", "openvino", "setuptools"}


def test_locks_are_hashed_name_no_index_or_host_and_agree() -> None:
    pinned: dict[str, set[str]] = {}
    for name in ("requirements.lock", "requirements-dev.lock", "requirements-no-deps.lock"):
        text = (ROOT / name).read_text()
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--trusted-host|file:", text)
        pinned[name] = set(re.findall(r"^([A-Za-z0-9_.-]+==\S+).*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))
        assert len(pinned[name]) == len(re.findall(r"^[A-Za-z0-9_.-]+==", text, re.MULTILINE))
    assert pinned["requirements.lock"] <= pinned["requirements-dev.lock"]
    assert {one.partition("==")[0] for one in pinned["requirements.lock"]} >= _INSTALLED
    assert [one.partition("==")[0] for one in pinned["requirements-no-deps.lock"]] == ["pnnx"]


@pytest.mark.parametrize("name", ["tiny", "quick"])
def test_no_value_of_a_profile_is_split_by_a_shell(name: str) -> None:
    values = [*overrides(profile(ROOT / f"config/profiles/{name}.yaml"))]
    assert [value for value in values if "=" not in value or len(value.split()) > 1] == []


def test_the_full_profile_puts_the_committed_values_back(tmp_path: Path) -> None:
    committed = {"seed": 7, "training": {"trials": 12, "seeds": [0, 1]}, "truth": {"repeat": ["cpu-a"]}}
    changed = {**committed, "training": {"trials": 3, "seeds": [0, 1]}, "truth": {"repeat": []}}
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(committed))
    for command in (("init", "-q"), ("add", "params.yaml"), (*author, "commit", "-qm", "one")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    for params, printed in ((committed, ""), (changed, '-S training.trials=12 -S truth.repeat=["cpu-a"]')):
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
        words = [sys.executable, "-m", "edgeplan.chapters.profiles", ROOT / "config/profiles/full.yaml"]
        assert subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip() == printed
