"""The bench on a real engine, with settings that make a measurement last milliseconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick_bench import DEVICE, SETTINGS, held, measuring_alone, open_bench, subjects  # noqa: F401  a fixture

from edgeplan.devices.config import DeviceFile
from edgeplan.engines.registry import engine_protocol
from edgeplan.errors import BusyError, DeviceError, FormatError, NoiseError, StoreError
from edgeplan.measurement import bench as bench_module
from edgeplan.measurement import local
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.lock import machine_lock
from edgeplan.progress import BudgetProgress
from edgeplan.support.store import STORED_ROWS_ONLY


def test_what_is_stored_is_not_measured_again(tmp_path: Path) -> None:
    with open_bench(tmp_path) as bench:
        first = bench.measure(subjects())
        assert bench.measured == 3
        assert bench.seconds > 0
    with open_bench(tmp_path) as bench:
        again = bench.measure(subjects())
        assert (bench.measured, bench.seconds) == (0, 0.0)
    for a, b in zip(first, again, strict=True):
        assert (a.subject, a.nominal) == (b.subject, b.nominal)
        np.testing.assert_array_equal(a.least_us, b.least_us)
        assert a.seconds == b.seconds
        assert a.latency_us == pytest.approx(b.latency_us, rel=1e-6)  # rows are stored in single precision
        assert a.least_us.shape == (3,)
        assert (a.least_us > 0).all()
        assert (a.least_us <= a.median_us).all()
    assert [m.subject for m in first] == [s.id for s in subjects()]


def test_a_stage_is_told_what_measuring_took_whether_just_now_or_before(tmp_path: Path) -> None:
    told: list[float] = []
    for _ in range(2):
        with open_bench(tmp_path) as bench:
            bench.spending = BudgetProgress(100.0, lambda spent, _: told.append(spent))
            found = bench.measure(subjects(3))
        assert told[-1] == pytest.approx(sum(m.seconds for m in found), rel=1e-5)
    assert bench.measured == 0
    assert told[-1] > 0


def test_duplicates_are_measured_once_and_repeats_afresh(tmp_path: Path) -> None:
    with open_bench(tmp_path) as bench:
        one = subjects(1)
        first, twin = bench.measure(one * 2)
        (second,) = bench.measure(one, repeat=1)
        assert bench.measured == 2
    assert (first.measured_at == twin.measured_at).all()
    assert second.sample == 1
    assert second.measured_at[0] > first.measured_at[-1]


def test_profiled_subjects_bring_their_nodes(tmp_path: Path) -> None:
    with open_bench(tmp_path) as bench:
        measured = bench.measure([*subjects(1), *subjects(1, profiled=True)])
    plain, counted = measured
    assert plain.nodes == ()
    assert plain.node_us.shape == (3, 0)
    assert {m for n in counted.nodes for m in n.members} == {op.name for op in subjects(1)[0].graph.operators}
    assert counted.node_us.shape == (3, len(counted.nodes))
    assert (counted.node_us >= 0).all()


@pytest.mark.parametrize(
    ("fingerprint", "changes", "measured"),
    [("another", {}, 1), ("", {"max_runs": 4}, 1), ("", {"max_noise": 0.5, "batch_size": 7, "retries": 3}, 0)],
    ids=["another machine", "another setting", "tolerances and batches"],
)
def test_machine_and_settings_decide_a_row_and_tolerances_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fingerprint: str, changes: dict[str, Any], measured: int
) -> None:
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(1))
        key = bench.store.key
    if fingerprint:
        monkeypatch.setattr(local, "fingerprint", lambda: fingerprint)
    with open_bench(tmp_path, **changes) as bench:
        assert (bench.store.key != key) is bool(measured)
        bench.measure(subjects(1))
        assert bench.measured == measured


def test_rows_of_a_card_are_added_to_on_a_machine_that_has_the_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the device file names the machine that they were begun on; rows of the host never are."""
    card, rows = DeviceFile(format_version=2, name="card", engine="opencl"), tmp_path / "rows" / "card"
    try:
        card.load_engine()
    except DeviceError as error:
        pytest.skip(error.what)
    with Bench(card, SETTINGS, rows) as bench:
        bench.measure(subjects(1))
        key, begun = bench.store.key, str(bench.identity["fingerprint"])
    monkeypatch.setattr(local, "fingerprint", lambda: "0123456789abcdef")
    named = card.model_copy(update={"fingerprint": begun})
    monkeypatch.setattr(bench_module, "_ALIKE", 10.0)  # other tests may run beside this one
    with Bench(named, SETTINGS, rows) as bench:
        assert bench.store.key == key
        bench.measure(subjects(2))
        assert bench.measured == 1
        told = bench.identity["environment"]
        assert (told["fingerprint"], told["machine"]) == (begun, "0123456789abcdef")
    path = rows / f"{key}.json"
    other = json.loads(path.read_text())
    path.write_text(json.dumps(other | {"nominal_compute_us": 100 * other["nominal_compute_us"]}))
    monkeypatch.setattr(bench_module, "_ALIKE", 0.9)
    with pytest.raises(DeviceError, match=r"(compute|bandwidth) reference takes \d+ us here and took \d+ us"):
        Bench(named, SETTINGS, rows)
    with pytest.raises(DeviceError, match=f"its fingerprint is {begun}, and this machine's is 0123456789abcdef"):
        Bench(DEVICE.model_copy(update={"fingerprint": begun}), SETTINGS, tmp_path / "rows" / "dev")


def test_stores_of_one_device_share_what_the_references_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_bench(tmp_path, part="rows/fusion") as bench:
        bench.measure(subjects(1))
        nominal = bench.nominal
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "empty"))  # a clone on which nothing was journalled
    folder = tmp_path / "w/rows"
    (folder / "fusion/dev").rename(folder / "dev-fusion")
    with Bench(DEVICE, SETTINGS, folder / "dev-sampling") as bench:
        assert bench.nominal == nominal


NOISY = {"max_noise": 1e-9, "max_noisy_share": 1e-9, "extra_blocks": 1, "retries": 1, "batch_size": 4}


def test_noise_ends_nothing_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_bench(tmp_path, **NOISY) as bench:
        found = [m for k in range(0, 20, 5) for m in bench.measure(subjects(20)[k : k + 5])]
    assert len(found) == 20
    assert caplog.text.count("spread by more than") == 1  # a stage of many batches tells it once
    assert all(m.noise > 1e-9 for m in found)
    assert "100 % of 20 subjects spread by more than 0 %: they are kept with their noise" in caplog.text
    with open_bench(tmp_path, **NOISY) as bench:
        for again, before in zip(bench.measure(subjects(20)), found, strict=True):
            np.testing.assert_array_equal(again.least_us, before.least_us.astype(np.float32))
        assert bench.measured == 0


def test_noisy_subjects_are_come_back_to_and_the_less_noisy_measurement_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looks = local.measure_batch, list[list[str]]()

    def disturbed_at_first(engine: Any, batch: Any, *others: Any, **more: Any) -> Any:
        looks.append([s.id for s in batch])
        spread = np.array([1.0, 1.5, 2.0]) if len(looks) == 1 else np.array([1.0, 1.0, 1.0])
        calm = spread * 0 + 1
        return [replace(m, least_us=100 * spread, median_us=100 * spread, compute_us=calm, bandwidth_us=calm) for m in
                real(engine, batch, *others, **more)]  # fmt: skip

    monkeypatch.setattr(local, "measure_batch", disturbed_at_first)
    monkeypatch.setattr(bench_module, "COMING_BACK", 10.0)
    settings = {"max_noise": 0.1, "extra_blocks": 0, "retries": 3, "batch_size": 2}
    with open_bench(tmp_path, **settings) as bench:
        found = bench.measure(subjects(6))
    wanted = [s.id for s in subjects(6)]
    assert looks == [wanted[:2], wanted[2:4], wanted[4:], wanted[:2]]  # behind all others, once: then nothing is noisy
    assert max(m.noise for m in found) < 0.1
    with open_bench(tmp_path, **settings) as bench:
        assert max(m.noise for m in bench.measure(subjects(6))) < 0.1
        assert bench.measured == 0


def test_who_refuses_noise_is_told_by_the_whole_stage(tmp_path: Path) -> None:
    refuse = {**NOISY, "on_noise": "refuse"}
    bench = open_bench(tmp_path, **refuse)
    with pytest.raises(NoiseError, match=r"too noisy to measure: 100 % of 20 subjects .* after 1 returns") as caught:
        bench.measure(subjects(20))
    assert "dev" in caught.value.where
    assert "edgeplan device check dev" in caught.value.next_step
    assert "on_noise=keep" in caught.value.next_step
    assert caught.value.exit_code != 0
    assert not list(tmp_path.rglob("*.parquet"))
    with open_bench(tmp_path, "few", **refuse) as bench:  # of so few, chance decides which share is noisy
        assert all(m.noise > 1e-9 for m in bench.measure(subjects(3)))


def test_a_stage_whose_time_is_over_leaves_out_what_may_be_left_out(tmp_path: Path) -> None:
    with open_bench(tmp_path, batch_size=2) as bench:
        bench.limit(1e-6)
        found = bench.measure_in_time(subjects(6))
        assert [m is not None for m in found] == [True, True, False, False, False, False]  # one batch always
        assert not any(bench.measure_in_time(subjects(8)[6:], some=False)), "a batch was measured before"
        assert all(bench.measure(subjects(6)))  # what is needed as a whole is measured
        bench.limit(0)
        assert all(bench.measure_in_time(subjects(8)))


def test_a_second_run_waits_for_the_one_that_holds_the_machine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = open_bench(tmp_path)
    with held() as other:
        with pytest.raises(BusyError, match=rf"pid {other.pid}: .*python") as caught, machine_lock(0.2):
            pass
        assert caught.value.next_step
        threading.Timer(1.0, other.kill).start()
        bench.measure(subjects(1))  # waits, and says for whom
        assert f"waiting for another process that is measuring on this machine: pid {other.pid}" in caplog.text
    assert bench.measured == 1  # the system freed the lock with the process


def test_what_holds_the_machine_may_ask_for_it_again_and_an_error_frees_it() -> None:
    with pytest.raises(RuntimeError), machine_lock(0.1), machine_lock(0.1):
        raise RuntimeError
    with machine_lock(0.1):
        pass


def test_stored_rows_only_uses_any_machines_rows_and_never_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_bench(tmp_path) as bench:
        want = bench.measure(subjects(1))
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    monkeypatch.setattr(local, "fingerprint", lambda: "another")
    with open_bench(tmp_path) as bench:
        (found,) = bench.measure(subjects(1))
        assert found.latency_us == pytest.approx(want[0].latency_us, rel=1e-6)
        with pytest.raises(StoreError, match="2 measurements are not in the store") as caught:
            bench.measure(subjects(3))
        assert STORED_ROWS_ONLY in caught.value.next_step
    with pytest.raises(StoreError, match="found 0"):
        open_bench(tmp_path, "empty")


def test_stored_rows_are_those_of_a_readable_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = engine_protocol("measure", "onnxruntime")

    def measured_by(name: str, *earlier: str) -> None:
        known = replace(present, name=name, earlier=earlier)
        monkeypatch.setattr(
            bench_module, "engine_protocol", lambda face, engine: known if face == "measure" else engine_protocol(face, engine)
        )

    keys = []
    for name in ("first", "second"):
        measured_by(name)
        with open_bench(tmp_path) as bench:
            bench.measure(subjects(1))
        keys.append(bench.store.key)
    assert keys[0] != keys[1]
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    with open_bench(tmp_path) as bench:
        assert bench.store.key == keys[1]
    (bench.store.folder / f"{keys[1]}.json").unlink()
    with pytest.raises(StoreError, match=r"found 0 \(and 1 by other protocols\)"):
        open_bench(tmp_path)
    measured_by("second", "first")
    with open_bench(tmp_path) as bench:  # tables may be built from rows of the earlier protocol, too
        assert bench.store.key == keys[0]


@pytest.mark.parametrize(
    ("text", "message"), [('{"format_version": 9}', "format_version: Input should be 1"), ("{", "not valid JSON")]
)
def test_an_identity_of_rows_that_does_not_fit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(1))
    (path,) = bench.store.folder.glob("*.json")
    path.write_text(text)
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    with pytest.raises(FormatError, match=message) as caught:
        open_bench(tmp_path)
    assert caught.value.where == str(path)


HELPERS = Path(__file__).parents[1] / "helpers"
RUN = textwrap.dedent("""
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    import edgeplan.measurement.bench as bench_module
    from edgeplan.measurement import references
    import edgeplan.measurement.lock as lock
    from quick_bench import DEVICE, SETTINGS, subjects
    references._SECONDS = 0.02
    root = Path(sys.argv[1])
    lock.lock_path = lambda: root / "test.lock"
    with bench_module.Bench(DEVICE, SETTINGS, root / "w/rows/dev") as bench:
        commit = bench.store.commit
        def told(rows):
            commit(rows)
            print(len(rows), flush=True)
        bench.store.commit = told
        bench.measure(subjects(400))
""")


def test_a_kill_loses_at_most_the_batch_in_work(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path), str(HELPERS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert run.stdout is not None
        told = [int(run.stdout.readline()) for _ in range(3)]
        time.sleep(0.03)  # into a later batch
        os.killpg(run.pid, signal.SIGKILL)
        told += [int(line) for line in run.stdout.read().split()]
    assert run.returncode == -signal.SIGKILL
    assert sum(told) < 400
    with open_bench(tmp_path) as bench:
        kept = sum(bench.store.has((s.id, 0)) for s in subjects(400))
        assert sum(told) <= kept <= sum(told) + SETTINGS.batch_size
        bench.measure(subjects(400)[: kept + 2])
        assert bench.measured == 2
