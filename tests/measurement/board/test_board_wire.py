"""Lines between host and worker, and the journal of a board as two workers see it."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick_bench import SETTINGS, node_subjects, subjects, timed

from edgeplan.devices.config import DeviceFile
from edgeplan.engines.base import EngineNode
from edgeplan.errors import FormatError, ModelError
from edgeplan.measurement.board import wire
from edgeplan.measurement.board.client import checked_measurement
from edgeplan.measurement.board.wire import MeasuredRow
from edgeplan.measurement.board.worker import BoardJournal
from edgeplan.measurement.records import Batch, NodeSubject, Subject, graph_digest
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.support.answers import LineReader
from edgeplan.zoo import prior_models

NOW = 2e9
ONE = subjects(1, profiled=True)[0]
NAME = f"{ONE.id}-abc"
BATCH = Batch("0" * 12, (ONE,), (NAME,), 0, SETTINGS, ReferenceTimes(300.0, 400.0))


NODES = (EngineNode("a", "Conv", "", (ONE.graph.operators[0].name,)), EngineNode("b", "Reorder", "x", (), "t", "n", "m"))
_TIMES = np.array([1.5, 2.5, 3.5])
MEASURED = timed(
    [*(_TIMES + 1)], [*_TIMES], subject=NAME, least_us=_TIMES, measured_at=NOW - 10 + _TIMES, nodes=NODES,
    node_us=np.ones((3, 2)), nominal=BATCH.nominal, seconds=0.5,
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(prior_models()))
def test_a_graph_arrives_as_it_was(name: str) -> None:
    graph = prior_models()[name]()
    line = wire.line_of(wire.AskedNodes(graphs=(graph,)))
    request = wire.request_of(line)
    assert isinstance(request, wire.AskedNodes)
    found = request.graphs[0]
    assert graph_digest(found) == graph_digest(graph)
    assert [op.attributes for op in found.operators] == [dict(op.attributes) for op in graph.operators]


NODE = node_subjects()[1]
BOTH = replace(BATCH, subjects=(NODE, ONE), names=(NODE.id, NAME))


def test_batches_of_nodes_and_graphs_and_rows_arrive_as_they_were() -> None:
    request = wire.request_of(wire.line_of(wire.asked_batch(BOTH, "0" * 32, 5.0)))
    assert isinstance(request, wire.AskedBatch)
    found = wire.batch_of(request)
    assert (found.key, found.names, found.sample, found.settings) == (BOTH.key, BOTH.names, 0, SETTINGS)
    assert found.subjects[0] == NODE
    assert [one.id for one in found.subjects] == [NODE.id, ONE.id]
    row = wire.answer_of(wire.line_of(wire.row_message(MEASURED)))
    assert isinstance(row, wire.MeasuredRow)
    back = checked_measurement(row, ONE, BATCH, NOW, "board")
    for field in ("least_us", "median_us", "measured_at", "node_us"):
        np.testing.assert_array_equal(getattr(back, field), getattr(MEASURED, field))
    assert back.nodes == MEASURED.nodes


@pytest.mark.parametrize(
    ("subject", "changes"),
    [(0, {"copies": 7}), (0, {"config": node_subjects()[0].config}), (1, {"graph": subjects(2)[1].graph})],
    ids=["copies", "another node", "another graph"],
)
def test_what_was_changed_on_the_way_is_refused(subject: int, changes: dict[str, Any]) -> None:
    asked = wire.asked_batch(BOTH, "0" * 32, 5.0)
    sent = list(asked.subjects)
    sent[subject] = msgspec.structs.replace(sent[subject], **changes)
    with pytest.raises(FormatError, match="the digest"):
        wire.batch_of(msgspec.structs.replace(asked, subjects=tuple(sent)))


def test_an_attribute_that_json_has_no_word_for_is_refused() -> None:
    operator = replace(ONE.graph.operators[0], attributes={"min": float("inf")})
    with pytest.raises(ModelError, match="attribute min is not finite"):
        wire.require_sendable(replace(ONE.graph, operators=(operator,)))
    node = NodeSubject(msgspec.structs.replace(NODE.config, attributes=(("min", float("nan")),)))
    with pytest.raises(ModelError, match="attribute min is not finite"):
        wire.asked_batch(replace(BOTH, subjects=(node, ONE)), "0" * 32, 5.0)


FORGED = {
    "too few blocks": ({"least_us": (1.0,)}, "1 blocks instead of 3 to 3"),
    "a column too short": ({"median_us": (2.0, 2.0)}, "median_us has 2 values for 3 blocks"),
    "no time at all": ({"least_us": (0.0, 1.0, 1.0)}, "least_us is out of range"),
    "no number": ({"bandwidth_us": (float("nan"), 1.0, 1.0)}, "bandwidth_us is out of range"),
    "faster than its own least": ({"median_us": (1.0, 1.0, 1.0)}, "least time is above the median"),
    "from the future": ({"measured_at": (NOW + 1e6,) * 3}, "measured_at"),
    "backwards": ({"measured_at": (NOW - 1, NOW - 2, NOW - 3)}, "measured_at"),
    "nodes of another shape": ({"node_us": (1.0,)}, "node_us has 1 values"),
    "an operator that is not there": (
        {"nodes": (EngineNode("n", "Conv", "", ("../../etc",), "", "", ""),), "node_us": (1.0,) * 3},
        "'../../etc', which is no operator",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_row_is_refused(case: str) -> None:
    changes, message = FORGED[case]
    row = msgspec.structs.replace(wire.row_message(MEASURED), **changes)
    with pytest.raises(FormatError, match=message) as caught:
        checked_measurement(row, ONE, BATCH, NOW, "board")
    assert "edgeplan device deploy" in caught.value.next_step


def test_nodes_that_nobody_asked_for_are_refused() -> None:
    for subject in (Subject(ONE.graph), NODE):
        with pytest.raises(FormatError, match="none were asked for"):
            checked_measurement(wire.row_message(MEASURED), subject, BATCH, NOW, "board")


NOT_DECLARED = [
    b'{"is":"measure"}',
    b'{"is":"note","text":"x","more":1}',
    b'{"is":"note","text":"' + b"x" * 3000 + b'"}',
    b'{"is":"system","argv":["rm"]}',
    b"[" * 100_000,
    b'{"is":"kept","key":"../../../etc","sample":0,"names":[]}',
]


@given(st.binary(max_size=200))
def test_what_is_no_declared_line_is_refused(junk: bytes) -> None:
    for read, line in product((wire.request_of, wire.answer_of), (junk, *NOT_DECLARED)):
        with pytest.raises(FormatError):
            read(line)


@given(st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b), max_size=8), st.integers(1, 7), st.binary(max_size=5))
def test_lines_are_read_whole_however_they_are_cut(lines: list[bytes], step: int, rest: bytes) -> None:
    sent = b"".join(line + b"\n" for line in lines) + rest.replace(b"\n", b"")
    source, sink = os.pipe()

    def write() -> None:
        for start in range(0, len(sent), step):
            os.write(sink, sent[start : start + step])
        os.close(sink)

    writer = threading.Thread(target=write)
    writer.start()
    reader, found = LineReader(source, 100), []
    while (line := reader.next(10.0)) is not None:
        found.append(line)
    writer.join()
    os.close(source)
    assert (found, reader.next()) == (lines, None)  # a cut line counts as none, and nothing comes from what cannot be read


def test_a_line_that_is_too_long_is_refused_before_it_is_kept() -> None:
    source, sink = os.pipe()
    threading.Thread(target=lambda: os.write(sink, b"x" * 5000), daemon=True).start()
    with pytest.raises(FormatError, match="longer than"):
        LineReader(source, 1000).next(10.0)
    with pytest.raises(TimeoutError):
        LineReader(os.pipe()[0], 1000).next(0.01)


def test_a_request_that_is_too_long_is_refused_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_REQUEST_BYTES", 100)
    with pytest.raises(FormatError, match=r"measurement\.batch_size|longer than") as caught:
        wire.line_of(wire.asked_batch(BATCH, "0" * 32, 5.0))
    assert "measurement.batch_size" in caught.value.next_step


def test_a_board_is_told_what_it_needs_of_a_device_alone() -> None:
    device = DeviceFile(
        format_version=2, name="pi", engine="onnxruntime", transport={"kind": "ssh", "host": "pi5"}, description="secret"
    )
    fields = wire.device_fields(device)
    assert "secret" not in json.dumps(fields)
    assert DeviceFile.model_validate(dict(fields)).board is None


KEY, FIRST, SECOND = "0" * 12, "1" * 32, "2" * 32
NAMES = [letter * 20 for letter in "abc"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def row(name: str, sample: int = 0) -> MeasuredRow:
    return msgspec.structs.replace(wire.row_message(MEASURED), name=name, sample=sample)


def names(rows: list[MeasuredRow]) -> list[str]:
    return sorted(one.name[0] for one in rows)


def test_rows_are_there_for_the_next_worker() -> None:
    BoardJournal("dev", KEY).commit(FIRST, [row(NAMES[0]), row(NAMES[1]), row(NAMES[2], sample=1)])
    journal = BoardJournal("dev", KEY)
    assert names(journal.kept(NAMES, 0)) == ["a", "b"]
    assert names(journal.kept(NAMES, 1)) == ["c"]
    assert names(journal.of_batch(FIRST, NAMES, 0)) == ["a", "b"]
    assert journal.of_batch(SECOND, NAMES, 0) == []
    assert BoardJournal("other", KEY).kept(NAMES, 0) == BoardJournal("dev", "1" * 12).kept(NAMES, 0) == []


def test_a_batch_that_another_worker_ended_meanwhile_is_handed_over_once() -> None:
    """A host was killed; its worker goes on, while a new host asks another worker for the same subjects."""
    alone, called = BoardJournal("dev", KEY), BoardJournal("dev", KEY)
    assert called.kept(NAMES, 0) == []
    alone.commit(FIRST, [row(NAMES[0]), row(NAMES[1])])
    assert names(called.of_batch(SECOND, NAMES[:1], 0)) == ["a"]
    assert called.of_batch("3" * 32, NAMES[:1], 0) == [], "a noisy subject that is asked for again is measured afresh"
    assert names(called.of_batch("4" * 32, NAMES, 0)) == ["b"]


def test_half_a_line_is_left_to_who_writes_it_until_one_holds_the_board() -> None:
    BoardJournal("dev", KEY).commit(FIRST, [row(NAMES[0])])
    path = BoardJournal("dev", KEY).path
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    journal = BoardJournal("dev", KEY)
    assert names(journal.kept(NAMES, 0)) == ["a"]
    assert path.stat().st_size > len(whole)
    journal.commit(SECOND, [row(NAMES[1])])
    assert journal.of_batch("3" * 32, NAMES, 0) == [], "what is one's own is no other worker's"
    assert names(BoardJournal("dev", KEY).kept(NAMES, 0)) == ["a", "b"]


def test_a_damaged_journal_is_named_with_what_to_do() -> None:
    BoardJournal("dev", KEY).commit(FIRST, [row(NAMES[0])])
    path = BoardJournal("dev", KEY).path
    path.write_bytes(b'{"batch": 1}\n' + path.read_bytes())
    with pytest.raises(FormatError, match="the journal of the board is damaged") as caught:
        BoardJournal("dev", KEY)
    assert "delete that file" in caught.value.next_step
    assert caught.value.where == str(path)
