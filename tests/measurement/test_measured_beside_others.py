"""What was measured beside other work says so, and is measured again once that has left."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tiny_profiled import QUICK, cores, own_state, tiny  # noqa: F401  a fixture

from edgeplan.chapters.cold_start.planners.registry import plan_start
from edgeplan.chapters.partition.measuring import rows as pair_rows
from edgeplan.cli.cold_start import noise_line
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement import others
from edgeplan.measurement.others import Others, worth_again
from edgeplan.planning.document import plan_of, plan_text
from edgeplan.profiling import profiler, store
from edgeplan.profiling.profiler import profile_model
from edgeplan.profiling.store import ProfileStore, Row, identity
from edgeplan.profiling.subjects import target_of
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.support.frames import table_store

_BURN = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass\n"


def test_work_of_this_process_and_of_its_children_is_its_own() -> None:
    before = others._own_ticks()
    subprocess.run([sys.executable, "-c", _BURN], check=True)
    ended = others._own_ticks()
    assert ended - before >= 35
    with subprocess.Popen([sys.executable, "-c", _BURN + "print(1, flush=True)\ninput()"], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert others._own_ticks() - ended >= 35  # it runs still
        child.communicate(b"\n")


@pytest.mark.long
def test_work_of_strangers_is_seen() -> None:
    """The loop is started by a process that ends, so that it is nobody's child here."""
    loop = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass\n"
    start = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {loop!r}], stdout=-3).pid)"
    watch = Others()
    pid = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True).stdout.strip()
    try:
        time.sleep(1)
        assert 0.02 < watch.share() <= 1
    finally:
        subprocess.run(["kill", "-9", pid], check=True)


@pytest.fixture(autouse=True)
def _as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests are not to measure again because of each other."""
    monkeypatch.setattr(others, "DISTURBED", 0.1)


@pytest.mark.parametrize(("then", "now", "again"), [(0.05, 0.0, False), (0.5, 0.4, False), (0.5, 0.1, True), (0.3, 0.0, True)])
def test_it_is_worth_measuring_again_where_others_have_left(
    then: float, now: float, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Others, "share", lambda _: now)
    assert worth_again(then) is again


def _row(name: str, measured_at: float, share: float = 0.0) -> Row:
    return Row(name, "jit", 0, 4, 4, 0, {"create:big": (measured_at,)}, measured_at).beside(share)


@pytest.mark.parametrize("first", [True, False])
def test_the_less_disturbed_row_counts_whichever_is_read_first(first: bool, tmp_path: Path) -> None:
    what = {"what": "any"}
    kept = ProfileStore(tmp_path / "x" / "cold", what)
    loud, quiet = _row("s", 1.0, 0.5), _row("s", 2.0)
    kept.add([loud if first else quiet])
    kept.set_aside(["s"])
    assert not kept.has("s")
    kept.add([quiet if first else loud, _row("t", 3.0)])
    for found in (kept, ProfileStore(tmp_path / "x" / "cold", what)):
        assert [row.measured_at for row in found.rows("s")] == [2.0]
    kept.merge()
    assert [row.measured_at for row in ProfileStore(tmp_path / "x" / "cold", what).rows("s")] == [2.0]


def test_a_row_that_was_measured_again_goes_to_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_FORM", replace(store._FORM, most=2))
    folder = tmp_path / "x" / "cold"
    kept = ProfileStore(folder, {"what": "any"})
    kept.add([_row(name, 1.0, 0.4 if name == "b" else 0.0) for name in "abcd"])
    kept.merge()
    kept.set_aside(["b"])
    kept.add([_row("b", 2.0)])
    kept.merge()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "no journal"))
    found = ProfileStore(folder, {"what": "any"})
    assert {row.signature: row.measured_at for row in found.all_rows()} == {"a": 1.0, "b": 2.0, "c": 1.0, "d": 1.0}
    assert len(list(folder.glob("*.parquet"))) == 3, "full files are not written again: git stores them once"
    assert {name: rows[0].measured_at for name, rows in store.profile_rows(folder, kept.key).items()}["b"] == 2.0


@pytest.mark.long
def test_a_disturbed_profile_is_taken_again_and_a_plan_of_one_says_so(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_onnx(tiny(), tmp_path / "tiny.onnx")
    what, folder = identity(dnnl.info, QUICK, cores()), tmp_path / "x" / "cold"
    kept = ProfileStore(folder, what)

    def profiled() -> float:
        (found,) = profile_model(dnnl, model, tiny(), QUICK, cores=cores(), name="tiny", store=kept, layouts=("nhwc",))
        made = plan_start((found,), "optimal", target_of(model, dnnl, 2))
        assert plan_of(plan_text(made), "").others == made.others == round(found.others, 4)
        assert ("planned again there" in noise_line(made)) == (found.others > 0.1)
        return found.others

    monkeypatch.setattr(Others, "share", lambda _: 0.5)
    assert profiled() == 0.5
    assert all(row.others == 0.5 for row in kept.all_rows())
    kept = ProfileStore(folder, what)
    assert profiled() == 0.5  # as loud as before
    assert kept.measured == 0
    monkeypatch.setattr(Others, "share", lambda _: 0.01)
    monkeypatch.setattr(profiler, "worth_again", lambda share, _: share > 0.1)
    assert profiled() == 0.0
    assert kept.measured == len(kept.all_rows()) > 0
    kept = ProfileStore(folder, what)
    assert profiled() == 0.0
    assert kept.measured == 0


def test_a_pairs_rows_are_measured_again_once_others_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> pair_rows.PartitionRows:
        return pair_rows.PartitionRows(tmp_path, "pair", {"kind": ("us",)})

    def found(us: float) -> list[float]:
        frame = opened().found("kind", 1, lambda: pd.DataFrame({"us": [us]}))
        assert list(frame.columns) == ["us", pair_rows.WHEN]
        return frame["us"].tolist()  # type: ignore[no-any-return]

    monkeypatch.setattr(Others, "share", lambda _: 0.6)
    assert found(1.0) == [1.0]
    assert found(2.0) == [1.0]  # no better now
    monkeypatch.setattr(pair_rows, "worth_again", lambda share: share > 0.1)
    monkeypatch.setattr(Others, "share", lambda _: 0.7)
    assert found(3.0) == [1.0]  # worse
    monkeypatch.setattr(Others, "share", lambda _: 0.0)
    store = opened()
    store.merge("kind")
    assert found(4.0) == [4.0]
    opened().merge("kind")
    assert found(5.0) == [4.0]


def test_tables_of_before_a_column_was_kept_are_read(tmp_path: Path) -> None:
    table_store(tmp_path, "us").commit({"a": pd.DataFrame({"us": [1.0]})})
    found = table_store(tmp_path, "us", later={"others": 0.0}).get("a")
    assert found is not None
    assert found.to_dict("list") == {"us": [1.0], "others": [0.0]}


def test_a_row_says_nothing_of_next_to_no_others() -> None:
    assert _row("s", 1.0, 0.01) == replace(_row("s", 1.0))
