"""Cost documents as users write them: what does not fit is named in one clear message, what is large is planned."""

import copy
import json
import re
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from partition_frames import chain

from edgeplan.errors import FormatError
from edgeplan.planning.partition.document import parse_costs, read_costs
from edgeplan.planning.partition.planner import plan

Document = dict[str, Any]
_PLENTY_S = 120  # of process time: what matters is that it ends


def valid() -> Document:
    """Three operators in a row, all kinds of options."""
    split = {"on": "split", "cpu_share": 0.5, "cpu_ms": 1.0, "gpu_ms": 1, "dimension": "channels"}
    options = [{"on": "cpu", "cpu_ms": 2.0}, {"on": "gpu", "gpu_ms": 2.0}, split]
    names = ("a", "b", "c")
    operators = [
        {"name": name, "inputs": list(names[max(k - 1, 0) : k]), "options": copy.deepcopy(options)}
        for k, name in enumerate(names)
    ]
    return {"format_version": 1, "model": "m", "cpu_to_gpu_ms": 0.0, "gpu_to_cpu_ms": 0.0, "operators": operators}


def option(document: Document, k: int = 2) -> Document:
    """The split of the second operator, or another option."""
    found: Document = document["operators"][1]["options"][k]
    return found


def parse(document: object) -> Any:
    return parse_costs(json.dumps(document).encode(), "costs.json")


FAULTS: dict[str, tuple[Callable[[Document], object], list[str]]] = {
    "a cycle": (lambda d: d["operators"][0].update(inputs=["c"]), ["cycle", "a -> b -> c -> a"]),
    "no time": (lambda d: option(d, 0).pop("cpu_ms"), ["'b'", "cpu_ms"]),
    "a split without a time": (lambda d: option(d).pop("gpu_ms"), ["'b'", "gpu_ms"]),
    "a negative time": (lambda d: option(d).update(cpu_ms=-1.0), ["'b'", "cpu_ms", "greater than or equal to 0"]),
    "a time that is no number": (lambda d: option(d).update(cpu_ms=float("nan")), ["'b'", "cpu_ms", "finite"]),
    "a time beyond all sense": (lambda d: option(d).update(cpu_ms=1e300), ["'b'", "cpu_ms"]),
    "a time as truth": (lambda d: option(d).update(cpu_ms=True), ["'b'", "cpu_ms", "number"]),
    "an infinite movement": (lambda d: d["operators"][1].update(to_gpu_ms=float("inf")), ["'b'", "to_gpu_ms"]),
    "no hand-over": (lambda d: d.pop("gpu_to_cpu_ms"), ["gpu_to_cpu_ms", "required"]),
    "an unknown input": (lambda d: d["operators"][1].update(inputs=["x"]), ["'b'", "'x'"]),
    "an unknown processor": (lambda d: option(d, 0).update(on="npu"), ["'b'", "on", "'cpu'"]),
    "contention of steps side by side": (lambda d: d.update(contention=[]), ["contention"]),
    "a repeated name": (lambda d: d["operators"][1].update(name="a"), ["'a'", "two operators"]),
    "a repeated option": (lambda d: d["operators"][1]["options"].append(option(d)), ["'b'", "twice"]),
    "no operators": (lambda d: d.update(operators=[]), ["operators"]),
    "no options": (lambda d: d["operators"][1].update(options=[]), ["'b'", "options"]),
    "splits only": (lambda d: d["operators"][1].update(options=[option(d)]), ["'b'", "whole"]),
    "a ratio of 0": (lambda d: option(d).update(cpu_share=0.0), ["'b'", '"on": "gpu"']),
    "a ratio above 1": (lambda d: option(d).update(cpu_share=1.5), ["'b'", "cpu_share"]),
    "the other processor's time": (lambda d: option(d, 0).update(gpu_ms=1.0), ["'b'", "no other time"]),
    "a whole option with a ratio": (lambda d: option(d, 0).update(cpu_share=0.5), ["'b'", "cpu_share"]),
    "another version": (lambda d: d.update(format_version=2), ["format_version"]),
    "an operator that is none": (lambda d: d["operators"].append(7), ["operators.3"]),
}


def test_the_document_that_faults_are_made_of_is_planned() -> None:
    assert plan(parse(valid())).makespan_ms == pytest.approx(3.0)


def test_the_documented_example_is_planned() -> None:
    page = (Path(__file__).parents[2] / "docs/partition-planning.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    made = plan(parse_costs(example.encode(), "docs"))
    assert [step.on for step in made.steps] == ["split", "cpu"]
    assert made.steps[1].whole_because == "too small"


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str) -> None:
    change, named = FAULTS[fault]
    document = valid()
    change(document)
    with pytest.raises(FormatError) as caught:
        parse(document)
    assert all(part in caught.value.what for part in named), caught.value.what
    assert "\n" not in caught.value.what
    assert (caught.value.where, bool(caught.value.next_step)) == ("costs.json", True)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b"null", b"\xff\xfe{}", b"<html></html>", b"\x1f\x8b\x08\x00", b"[" * 100_000, b'{"model": "m"}'],
)
def test_what_is_no_document_is_told(content: bytes) -> None:
    with pytest.raises(FormatError, match="cost document"):
        parse_costs(content, "costs.json")


def test_a_repeated_key_is_told() -> None:
    text = json.dumps(valid()).replace('"format_version": 1', '"format_version": 1, "format_version": 1')
    with pytest.raises(FormatError, match=r"format_version.*twice"):
        parse_costs(text.encode(), "costs.json")


def test_paths_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.json"):
        with pytest.raises(FormatError, match="cannot read the cost document"):
            read_costs(path)


def test_of_many_problems_the_first_are_told() -> None:
    document = valid()
    document["operators"] = [
        {"name": f"op{k}", "options": [{"on": "cpu", "cpu_ms": -1.0}, {"on": "gpu", "gpu_ms": -1.0}]} for k in range(10_000)
    ]
    with pytest.raises(FormatError, match=r"'op0'.*and 19997 more") as caught:
        parse(document)
    assert len(caught.value.what) < 1000


def test_operators_may_stand_in_any_order() -> None:
    document = valid()
    document["operators"].reverse()
    costs = parse(document)
    assert [s.name for s in costs.steps] == ["a", "b", "c"]
    assert [s.inputs for s in costs.steps] == [(), (0,), (1,)]


@pytest.mark.long
def test_ten_thousand_operators_whose_outputs_must_be_moved_are_planned() -> None:
    document = chain(10_000, 3, mb_per_ms=5.0)
    for k, entry in enumerate(document["operators"][9:], 9):
        entry["inputs"].append(f"conv{k - 9}")  # ten outputs are alive at once
    started = time.process_time()
    made = plan(parse(document))
    assert made.lower_bound_ms <= made.makespan_ms <= made.better_single_ms
    assert time.process_time() - started < _PLENTY_S


@pytest.mark.long
def test_outputs_that_all_stay_alive_are_planned_in_little_memory() -> None:
    document = chain(3000, 5, mb_per_ms=5.0)
    names = [entry["name"] for entry in document["operators"]]
    document["operators"][-1]["inputs"] = names[:-1]
    tracemalloc.start()
    made = plan(parse(document))
    assert tracemalloc.get_traced_memory()[1] < 500e6
    tracemalloc.stop()
    assert made.lower_bound_ms <= made.makespan_ms <= made.better_single_ms


def test_ten_thousand_operators_in_a_cycle_are_told() -> None:
    document = chain(10_000, 4)
    document["operators"][0]["inputs"] = ["conv9999"]
    with pytest.raises(FormatError, match=r"cycle: conv0 -> conv1 -> conv2 -> \.\.\.") as caught:
        parse(document)
    assert len(caught.value.what) < 1000
