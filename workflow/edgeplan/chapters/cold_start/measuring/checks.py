"""Checks outputs of the runtime against ONNX Runtime's, under every kernel choice that a plan can make."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.cold_start.measuring.artefacts import ColdModel
from edgeplan.graph.ir import Graph
from edgeplan.measurement.budget import TimeBudget
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import build_program, step_candidates
from edgeplan.runtime.session import SequentialSession
from edgeplan.runtime.weights import locate_weights
from edgeplan.support.protocols import protocol
from edgeplan.support.store import key_of
from edgeplan.support.table_store import TableStore
from edgeplan.support.tensors import read_outputs, relative_error

COLUMNS = ("model", "layout", "threads", "choice", "error", "kernels")


def check_key(model: str, version: str, isa: str, seed: int, choices: int, threads: Sequence[int]) -> str:
    """Return the digest of all that decides a check: the model, the library, what is tried, and the runtime's protocol."""
    return key_of([model, version, isa, seed, choices, *threads, protocol("runtime").name])


def check_outputs(
    dnnl: Dnnl,
    model: ColdModel,
    graph: Graph,
    reference: Callable[[], Path],
    *,
    threads: Sequence[int],
    seed: int,
    choices: int,
    kept: TableStore,
    budget: TimeBudget | None = None,
) -> tuple[pd.DataFrame, int]:
    """Run the model with the k-th candidate of every step (its last where it has fewer), for all k, home layouts and widths.

    Kernels are split over threads when they are created, so that those of another width are others.

    Args:
        dnnl: the library.
        model: the model.
        graph: its graph.
        reference: gives the outputs of ONNX Runtime for the seeded inputs, as .npz.
        threads: numbers of threads that plans execute on.
        seed: of the inputs.
        choices: try only the first so many; 0: all.
        kept: results by key, with `COLUMNS`; what was checked with this library and runtime is not checked again.
        budget: beyond it no more than the first choice under the first layout is run, and nothing is kept.

    Returns:
        model, layout, threads, choice (k), error (max|a - b| / max|b|), kernels (the distinct ones run, JSON); how many
        choices there was no time for.
    """
    key = f"{model.name}-{check_key(model.digest, dnnl.info.version, dnnl.info.isa, seed, choices, threads)}"
    if (found := kept.get(key)) is not None:
        return found, 0
    expected = [*read_outputs(reference()).values()]
    inputs = random_inputs(model.inputs, seed)
    lowered = lower(graph)
    weights = locate_weights(model.path, lowered)
    rows, left_out, budget = list[dict[str, Any]](), 0, budget or TimeBudget()
    for home, width in product(HOMES, threads):
        dnnl.set_threads(width)
        with dnnl.without_primitive_cache():  # what profiling left there would be offered, too, and could not be created
            offered = step_candidates(dnnl, lowered, home)
        most = max(map(len, offered))
        for k in range(min(most, choices or most)):
            if rows and budget.over:
                left_out += 1
                continue
            picked = [candidates[min(k, len(candidates) - 1)] for candidates in offered]
            program = build_program(dnnl, lowered, home, picked, weights, width)
            outputs = SequentialSession(dnnl, program, model.path.parent, width).run(inputs)
            error = relative_error([outputs[name] for name in graph.outputs], expected)
            kernels = json.dumps(sorted({c.name for c in picked}))
            place = {"model": model.name, "layout": home, "threads": width, "choice": k}
            rows.append({**place, "error": error, "kernels": kernels})
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    if not left_out:
        kept.commit({key: frame})
    return frame, left_out
