"""Keys of shipped rows, computed by the present code, find every row; and what counts in digests of sources."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from shipped_params import PARAMS_FILE

from edgeplan.chapters.cold_start.measuring import artefacts
from edgeplan.chapters.cold_start.measuring.planning import PLAN_COLUMNS
from edgeplan.chapters.cold_start.measuring.runs import ColdSettings, PlannedRun, run_key
from edgeplan.chapters.cold_start.stages import cold_start as stage
from edgeplan.chapters.cold_start.stages.cold_start import CHECK_COLUMNS, check_key
from edgeplan.chapters.registry import load_params, params_on
from edgeplan.devices.config import load_device
from edgeplan.engines import registry
from edgeplan.engines.registry import ENGINES, engine_protocol
from edgeplan.measurement.bench import row_key
from edgeplan.measurement.settings import MeasurementSettings, node_settings
from edgeplan.planning.document import Plan, plan_of
from edgeplan.profiling import store
from edgeplan.profiling.settings import ProfileSettings, cores_of
from edgeplan.profiling.store import identity
from edgeplan.runtime.library import LibraryInfo
from edgeplan.support import sources
from edgeplan.support.frames import read_parquet, table_store
from edgeplan.support.sources import essence
from edgeplan.support.store import Protocol, key_of

ROOT = Path(__file__).parents[2]
PARAMS = load_params(PARAMS_FILE)
ROWS = ROOT / "data/rows"
COLD = ROWS / "cpu-onednn/cold_start"
#: The plan that each of the chapter's own settings runs where the run's name holds none.
PLANS = {"edgeplan": "optimal", "edgeplan-evicted": "evicted"}


@pytest.mark.committed
def test_the_settings_that_tests_build_on_are_the_committed_ones() -> None:
    assert PARAMS_FILE.read_text() == (ROOT / "params.yaml").read_text(), "cp params.yaml tests/helpers"


@pytest.mark.parametrize("stage", ["fusion", "sampling", "calibration", "truth"])
@pytest.mark.parametrize("device", PARAMS.devices)
@pytest.mark.committed
def test_rows_of_kernels_and_models_are_found(device: str, stage: str) -> None:
    described = load_device(ROOT / f"config/devices/{device}.yaml")
    (stored,) = shipped(ROWS / device / stage)
    known = json.loads(stored.read_text())
    measured_by, mapped_by = (engine_protocol(face, described.engine) for face in ("measure", "mapping"))
    measured = params_on(PARAMS, ROOT / f"config/devices/{device}.yaml").model_dump()["measurement"]
    settings = MeasurementSettings.model_validate(measured)
    own = node_settings(settings) if stage == "sampling" else settings
    keys = {row_key(described, own, known["engine_version"], known["fingerprint"], name)[0] for name in measured_by.readable}
    assert stored.stem in keys
    subjects = pq.read_table(stored.with_name(f"{stored.stem}-rows-000.parquet"))["subject"].to_pylist()
    assert {s.partition("-")[2].removeprefix("nodes-") for s in subjects} <= {"", *mapped_by.readable}
    tables = [stored.with_name(f"executed-{stored.stem}-{name.replace('/', '-')}.parquet") for name in mapped_by.readable]
    assert stage != "fusion" or any(table.is_file() for table in tables)


def shipped(folder: Path) -> list[Path]:
    """Identities of the rows that are committed, not of those of a machine that ran the tests."""
    told = subprocess.run(["git", "ls-files", "--", f"{folder}/*.json"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in told.stdout.splitlines()]


@pytest.fixture
def _as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the protocols by which the shipped rows were measured."""
    known = registry.engine_protocol
    monkeypatch.setattr(registry, "engine_protocol", lambda face, engine: earliest(known(face, engine)))
    for module, name in ((store, "PROTOCOL"), (artefacts, "RUNTIME"), (stage, "RUNTIME")):
        monkeypatch.setattr(module, name, earliest(getattr(module, name)))


def earliest(protocol: Protocol) -> Protocol:
    return Protocol(protocol.readable[-1])


#: Settings and plans that are measured no more, whose rows stay.
GONE = ("mnn", "openvino-cached", "nnv12-reprofiled")


def plans() -> dict[str, Plan]:
    """The executed plans of the shipped results by model, plan and threads."""
    frame = read_parquet(ROOT / "results/cpu-onednn/cold/plans.parquet", "model", "plan", "threads", "document")
    names = frame["model"] + "-" + frame["plan"] + "-" + frame["threads"].astype(str)
    return {name: plan_of(text, name) for name, text in zip(names, frame["document"], strict=True)}


def cold_keys(made: dict[str, Plan]) -> Iterator[tuple[str, str]]:
    """The key of each journalled run, and that by which the present code looks for it."""
    machine = next(iter(made.values())).machine
    digests = {name.partition("-")[0]: plan.model_sha256[:20] for name, plan in made.items()}
    s = PARAMS.cold_start
    for line in (COLD / "runs.jsonl").open():
        record = json.loads(line)
        run = PlannedRun(**{name: record[name] for name in PlannedRun.__slots__})
        model, _, variant = run.model.partition("--")
        if run.setting in GONE or variant in GONE:
            continue
        version, uneven = record.get("result", {}).get("engine_version", ""), "asymmetric" in variant
        if run.setting.startswith("edgeplan"):
            variant = PLANS["edgeplan"] if variant.startswith("load-") else variant
            plan = made[f"{model}-{variant or PLANS[run.setting]}-{run.threads}"]
            version = artefacts.plan_version(plan, plan.library_version)
        for cpus in ((), (0, 1)) if uneven or not run.setting else ((0, 1),):
            settings = ColdSettings(cpus=cpus, warm_runs=s.warm_runs, seed=PARAMS.seed)
            yield record["key"], run_key(run, machine, digests[model], version, settings)


def kept(kind: str, *columns: str) -> frozenset[str]:
    """Keys of what is kept beside the rows."""
    return frozenset(table_store(COLD / kind, *columns).query())


@pytest.mark.usefixtures("_as_shipped")
@pytest.mark.committed
def test_every_cold_start_is_found() -> None:
    pairs = list(cold_keys(plans()))
    assert len({stored for stored, _ in pairs}) > 2000
    assert {stored for stored, _ in pairs} == {stored for stored, found in pairs if stored == found}


@pytest.mark.usefixtures("_as_shipped")
@pytest.mark.committed
def test_profiles_and_checks_are_found() -> None:
    made = plans()
    optimal = {name.partition("-")[0]: plan for name, plan in made.items() if name.endswith("-optimal-2")}
    s = PARAMS.cold_start
    assert kept("checks", *CHECK_COLUMNS) == {
        f"{name}-{check_key(p.model_sha256[:20], p.library_version, p.isa, PARAMS.seed, s.checked_choices, s.threads)}"
        for name, p in optimal.items()
    }
    found = {name.rpartition("-")[0] for name in kept("plans", *PLAN_COLUMNS)}
    current = {name for name in found if name.partition("-")[2].rpartition("-")[0] not in GONE}
    assert current == made.keys(), "every executed plan has been kept, under its key"
    (stored,) = (COLD / "profiles").glob("????????????.json")
    known = json.loads(stored.read_text())
    library = (known[name] for name in ("library_version", "library_commit", "cpu_runtime", "isa"))
    info = LibraryInfo("", *library, block=16)
    settings = ProfileSettings(
        blocks=s.profile_blocks, warm_runs=s.profile_warm_runs, max_noisy_share=s.profile_max_noisy_share
    )
    what = identity(info, settings, cores_of(load_device(ROOT / "config/devices/cpu-onednn.yaml")))
    assert key_of({**what, "fingerprint": known["fingerprint"], "big_cores": known["big_cores"]}) == stored.stem


def test_names_of_engines_protocols_are_each_used_once() -> None:
    faces = [(face, name) for name, known in registry._own().items() for face in known.protocols]
    names = [name for face, engine in faces for name in engine_protocol(face, engine).readable]
    assert len(names) == len(set(names))
    assert {("measure", name) for name in ENGINES} | {("mapping", name) for name in ENGINES} <= {*faces}


SOURCE = '''"""What it is."""

import os
from a import (
    b,
)


class C:
    """A class."""

    x = "# no comment"  # a comment


def f(n: int) -> str:
    """A function."""
    import late

    return f"{n} é"  # é
'''


def test_words_about_code_and_its_imports_do_not_count() -> None:
    other = SOURCE.replace("What it is.", "Said anew.").replace("A class.", "").replace("# a comment", "").replace("# é", "")
    other = other.replace("import os\n", "").replace("from a import (\n    b,\n)", "from moved import b, c")
    other = other.replace("A function.", "A function.\n\n    Args:\n        n: é\n    ").replace("\n\n\n", "\n")
    assert essence(other) == essence(SOURCE)


@pytest.mark.parametrize(
    ("before", "after"), [("n: int", "m: int"), ("x = ", "y = "), ("no comment", "other"), ("{n} ", "{n}: ")]
)
def test_names_and_literals_count(before: str, after: str) -> None:
    assert essence(SOURCE.replace(before, after)) != essence(SOURCE)


def test_words_and_places_of_code_are_no_part_of_its_digest(tmp_path: Path) -> None:
    def digest(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        sources.file_digest.cache_clear()
        return sources.digest([path])

    first = digest("a/one.py", '"""Words."""\n\nX = 1\n')
    assert digest("b/two.py", '"""Other words."""\n\nX = 1  # and more\n') == first
    assert digest("b/two.py", "X = 2\n") != first
    (tmp_path / "a/kernel.cl").write_text("x")
    sources._beside.cache_clear()
    assert digest("a/one.py", "X = 1\n") != first
