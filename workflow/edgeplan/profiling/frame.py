"""Writes profiles as tables: one row a step, candidate and source; the units are in the names of the columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import astuple, fields
from functools import partial
from typing import Any

import pandas as pd

from edgeplan.errors import FormatError
from edgeplan.planning.profile import BIG, LITTLE, Candidate, Contention, Fresh, Layer, Profile, check, undominated

_CORES = ("big_cores", "little_cores", "little_ratio")
_CONTENTION = tuple(f"contention_{field.name}" for field in fields(Contention))
_FRESH = tuple(f"fresh_{field.name}" for field in fields(Fresh))
_SIZES = ("read_bytes", "cache_bytes", "scratch_bytes")
_STAGES = ("read", "create", "transform")
# By width, the number of cores.
_EXECUTE, _WARM = re.compile(r"execute_(\d+)_ms"), re.compile(r"warm_(\d+)_ms")


def to_frame(profiles: Iterable[Profile]) -> pd.DataFrame:
    """Write profiles (home layouts of one or more models) into one table; what was not measured is not a number."""
    rows: list[dict[str, Any]] = []
    for p in profiles:
        head = {name: getattr(p, name) for name in ("model", "layout", *_CORES)}
        head |= dict(zip(_CONTENTION, astuple(p.contention), strict=True)) | {"start_ms": p.start_ms}
        head |= dict(zip(_FRESH, astuple(p.fresh), strict=True))
        for k, layer in enumerate(p.layers):
            step = {"step": k, "name": layer.name, "members": json.dumps(layer.members)}
            rows += [head | step | _row(c) for c in layer.candidates]
    return pd.DataFrame(rows)


def _row(c: Candidate) -> dict[str, Any]:
    stages = zip(_STAGES, (c.read_ms, c.create_ms, c.transform_ms), strict=True)
    times = {f"{stage}_{core}_ms": by_core.get(core) for stage, by_core in stages for core in (BIG, LITTLE)}
    sizes = {name: getattr(c, name) for name in _SIZES}
    executions = {f"execute_{width}_ms": time for width, time in sorted(c.execute_ms.items())}
    executions |= {f"warm_{width}_ms": time for width, time in sorted(c.warm_ms.items())}
    return {"implementation": c.implementation, "source": c.source} | times | executions | sizes


def from_frame(frame: pd.DataFrame, where: str = "profile table") -> tuple[Profile, ...]:
    """Read the profiles of a table, in its order."""
    try:
        groups = frame.groupby(["model", "layout"], sort=False)
        execute, warm = (_widths(frame, pattern) for pattern in (_EXECUTE, _WARM))
        return tuple(check(_profile(group, partial(_candidate, execute, warm), where)) for _, group in groups)
    except KeyError as error:
        raise _misfit(f"column {error} is missing", where) from error
    except (TypeError, ValueError) as error:
        raise _misfit(f"a cell is not of its column's type: {error}", where) from error


def _widths(frame: pd.DataFrame, pattern: re.Pattern[str]) -> dict[str, int]:
    """Return columns of executions: name -> width."""
    return {m[0]: int(m[1]) for m in map(pattern.fullmatch, map(str, frame.columns)) if m}


def _profile(frame: pd.DataFrame, candidate: Callable[[dict[str, Any]], Candidate], where: str) -> Profile:
    records: list[dict[str, Any]] = [{str(k): v for k, v in r.items()} for r in frame.to_dict("records")]
    head = records[0]
    if any(r[name] != head[name] for r in records for name in (*_CORES, "start_ms", *_CONTENTION, *_FRESH)):
        raise _misfit(f"cores or factors differ between the rows of {head['model']}, {head['layout']}", where)
    steps: dict[int, list[dict[str, Any]]] = {}
    for r in records:
        steps.setdefault(int(r["step"]), []).append(r)
    if sorted(steps) != list(range(len(steps))):
        raise _misfit(f"steps of {head['model']}, {head['layout']} are not numbered 0 to {len(steps) - 1}", where)
    layers = []
    for number, rows in sorted(steps.items()):
        if len({(r["name"], r["members"]) for r in rows}) > 1:
            raise _misfit(f"step {number} has several names", where)
        members = tuple(map(str, json.loads(rows[0]["members"])))
        layers.append(Layer(str(rows[0]["name"]), members, tuple(map(candidate, rows))))
    contention, fresh = Contention(*(float(head[n]) for n in _CONTENTION)), Fresh(*(float(head[n]) for n in _FRESH))
    about = str(head["model"]), str(head["layout"]), int(head["big_cores"]), int(head["little_cores"])
    return Profile(*about, float(head["little_ratio"]), tuple(layers), contention, float(head["start_ms"]), fresh)


def _candidate(execute: dict[str, int], warm: dict[str, int], row: dict[str, Any]) -> Candidate:
    def known(columns: Iterable[tuple[Any, str]]) -> dict[Any, float]:
        return {key: float(row[name]) for key, name in columns if pd.notna(row[name])}

    read, create, transform = (known((core, f"{stage}_{core}_ms") for core in (BIG, LITTLE)) for stage in _STAGES)
    executed, warmed = (known((width, name) for name, width in widths.items()) for widths in (execute, warm))
    name, source = str(row["implementation"]), str(row["source"])
    read_bytes, cache_bytes, scratch_bytes = (int(row[size]) for size in _SIZES)
    return Candidate(name, source, read, create, transform, executed, read_bytes, cache_bytes, scratch_bytes, warmed)


def _misfit(what: str, where: str) -> FormatError:
    return FormatError(f"the profile table does not fit: {what}", where=where, next_step="profile the model again")


def remaining_table(profiles: Iterable[Profile], *, disk: bool = False) -> pd.DataFrame:
    """Count the candidates that the filter leaves (section 3.3 reports 1-2 kernels an operator), a row a model and layout."""
    rows = []
    for p in profiles:
        kept = [len(positions) for positions in undominated(p, disk=disk)]
        offered = sum(len(layer.candidates) for layer in p.layers)
        rows.append((p.model, p.layout, len(kept), offered, sum(kept), sum(kept) / len(kept), max(kept)))
    names = ["model", "layout", "steps", "candidates", "remaining", "remaining_mean", "remaining_max"]
    return pd.DataFrame(rows, columns=names)
