"""The stage files, dvc.yaml, params.yaml and the package say the same about what a stage depends on."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgeplan.devices.config import load_device
from edgeplan.params import Params, load_params

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workflow/edgeplan"
PIPELINE: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
#: The first stage builds nothing: DVC runs its script, without Snakemake.
CHECK = "check"
ALL = {name: stage.get("do", stage) for name, stage in PIPELINE.items()}
STAGES = {name: stage for name, stage in ALL.items() if name != CHECK}
#: Modules that word messages and check values: results do not depend on them, so changing them runs no stage again.
NEUTRAL = {"errors.py", "progress.py", "params.py", "terminal.py", "workspace.py", "writable.py"}


def _paths(entries: list[str | dict[str, Any]]) -> list[str]:
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def _outputs(stage: dict[str, Any]) -> list[str]:
    return [path for kind in ("outs", "metrics", "plots") for path in _paths(stage.get(kind, []))]


def _module_files(name: str) -> set[Path]:
    """The files that importing `edgeplan.a.b` reads: the module and the packages above it."""
    parts = name.split(".")
    found = {PACKAGE.joinpath(*parts[1:depth], "__init__.py") for depth in range(1, len(parts) + 1)}
    found.add(PACKAGE.joinpath(*parts[1:]).with_suffix(".py"))
    return {path for path in found if path.is_file()}


def _imports(path: Path) -> set[Path]:
    found: set[Path] = set()
    if path == PACKAGE / "__init__.py":
        return found  # it hands out the interface on first use, which no stage asks for
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "edgeplan":
            found |= _module_files(node.module)
            for alias in node.names:
                found |= _module_files(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "edgeplan":
                    found |= _module_files(alias.name)
    return found


def imported(script: Path) -> set[str]:
    """All files of the package that a script imports, directly or not, relative to the root; not through neutral modules."""
    seen: set[Path] = set()
    ahead = _imports(script)
    while ahead:
        path = ahead.pop()
        if path not in seen and path.relative_to(PACKAGE).as_posix() not in NEUTRAL:
            seen.add(path)
            ahead |= _imports(path)
    return {path.relative_to(ROOT).as_posix() for path in seen}


def _covered(path: str, dependencies: list[str]) -> bool:
    return any(path == known or path.startswith(f"{known}/") for known in dependencies)


def _needed(name: str) -> set[str]:
    """The files of the package that the scripts of a stage import."""
    scripts = (name,) if name == CHECK else ("stage", name)
    return set().union(*(imported(ROOT / f"workflow/scripts/{script}.py") for script in scripts))


@pytest.mark.parametrize("name", ALL)
def test_stage_depends_on_all_code_it_imports(name: str) -> None:
    dependencies = _paths(ALL[name]["deps"])
    assert sorted(path for path in _needed(name) if not _covered(path, dependencies)) == []


@pytest.mark.parametrize("name", ALL)
def test_stage_depends_on_no_code_it_does_not_import(name: str) -> None:
    needed = _needed(name)
    own = [path for path in _paths(ALL[name]["deps"]) if path.startswith("workflow/edgeplan/")]
    assert [path for path in own if not any(_covered(file, [path]) for file in needed)] == []


def test_params_are_checked_first_and_as_a_whole() -> None:
    """DVC takes the stages in the order of the file where they do not depend on each other."""
    assert next(iter(PIPELINE)) == CHECK
    assert PIPELINE[CHECK]["params"] == [{"params.yaml": None}]
    assert "config/devices" in PIPELINE[CHECK]["deps"]
    assert not _outputs(PIPELINE[CHECK]), "what it wrote would make the stages that read it run again"
    assert PIPELINE[CHECK]["cmd"] == f"PYTHONPATH=workflow python workflow/scripts/{CHECK}.py"


def test_paths_of_stages_exist() -> None:
    missing = [
        path
        for name, stage in ALL.items()
        for path in _paths(stage["deps"])
        if path.startswith(("workflow/", "docs/")) and not (ROOT / path).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("name", STAGES)
def test_stage_names_the_params_that_its_snakefile_reads(name: str) -> None:
    text = (ROOT / f"workflow/{name}.smk").read_text()
    read = re.findall(r'"(\w+)"', " ".join(re.findall(r"sections\(([^)]*)\)", text)))
    assert sorted(read) == sorted(STAGES[name].get("params", []))
    assert set(re.findall(r"config\[['\"](\w+)", text)) <= set(read)


@pytest.mark.parametrize("name", STAGES)
def test_code_of_a_stage_reads_no_other_params(name: str) -> None:
    read = set(re.findall(r"\bparams\.(\w+)", (PACKAGE / f"pipeline/{name}.py").read_text())) & set(Params.model_fields)
    assert read <= set(STAGES[name].get("params", []))


def test_every_section_of_params_is_read_by_a_stage() -> None:
    read = {section for stage in STAGES.values() for section in stage.get("params", [])}
    assert read | {"devices"} == set(Params.model_fields)


@pytest.mark.parametrize("name", STAGES)
def test_stage_writes_what_its_snakefile_writes(name: str) -> None:
    text = (ROOT / f"workflow/{name}.smk").read_text()
    block = text.split("    output:\n")[1].split("    log:\n")[0]
    tracked = [path.replace("${item}", "{device}") for path in _outputs(STAGES[name])]
    assert [path for path in re.findall(r'"((?:results|data)/[^"]+)"', block) if not _covered(path, tracked)] == []


@pytest.mark.parametrize("name", STAGES)
def test_stage_reads_what_its_snakefile_reads(name: str) -> None:
    block = (ROOT / f"workflow/{name}.smk").read_text().partition("    input:\n")[2].split("    output:\n")[0]
    read = [re.sub(r"\{config\['transfer'\]\['(\w+)'\]\}", r"{\1}", path) for path in re.findall(r'f?"([^"]+)"', block)]
    tracked = [re.sub(r"\$\{(?:transfer\.)?(\w+)\}", r"{\1}", path) for path in _paths(STAGES[name]["deps"])]
    assert [path for path in read if not _covered(path.replace("{device}", "{item}"), tracked)] == []


def test_only_measuring_stages_keep_rows_and_hold_the_device() -> None:
    keeping = {name for name, stage in STAGES.items() if any(path.startswith("data/rows/") for path in _outputs(stage))}
    holding = {name for name in STAGES if "device=1" in (ROOT / f"workflow/{name}.smk").read_text()}
    assert keeping == holding == {"fusion", "sampling", "calibration", "truth", "unseen", "cold_start"}
    for name in keeping:
        rows = next(out for out in STAGES[name]["outs"] if isinstance(out, dict) and next(iter(out)).startswith("data/rows/"))
        assert list(rows.values()) == [{"cache": False, "persist": True}]


@pytest.mark.parametrize("name", STAGES)
def test_stage_is_one_snakefile_run_under_the_lock(name: str) -> None:
    command = STAGES[name]["cmd"]
    assert command.startswith(f"flock .snakemake.lock snakemake --nolock -s workflow/{name}.smk ")
    target = command.split()[-1].replace("${item}", "{device}")
    output = (ROOT / f"workflow/{name}.smk").read_text().split("    output:\n")[1].split("    log:\n")[0]
    assert f'"{target}"' in output


@pytest.mark.parametrize("name", STAGES)
def test_what_a_stage_keeps_is_made_again(name: str) -> None:
    """DVC leaves outputs that persist; Snakemake, which looks at time stamps, would take them for up to date."""
    kept = [
        next(iter(out)) for out in STAGES[name]["outs"] if isinstance(out, dict) and next(iter(out.values())).get("persist")
    ]
    written = [path for path in kept if path.startswith("results/") and not path.endswith("speed.json")]
    assert (" --force " in STAGES[name]["cmd"]) == bool(written)


def test_root_snakefile_composes_all_stages() -> None:
    text = (ROOT / "Snakefile").read_text()
    assert re.findall(r'include: "workflow/(\w+)\.smk"', text) == ["common", *ALL]


def test_make_tables_builds_all_but_predictors_again() -> None:
    """They take minutes to train, and give the same again; the other stages, in the order in which they build on each other.

    No rows of architectures outside the zoo's families are shipped: their stage runs for no device unless one is named.
    """
    (forced,) = re.findall(r"dvc repro --force --single-item (zoo .+)", (ROOT / "Makefile").read_text())
    wanted = forced.split()
    assert load_params(ROOT / "params.yaml").unseen.devices == []
    assert sorted(wanted) == sorted(STAGES.keys() - {"training", "unseen"})
    for place, name in enumerate(wanted):
        written = _outputs(STAGES[name])
        earlier = [path for other in wanted[:place] for path in _paths(STAGES[other]["deps"])]
        assert not set(written) & set(earlier), f"{name} comes too late"


def test_continuous_integration_runs_the_commands_that_the_readme_promises() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert subprocess.run(["bash", "-n", ROOT / ".ci/run"], check=False).returncode == 0
    run = (
        *("make lint", "make test", "make -C", "dvc repro", "edgeplan predict", "edgeplan device check", "snakemake --cores 2"),
        *("dvc exp run --temp", "dvc exp show", "dvc exp diff", "dvc metrics diff", "dvc plots diff", "dvc push", "dvc pull"),
    )
    assert [command for command in run if not re.search(rf"^{command}\b", script, re.MULTILINE)] == []


def test_chapters_are_gathered_by_the_report_alone() -> None:
    """One file of figures of merit a device: each chapter writes its own, the report merges them."""
    writing = {name for name, stage in STAGES.items() if "results/${item}/metrics.json" in _outputs(stage)}
    assert writing == {"report"}
    chapters = {path for stage in STAGES.values() for path in _outputs(stage) if "/chapters/" in path}
    named = ("prediction.json", "unseen.json", "cold_start.json", "cold_start.html")
    assert chapters == {f"results/${{item}}/chapters/{name}" for name in named}
    assert "results/${item}/chapters" in STAGES["report"]["deps"]


def test_cold_stages_run_on_the_devices_of_their_section() -> None:
    assert {name for name, stage in PIPELINE.items() if stage.get("foreach") == "${cold_start.devices}"} == {
        "cold_start",
        "cold_tables",
    }


def test_no_rule_runs_python_of_its_own() -> None:
    for path in (ROOT / "workflow").glob("*.smk"):
        assert not re.search(r"^\s+(run|shell):", path.read_text(), re.MULTILINE), path.name


@pytest.mark.parametrize("path", sorted((ROOT / "config/profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_profile_fits_the_schema(path: Path) -> None:
    def merge(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        for key in values:
            assert key in base, f"{path.name}: {key}"
        return base | {k: merge(base[k], v) if isinstance(v, dict) else v for k, v in values.items()}

    base = yaml.safe_load((ROOT / "params.yaml").read_text())
    Params.model_validate(merge(base, yaml.safe_load(path.read_text())))


def test_shipped_devices_are_valid_and_named_in_params() -> None:
    devices = [load_device(path) for path in sorted((ROOT / "config/devices").glob("*.yaml"))]
    params = load_params(ROOT / "params.yaml")
    assert set(params.devices) <= {device.name for device in devices}
    engines = {device.name: device.engine for device in devices}
    assert {engines[name] for name in params.cold_start.devices} == {"onednn"}
    assert {params.transfer.source, params.transfer.target} <= set(params.devices)


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
