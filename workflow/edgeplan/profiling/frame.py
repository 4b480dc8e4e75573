"""Writes profiles as tables: one row a step, candidate and source; the units are in the names of the columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import astuple, fields
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
        return tuple(check(_profile(group, _widths(frame, _EXECUTE), _widths(frame, _WARM), where)) for _, group in groups)
    except KeyError as error:
        raise _misfit(f"column {error} is missing", where) from error
    except (TypeError, ValueError) as error:
        raise _misfit(f"a cell is not of its column's type: {error}", where) from error


def _widths(frame: pd.DataFrame, pattern: re.Pattern[str]) -> dict[str, int]:
    """Return columns of executions: name -> width."""
    return {m[0]: int(m[1]) for m in map(pattern.fullmatch, map(str, frame.columns)) if m}


def _profile(frame: pd.DataFrame, widths: dict[str, int], warm: dict[str, int], where: str) -> Profile:
    records: list[dict[str, Any]] = [{str(k): v for k, v in r.items()} for r in frame.to_dict("records")]
    head = records[0]
    if any(r[name] != head[name] for r in records for name in (*_CORES, "start_ms", *_CONTENTION, *_FRESH)):
        raise _misfit(f"cores or factors differ between the rows of {head['model']}, {head['layout']}", where)
    steps: dict[int, list[dict[str, Any]]] = {}
    for r in records:
        steps.setdefault(int(r["step"]), []).append(r)
    if sorted(steps) != list(range(len(steps))):
        raise _misfit(f"steps of {head['model']}, {head['layout']} are not numbered 0 to {len(steps) - 1}", where)
    layers = tuple(_layer(steps[k], widths, warm, where) for k in range(len(steps)))
    contention, fresh = Contention(*(float(head[n]) for n in _CONTENTION)), Fresh(*(float(head[n]) for n in _FRESH))
    cores = int(head["big_cores"]), int(head["little_cores"]), float(head["little_ratio"])
    return Profile(str(head["model"]), str(head["layout"]), *cores, layers, contention, float(head["start_ms"]), fresh)


def _layer(rows: list[dict[str, Any]], widths: dict[str, int], warm: dict[str, int], where: str) -> Layer:
    if len({(r["name"], r["members"]) for r in rows}) > 1:
        raise _misfit(f"step {rows[0]['step']} has several names", where)
    members = json.loads(rows[0]["members"])
    return Layer(str(rows[0]["name"]), tuple(map(str, members)), tuple(_candidate(r, widths, warm) for r in rows))


def _candidate(row: dict[str, Any], widths: dict[str, int], warm: dict[str, int]) -> Candidate:
    def by_core(stage: str) -> dict[str, float]:
        times = {core: row[f"{stage}_{core}_ms"] for core in (BIG, LITTLE)}
        return {core: float(time) for core, time in times.items() if pd.notna(time)}

    def by_width(columns: dict[str, int]) -> dict[int, float]:
        return {width: float(row[name]) for name, width in columns.items() if pd.notna(row[name])}

    return Candidate(
        str(row["implementation"]),
        str(row["source"]),
        by_core("read"),
        by_core("create"),
        by_core("transform"),
        by_width(widths),
        warm_ms=by_width(warm),
        **{name: int(row[name]) for name in _SIZES},
    )


def _misfit(what: str, where: str) -> FormatError:
    return FormatError(f"the profile table does not fit: {what}", where=where, next_step="profile the model again")


def remaining_table(profiles: Iterable[Profile], *, disk: bool = False) -> pd.DataFrame:
    """Count the candidates that the filter leaves (section 3.3 reports 1-2 kernels an operator), a row a model and layout."""
    rows = []
    for p in profiles:
        kept = [len(positions) for positions in undominated(p, disk=disk)]
        all_of_them = [len(layer.candidates) for layer in p.layers]
        rows.append(
            {
                "model": p.model,
                "layout": p.layout,
                "steps": len(kept),
                "candidates": sum(all_of_them),
                "remaining": sum(kept),
                "remaining_mean": sum(kept) / len(kept),
                "remaining_max": max(kept),
            }
        )
    return pd.DataFrame(rows)
