"""`edgeplan device adapt` tells what it measured, what to expect of it, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeplan.chapters.prediction.adapting import Adapted
from edgeplan.cli.adapt import told


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
