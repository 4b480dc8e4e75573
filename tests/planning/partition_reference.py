"""Small random cost documents, every choice of one, and what hand-overs take: independent of the planners' formulas."""

import json
from itertools import product
from typing import Any

from hypothesis import strategies as st

from edgeplan.planning.partition.costs import Choice, PairCosts
from edgeplan.planning.partition.document import parse_costs

# Times are whole quarters, so that sums are exact and ties happen.
_times = st.integers(0, 24).map(lambda n: n / 4)
_short = st.integers(0, 4).map(lambda n: n / 4)


@st.composite
def documents(draw: st.DrawFn, steps: int = 4, *, moves: bool = False, errors: bool = False) -> dict[str, Any]:
    operators: list[dict[str, Any]] = []
    for k in range(draw(st.integers(1, steps))):
        whole = draw(st.sampled_from([("cpu",), ("gpu",), ("cpu", "gpu"), ("cpu", "gpu")]))
        options: list[dict[str, Any]] = [{"on": on, f"{on}_ms": draw(_times)} for on in whole]
        shares = draw(st.lists(st.sampled_from([0.25, 0.5, 0.75]), max_size=2, unique=True))
        options += [{"on": "split", "cpu_share": r, "cpu_ms": draw(_times), "gpu_ms": draw(_times)} for r in shares]
        before = [o["name"] for o in operators]
        inputs = draw(st.lists(st.sampled_from(before), unique=True)) if before else []
        entry = {"name": f"s{k}", "inputs": inputs, "options": options}
        if moves:
            entry |= {"to_cpu_ms": draw(_short), "to_gpu_ms": draw(_short)}
        operators.append(entry)
    document: dict[str, Any] = {"format_version": 1, "model": "m", "operators": operators}
    document |= {"cpu_to_gpu_ms": draw(_short), "gpu_to_cpu_ms": draw(_short)}
    if errors:
        document["error"] = draw(st.sampled_from([0.0, 0.1, 0.5]))
    return document


def read(document: dict[str, Any]) -> PairCosts:
    return parse_costs(json.dumps(document).encode(), "costs.json")


def choices(costs: PairCosts) -> list[Choice]:
    return list(product(*(range(len(s.options)) for s in costs.steps)))


def hand_over(costs: PairCosts, i: int, kind: int, reader: int) -> float:
    """From the end of a step until a reader on other processors has seen it and has all of its output."""
    has = [{0}, {1}, set()][kind]
    wrote = [{0}, {1}, {0, 1}][kind]
    reads = [{0}, {1}, {0, 1}][reader]
    wait = max([(costs.cpu_to_gpu_ms, costs.gpu_to_cpu_ms)[p] for p in wrote if reads - {p}], default=0.0)
    move = max([(costs.steps[i].to_cpu_ms, costs.steps[i].to_gpu_ms)[p] for p in reads - has], default=0.0)
    return wait + move
