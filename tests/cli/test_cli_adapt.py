"""`edgeplan device adapt` tells what it measured, what to expect of it, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeplan.chapters.prediction.adapting import Adapted
from edgeplan.cli.adapt import told
from edgeplan.cli.memory import sureness_lines
from edgeplan.profiling.streaming import StreamProfile


def test_errors_of_models_that_were_measured_say_what_to_expect() -> None:
    found = Adapted("mine", "theirs", Path("results/mine/predictors"), 61.0, 300, 40, 0.06)
    first, measured, expect, following = told(found, 60.0)
    assert first == "results/mine/predictors: mine from theirs"
    assert measured == "measured 300 kernels and 40 whole models in 61 s"
    share = math.erf(math.log(1.1) / (0.06 * math.sqrt(2)))
    assert expect == f"expect {100 * share:.0f} % of models within 10 %"
    assert following == "next: edgeplan predict MODEL.onnx --device mine"


@pytest.mark.parametrize("spread", [math.nan, 0.0])
def test_too_few_models_ask_for_more_time(spread: float) -> None:
    *_, last = told(Adapted("mine", "theirs", Path("p"), 9.0, 30, 1, spread), 20.0)
    assert last == "too few whole models to say how good it is; next: --seconds 80"


def test_nothing_but_time_is_asked_for(edgeplan: Callable[..., Any]) -> None:
    done = edgeplan("device", "adapt", "mine", "--within", "10")
    assert done.code == 2
    assert "No such option: --within" in done.err


def _profile(run_ms: tuple[float, ...], others: float) -> StreamProfile:
    return StreamProfile(
        compute_ms=(1.0,), bytes_per_ms=1.0, lanes=2, objects_bytes=0, idle_bytes=0, run_ms=run_ms, lowest=(), others=others
    )


@pytest.mark.parametrize(
    ("run_ms", "unsure"),
    [((), 0.0), ((50.0, 10.0), 0.0), ((90.0, 10.0, 10.0, 10.0), 0.0), ((9.0, 8.0, 9.0, 10.0, 11.0, 12.0), 0.2)],
)
def test_quartiles_of_all_inferences_but_the_first_say_how_sure_times_are(run_ms: tuple[float, ...], unsure: float) -> None:
    assert _profile(run_ms, 0.0).unsure == pytest.approx(unsure)


def test_other_work_is_named_where_it_was_there() -> None:
    quiet, busy = (sureness_lines(_profile((9.0, 8.0, 12.0), others)) for others in (0.05, 0.5))
    assert len(quiet) == 1
    assert "20 %" in quiet[0]
    assert "50 % of the processors' time" in busy[1]
