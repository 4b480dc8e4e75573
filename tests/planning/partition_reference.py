"""Small random cost documents, and every plan of one, tried out: independent of the planners' formulas."""

import json
from itertools import permutations, product
from typing import Any

from hypothesis import strategies as st

from edgeplan.planning.partition.costs import Choice, PairCosts
from edgeplan.planning.partition.document import parse_costs
from edgeplan.planning.partition.simulate import OptionSchedule

# Times are whole quarters, so that sums are exact and ties happen.
_times = st.integers(0, 24).map(lambda n: n / 4)
_short = st.integers(0, 4).map(lambda n: n / 4)
_factors = st.sampled_from([1.0, 1.25, 1.5])
_loads = ("compute", "bandwidth")


@st.composite
def documents(
    draw: st.DrawFn, steps: int = 4, *, moves: bool = False, contention: bool = False, errors: bool = False
) -> dict[str, Any]:
    operators: list[dict[str, Any]] = []
    for k in range(draw(st.integers(1, steps))):
        whole = draw(st.sampled_from([("cpu",), ("gpu",), ("cpu", "gpu"), ("cpu", "gpu")]))
        options: list[dict[str, Any]] = [{"on": on, f"{on}_ms": draw(_times)} for on in whole]
        shares = draw(st.lists(st.sampled_from([0.25, 0.5, 0.75]), max_size=2, unique=True))
        options += [{"on": "split", "cpu_share": r, "cpu_ms": draw(_times), "gpu_ms": draw(_times)} for r in shares]
        before = [o["name"] for o in operators]
        inputs = draw(st.lists(st.sampled_from(before), unique=True)) if before else []
        entry = {"name": f"s{k}", "inputs": inputs, "options": options, "load": draw(st.sampled_from(_loads))}
        if moves:
            entry |= {"to_cpu_ms": draw(_short), "to_gpu_ms": draw(_short)}
        operators.append(entry)
    document: dict[str, Any] = {"format_version": 1, "model": "m", "operators": operators}
    document |= {"cpu_to_gpu_ms": draw(_short), "gpu_to_cpu_ms": draw(_short)}
    if contention:
        document["contention"] = [
            {"cpu_load": a, "gpu_load": b, "cpu_factor": draw(_factors), "gpu_factor": draw(_factors)}
            for a, b in product(_loads, repeat=2)
        ]
    if errors:
        document["error"] = draw(st.sampled_from([0.0, 0.1, 0.5]))
    return document


def read(document: dict[str, Any]) -> PairCosts:
    return parse_costs(json.dumps(document).encode(), "costs.json")


def choices(costs: PairCosts) -> list[Choice]:
    return list(product(*(range(len(s.options)) for s in costs.steps)))


def orders(costs: PairCosts) -> list[tuple[int, ...]]:
    """All orders in which each step follows what it reads."""
    n = len(costs.steps)
    fits = lambda order: all(order.index(i) < order.index(k) for k in range(n) for i in costs.steps[k].inputs)  # noqa: E731
    return [order for order in permutations(range(n)) if fits(order)]


def by_order(costs: PairCosts, choice: Choice, order: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """Starts and ends of steps that are put behind each other in an order, as early as each can, without contention."""
    starts, ends = [0.0] * len(order), [0.0] * len(order)
    free = {"cpu": 0.0, "gpu": 0.0}
    for k in order:
        option = costs.steps[k].options[choice[k]]
        busy = {"cpu": option.cpu_ms, "gpu": option.gpu_ms}
        start = max([free[p] for p in busy if busy[p]], default=0.0)
        for i in costs.steps[k].inputs:
            start = max(start, ends[i] + hand_over(costs, i, costs.steps[i].options[choice[i]].kind, option.kind))
        starts[k], ends[k] = start, start + max(busy.values())
        free |= {p: start + ms for p, ms in busy.items() if ms}
    return starts, ends


def hand_over(costs: PairCosts, i: int, kind: int, reader: int) -> float:
    """From the end of a step until a reader on other processors has seen it and has all of its output."""
    has = [{0}, {1}, set()][kind]
    wrote = [{0}, {1}, {0, 1}][kind]
    reads = [{0}, {1}, {0, 1}][reader]
    wait = max([(costs.cpu_to_gpu_ms, costs.gpu_to_cpu_ms)[p] for p in wrote if reads - {p}], default=0.0)
    move = max([(costs.steps[i].to_cpu_ms, costs.steps[i].to_gpu_ms)[p] for p in reads - has], default=0.0)
    return wait + move


def schedules(costs: PairCosts) -> list[tuple[OptionSchedule, float]]:
    """Every schedule that is worth trying, with its makespan without contention."""
    found = {}
    for choice in choices(costs):
        for order in orders(costs):
            _, ends = by_order(costs, choice, order)
            options = [s.options[o] for s, o in zip(costs.steps, choice, strict=True)]
            queues = (
                tuple(k for k in order if options[k].cpu_ms > 0),
                tuple(k for k in order if options[k].gpu_ms > 0),
            )
            found[OptionSchedule(choice, queues)] = max(ends)
    return list(found.items())
