"""The cost document, `costs.json`, which users and predictors hand to the planner."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgeplan.errors import FormatError
from edgeplan.planning.partition.costs import KINDS, SPLIT, Option, PairCosts, PairStep
from edgeplan.support.topology import topological

_LONGEST_MS = 1e9  # 11 days: sums of ten thousand stay finite and exact enough
Milliseconds = Annotated[float, Field(ge=0, le=_LONGEST_MS, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
_CORRECT = "correct the cost document; docs/partition-planning.md describes it"
_SHOWN = 3


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OptionEntry(_Part):
    """One way to run an operator."""

    on: Literal["cpu", "gpu", "split"]
    cpu_ms: Milliseconds | None = None
    gpu_ms: Milliseconds | None = None
    cpu_share: Share | None = None
    dimension: Annotated[str, Field(max_length=1000)] = ""
    implementation: Annotated[str, Field(max_length=1000)] = ""


class OperatorEntry(_Part):
    """An operator entry lists the options of one operator."""

    name: Name
    inputs: tuple[Name, ...] = ()
    options: Annotated[tuple[OptionEntry, ...], Field(min_length=1)]
    to_cpu_ms: Milliseconds = 0.0
    to_gpu_ms: Milliseconds = 0.0
    error: Share | None = None
    unsplittable: Annotated[str, Field(max_length=1000)] = ""


class ProcessorNames(_Part):
    """The names of the two processors."""

    cpu: Name = "cpu"
    gpu: Name = "gpu"


class CostDocument(_Part):
    """A cost document describes a model's operators and their costs on two processors (docs/partition-planning.md)."""

    format_version: Literal[1]
    model: Name
    processors: ProcessorNames = ProcessorNames()
    cpu_to_gpu_ms: Milliseconds
    gpu_to_cpu_ms: Milliseconds
    cpu_step_ms: Milliseconds = 0.0
    gpu_step_ms: Milliseconds = 0.0
    error: Share = 0.0
    operators: Annotated[tuple[OperatorEntry, ...], Field(min_length=1)]


def read_costs(path: Path) -> PairCosts:
    """Read a cost document from its file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FormatError(
            f"cannot read the cost document: {error.strerror}", where=str(path), next_step="check the path given as --costs"
        ) from error
    return parse_costs(content, str(path))


def parse_costs(content: bytes, where: str) -> PairCosts:
    """Return costs of a document's bytes: JSON in UTF-8, or in the encoding that its byte order mark says."""
    try:
        raw = json.loads(content, object_pairs_hook=_unrepeated)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the cost document is not valid JSON: {error}", where=where, next_step=_CORRECT) from error
    try:
        # Lists stand for tuples in JSON only, which strict schemas accept from text alone.
        document = CostDocument.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        raise _misfit(_problems(error, raw), where) from error
    return _costs(document, hashlib.sha256(content).hexdigest(), where)


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def _misfit(what: str, where: str) -> FormatError:
    return FormatError(f"the cost document does not fit: {what}", where=where, next_step=_CORRECT)


def _problems(error: ValidationError, raw: Any) -> str:
    """Return the first problems, each with its operator's name; of ten thousand nobody reads more."""
    problems = error.errors()
    # A list whose entries all failed is called too short besides.
    inner = {problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]))}
    problems = [p for p in problems if p["type"] != "too_short" or p["loc"] not in inner]
    shown = []
    for problem in problems[:_SHOWN]:
        loc, of = problem["loc"], ""
        if len(loc) > 1 and loc[0] == "operators":
            entry = raw["operators"][loc[1]]
            name = entry.get("name") if isinstance(entry, dict) else None
            of = f" (operator {name!r})" if isinstance(name, str) else ""
        shown.append(f"{'.'.join(map(str, loc)) or 'document'}{of}: {problem['msg']}")
    more = len(problems) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _costs(document: CostDocument, sha256: str, where: str) -> PairCosts:
    position: dict[str, int] = {}
    for k, entry in enumerate(document.operators):
        if entry.name in position:
            raise _misfit(f"two operators are named {entry.name!r}", where)
        position[entry.name] = k
    inputs = [_inputs(entry, position, where) for entry in document.operators]
    order = _order(document, inputs, where)
    place = {k: i for i, k in enumerate(order)}
    steps = []
    for k in order:
        entry = document.operators[k]
        steps.append(
            PairStep(
                name=entry.name,
                inputs=tuple(sorted(place[i] for i in inputs[k])),
                options=_options(entry, (document.cpu_step_ms, document.gpu_step_ms), where),
                to_cpu_ms=entry.to_cpu_ms,
                to_gpu_ms=entry.to_gpu_ms,
                error=document.error if entry.error is None else entry.error,
                unsplittable=entry.unsplittable,
            )
        )
    names = (document.processors.cpu, document.processors.gpu)
    waits = (document.cpu_to_gpu_ms, document.gpu_to_cpu_ms)
    return PairCosts(document.model, names, tuple(steps), *waits, sha256)


def _inputs(entry: OperatorEntry, position: dict[str, int], where: str) -> set[int]:
    for name in entry.inputs:
        if name not in position:
            raise _misfit(f"operator {entry.name!r} reads {name!r}, which no operator is named", where)
    return {position[name] for name in entry.inputs}


def _options(entry: OperatorEntry, beyond_ms: tuple[float, float], where: str) -> tuple[Option, ...]:
    """The options of an operator; what a step takes beyond its times is part of them where they are no view's."""
    options = []
    seen: set[tuple[object, ...]] = set()
    for index, option in enumerate(entry.options):
        what = f"operator {entry.name!r}, option {index}"
        kind = KINDS.index(option.on)
        times = (option.cpu_ms, option.gpu_ms)
        if kind == SPLIT:
            _check_split(option, what, where)
        elif option.cpu_share is not None or option.dimension:
            raise _misfit(f"{what}: whole on one processor, it has neither cpu_share nor dimension", where)
        elif times[kind] is None or times[1 - kind] is not None:
            raise _misfit(f"{what}: whole on the {option.on.upper()}, it has {option.on}_ms and no other time", where)
        key = (kind, option.cpu_share, option.dimension, option.implementation)
        if key in seen:
            raise _misfit(f"{what}: the same option stands twice", where)
        seen.add(key)
        share = option.cpu_share if option.cpu_share is not None else float(1 - kind)
        cpu_ms, gpu_ms = (t + beyond if t else 0.0 for t, beyond in zip(times, beyond_ms, strict=True))
        options.append(Option(kind, cpu_ms, gpu_ms, share, option.dimension, option.implementation, index))
    if all(o.kind == SPLIT for o in options):
        raise _misfit(f"operator {entry.name!r} has splits only; one option has to be whole on a processor", where)
    return tuple(options)


def _check_split(option: OptionEntry, what: str, where: str) -> None:
    if option.cpu_ms is None or option.gpu_ms is None or option.cpu_share is None:
        raise _misfit(f"{what}: a split has cpu_ms, gpu_ms and cpu_share", where)
    if option.cpu_share in (0.0, 1.0):
        whole = "cpu" if option.cpu_share else "gpu"
        raise _misfit(f'{what}: a split of which one processor has nothing is "on": "{whole}"', where)


def _order(document: CostDocument, inputs: list[set[int]], where: str) -> list[int]:
    """Return the document's order where inputs allow it."""
    order = topological(inputs)
    if left := set(range(len(inputs))).difference(order):
        raise _misfit(f"operators wait for each other in a cycle: {_cycle(document, inputs, left)}", where)
    return order


def _cycle(document: CostDocument, inputs: list[set[int]], left: set[int]) -> str:
    """Return one cycle among the operators that never become ready."""
    at = min(left)
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(seen)
        at = min(inputs[at] & left)
    cycle = [document.operators[k].name for k, when in seen.items() if when >= seen[at]]
    names = [*cycle, cycle[0]][::-1]
    if len(names) > 2 * _SHOWN:
        names = [*names[:_SHOWN], "...", *names[-_SHOWN:]]
    return " -> ".join(names)
