"""Compares the ways to serve a model on this machine: `edgeplan.compare`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeplan.comparing.against import in_turns, with_kept
from edgeplan.comparing.bench import Bench
from edgeplan.comparing.result import Comparison, Held, LeftOut, read
from edgeplan.comparing.turns import Turns
from edgeplan.comparing.ways import REFERENCE, Source, Way, engines, processors_of, ways
from edgeplan.devices.pairs import load_pair
from edgeplan.engines.registry import SETTINGS
from edgeplan.errors import EdgeplanError, ParamsError, require_known
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.prepare import Preparation, Shapes, prepare_file
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import Others
from edgeplan.measurement.references import References
from edgeplan.measurement.settings import TimeBudget
from edgeplan.support.files import FilePath
from edgeplan.support.machine import fingerprint
from edgeplan.support.scratch import ScratchFolder

_LOOKS = 8  # at the reference, before and after


def compare(
    model: FilePath,
    *,
    device: FilePath = "cpu-onednn",
    budget_seconds: float = 60.0,
    engine: Sequence[str] = (),
    against: FilePath = "",
    pair: FilePath = "",
    at_once: int = 16,
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
) -> Comparison:
    """Serve a model in all ways that there are on this machine, in turns, and tell what each takes.

    An interrupt from the keyboard ends it; what is known by then is returned.

    Args:
        model: ONNX file.
        device: name of a device file, or a path to one: its processors are used, and plans are made for it.
        budget_seconds: that all of it may take.
        engine: those to compare; without any, all that are known; with a model to hold it against, ONNX Runtime.
        pair: name of a pair file, or a path to one: its second processor serves alone, beside the first, and in a split.
        at_once: requests that come at once, for one of the goals.
        against: ONNX file of another model, or a comparison that was kept as .json.
        preparation: as for `predict`; of the other model, too.
        shape: likewise.
        set: likewise.
        batch: likewise.

    Raises:
        ModelError: a model cannot be read, or what it leaves open is not given.
        ParamsError: there is no such engine, or no time is given.
        FormatError: what was kept is no comparison.
        BusyError: another process is measuring on this machine.
    """
    began, budget, wanted = time.monotonic(), TimeBudget.of(budget_seconds), Preparation.given(preparation, shape, set, batch)
    if not budget_seconds >= 1:
        raise ParamsError(f"nothing runs in {budget_seconds:g} s", where="--budget-seconds", next_step="give 10 or more")
    require_known("engine", engine, [*engines(), *SETTINGS], "--engine")
    kept = read(Path(against)) if Path(against).suffix == ".json" else None
    other = Path(against) if str(against) and kept is None else None
    names, processors = tuple(engine) or ((REFERENCE,) if other else engines()), processors_of(device)
    two = load_pair(Path(pair) if isinstance(pair, os.PathLike) else pair) if pair else None
    held, left_out, interrupted = list[Held](), list[LeftOut](), False
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(ScratchFolder("compare")))
        stack.enter_context(machine_lock(budget_seconds))
        turns, benches = stack.enter_context(Turns()), list[Bench]()
        for path in filter(None, (Path(model), other)):
            source = prepare_file(path, wanted, scratch / f"{len(benches)}.onnx")
            benches.append(
                Bench(turns, Source(source, scratch / f"of-{len(benches)}"), device, processors, budget, at_once, two)
            )
        watch, references = Others(processors), References()
        clock = references.time(_LOOKS).compute_us
        try:
            if other is None:
                benches[0].measure(ways(names, len(processors), two))
            for number, name in enumerate(names if other else ()):
                way = Way(name, len(processors), 1)
                try:
                    part = budget.part(1 / (len(names) - number))
                    held.append(in_turns(turns, way, benches[0], benches[1], processors, part))
                except EdgeplanError as error:
                    left_out.append(LeftOut(way.title, error.what))
        except KeyboardInterrupt:
            interrupted = True
        found = Comparison(
            model=Path(model).name, sha256=model_sha256(Path(model)), machine=fingerprint(), processors=processors,
            seconds=time.monotonic() - began, others=watch.share(), compute_us=min(clock, references.time(_LOOKS).compute_us),
            at_once=at_once, rows=benches[0].rows,
            left_out=(*benches[0].left_out, *left_out), held=tuple(held), interrupted=interrupted,
        )  # fmt: skip
    return found if kept is None else replace(found, held=with_kept(found, kept))
