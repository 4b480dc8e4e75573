"""Generated files are what their generators write now; stages are declared once, and functions, params and paths fit."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgeplan.chapters.base import Stage, covered
from edgeplan.chapters.profiles import overrides, profile
from edgeplan.chapters.registry import CHAPTERS, REPORT, STAGES, Params, load_params, parts_of_report, rebuilt
from edgeplan.chapters.running import stage_arguments
from edgeplan.chapters.wiring import written
from edgeplan.engines import description
from edgeplan.errors import ParamsError
from edgeplan.reporting.page import caption
from edgeplan.support.sources import NEUTRAL

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

import code_documents  # noqa: E402  a script, of the folder above

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
        own = tuple(_paths(stage.get("deps", [])))
        assert name in writing or [text for text in texts if covered(text, own)] == [], name
    assert [name for name in texts if not covered(name, tuple(REPORT.read))] == []


def test_neutral_modules_exist() -> None:
    assert [pattern for pattern in NEUTRAL if not list(PACKAGE.glob(pattern))] == []


def _paths(entries: list[str | dict[str, Any]]) -> list[str]:
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


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
        for registry in (chapter.tables, chapter.figures):
            assert all(shown.title for shown in description.named_object(registry).values())
        for kind, registry in (("tables", chapter.tables), ("figures", chapter.figures)):
            captions = folder / "captions" / kind
            assert {path.stem for path in captions.iterdir()} == set(description.named_object(registry))
            assert all(caption(captions, shown) for shown in description.named_object(registry))


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
