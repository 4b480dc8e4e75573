"""Generated files are what their generators write now; stages are declared once, and functions, params and paths fit."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgeplan.chapters.base import Stage, covered, load
from edgeplan.chapters.params import Params, load_params
from edgeplan.chapters.registry import CHAPTERS, REPORT, STAGES, merged_figures, parts_of_report, rebuilt
from edgeplan.chapters.running import CHECK, arguments
from edgeplan.chapters.wiring import written
from edgeplan.errors import ParamsError
from edgeplan.reporting.page import caption
from edgeplan.support.sources import NEUTRAL, imported

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

import operators_page  # noqa: E402  a script, of the folder above
import params_schema  # noqa: E402  likewise

PACKAGE = ROOT / "workflow/edgeplan"
PIPELINE: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
ALL = {name: stage.get("do", stage) for name, stage in PIPELINE.items()}
NAMES = [stage.name for stage in STAGES]
VALUES = yaml.safe_load((ROOT / "params.yaml").read_text())


@pytest.mark.parametrize("path", sorted(written()), ids=str)
def test_what_is_made_from_the_stages_is_current(path: Path) -> None:
    assert written()[path] == (ROOT / path).read_text(), (
        "if numbers that a stage measures may differ, give their protocol a new name (in words: 'onnxruntime/2') and "
        "CHANGELOG.md a line; then, or if none can: make wire, make relock"
    )


def test_names_of_stages_are_each_used_once() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_pages_and_schemas_are_current() -> None:
    schemas = {
        "params": params_schema.schema,
        "worker": params_schema.worker_schema,
        "comparison": params_schema.comparison_schema,
    }
    assert (ROOT / operators_page.PAGE).read_text() == operators_page.page(), "run `make operators-page`"
    for name, schema in schemas.items():
        assert (ROOT / f"config/schema/{name}.schema.json").read_text() == schema(), "run `make schema`"


@pytest.mark.parametrize("stage", STAGES, ids=NAMES)
def test_a_function_gets_all_that_it_asks_for_and_nothing_twice(stage: Stage) -> None:
    function = load(stage.function)
    asked = inspect.signature(function).parameters
    paths = {**stage.inputs, **stage.outputs, **stage.folders}
    wildcards = {name: name for name in stage.targets.wildcards} if stage.targets else {}
    given = arguments(function, load_params(ROOT / "params.yaml"), stage.params, paths, wildcards)
    assert given.keys() >= {name for name, one in asked.items() if one.default is one.empty}
    groups = (stage.folders, stage.inputs, stage.outputs)
    twice = [name for name in asked if name not in stage.folders and sum(name in group for group in groups) > 1]
    assert not twice, "which of the paths is meant?"


def test_a_stage_that_lacks_an_argument_is_told() -> None:
    def function(params: object, rows: Path) -> None: ...

    with pytest.raises(ParamsError, match="declares no 'rows'"):
        arguments(function, load_params(ROOT / "params.yaml"), (), {}, {})


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


def test_what_is_no_dependency_is_not_followed() -> None:
    assert not any(
        path.name == "errors.py" or path.match("chapters/params.py")
        for path in imported("edgeplan.chapters.prediction.stages.truth")
    )


def _paths(entries: list[str | dict[str, Any]]) -> list[str]:
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def _outputs(stage: dict[str, Any]) -> list[str]:
    return [path for kind in ("outs", "metrics", "plots") for path in _paths(stage.get(kind, []))]


def test_params_are_checked_first_and_as_a_whole() -> None:
    """DVC takes the stages in the order of the file where they do not depend on each other."""
    assert next(iter(PIPELINE)) == CHECK
    assert PIPELINE[CHECK]["params"][0] == {"params.yaml": None}
    assert {"config/devices", "config/pairs"} <= set(PIPELINE[CHECK]["deps"])
    assert not _outputs(PIPELINE[CHECK]), "what it wrote would make the stages that read it run again"
    assert PIPELINE[CHECK]["cmd"] == f"edgeplan stage {CHECK}"


@pytest.mark.parametrize("stage", STAGES, ids=NAMES)
def test_code_of_a_stage_reads_no_other_params(stage: Stage) -> None:
    source = Path(inspect.getsourcefile(load(stage.function)) or "").read_text()
    read = set(re.findall(r"\bparams\.(\w+)", source)) & set(Params.model_fields)
    assert read <= set(stage.params)


def test_every_section_of_params_is_read_by_a_stage() -> None:
    read = {section.partition(".")[0] for stage in STAGES for section in stage.params}
    assert read | {"devices"} == set(Params.model_fields) == set(VALUES)


def test_a_stage_is_built_before_what_reads_it() -> None:
    for place, stage in enumerate(STAGES):
        earlier = [path for other in STAGES[:place] for path in other.read]
        assert not [path for path in stage.written if covered(path, tuple(earlier)) and path not in stage.read], stage.name


def test_make_tables_builds_all_but_predictors_again() -> None:
    """And but the nodes that are told: both fill the cache alone, and give the same again. The order is that of reading."""
    assert (
        "dvc repro --force --single-item $$(python -m edgeplan.chapters.registry) report\n" in (ROOT / "Makefile").read_text()
    )
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
    assert merged_figures(VALUES) == [
        f"results/{target}/metrics.json"
        for target in (
            *("cpu-onnxruntime", "cpu-openvino", "cpu-onednn", "opencl-pocl", "cuda-h200"),
            *("pair-pocl", "pair-h200-8sm"),
        )
    ]


def test_a_run_on_one_device_takes_in_nothing_of_another() -> None:
    parts = parts_of_report({**VALUES, "devices": ["cpu-onnxruntime"]})
    assert not [path for path in parts if "cpu-openvino" in path]
    assert [path for path in parts if path.endswith("cpu-onednn/prediction.json")] == []


def test_chapters_have_the_same_names_and_registries() -> None:
    for name, chapter in CHAPTERS.items():
        folder = PACKAGE / "chapters" / name
        assert chapter.name == name
        assert {path.name for path in folder.iterdir()} >= {"chapter.py", "settings.py", "stages", "evaluation"}
        assert (folder / "paper.py").is_file() == (chapter.paper != "none")
        for registry in (chapter.tables, chapter.figures):
            assert all(shown.title for shown in load(registry).values())
        for kind, registry in (("tables", chapter.tables), ("figures", chapter.figures)):
            captions = folder / "captions" / kind
            assert {path.stem for path in captions.iterdir()} == set(load(registry))
            assert all(caption(captions, shown) for shown in load(registry))


_INSTALLED = {"dvc", "snakemake", "lightgbm", "onnxruntime", "openvino", "setuptools"}


@pytest.mark.parametrize(
    ("name", "packages"),
    [("requirements.lock", _INSTALLED), ("requirements-dev.lock", _INSTALLED), ("requirements-no-deps.lock", {"pnnx"})],
)
def test_lock_is_hashed_and_names_no_index_or_host(name: str, packages: set[str]) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--trusted-host|file:", text)
    pinned = re.findall(r"^([A-Za-z0-9_.-]+)==\S+.*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert len(pinned) == len(re.findall(r"^[A-Za-z0-9_.-]+==", text, re.MULTILINE))
    assert packages <= set(pinned)


def test_development_lock_agrees_with_the_lock() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^[A-Za-z0-9_.-]+==[^\\\n]+", (ROOT / name).read_text(), re.MULTILINE))

    assert pins("requirements.lock") <= pins("requirements-dev.lock")
