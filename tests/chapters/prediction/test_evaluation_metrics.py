"""Metrics and baselines against values worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from edgeplan.chapters.prediction.evaluation.tables import LINEAR_BASELINES, leave_one_family_out, with_baselines
from edgeplan.errors import FormatError
from edgeplan.reporting import metrics


def test_rmse_and_rmspe_of_known_vectors() -> None:
    measured, predicted = [10.0, 20.0], [13.0, 16.0]
    assert metrics.rmse(measured, predicted) == pytest.approx(np.sqrt((9 + 16) / 2))
    assert metrics.rmspe(measured, predicted) == pytest.approx(100 * np.sqrt((0.3**2 + 0.2**2) / 2))


def test_within_counts_the_bound_itself_and_both_signs() -> None:
    measured, predicted = [100.0, 100.0, 100.0, 100.0, 3.0], [110.0, 90.0, 105.0, 111.0, 3.3]
    assert metrics.within(measured, predicted, 0.10) == pytest.approx(4 / 5)
    assert metrics.within(measured, predicted, 0.05) == pytest.approx(1 / 5)


def test_accuracy_gathers_all_metrics() -> None:
    hit = metrics.accuracy([10.0, 20.0], [10.4, 22.4])
    assert (hit.models, hit.within_5pct, hit.within_10pct) == (2, 0.5, 0.5)
    assert hit.rmspe == pytest.approx(100 * np.sqrt((0.04**2 + 0.12**2) / 2))


def test_coverage_includes_bounds_and_width_is_the_median() -> None:
    assert metrics.coverage([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 3.5, 3.0], [2.0, 2.0, 5.0, 3.9]) == 0.5
    assert metrics.relative_width([10.0, 10.0, 20.0], [9.0, 8.0, 18.0], [10.0, 14.0, 23.0]) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("measured", "predicted"),
    [
        ([1.0, float("nan")], [1.0, 1.0]),
        ([1.0, 1.0], [1.0, float("inf")]),
        ([1.0, 0.0], [1.0, 1.0]),
        ([1.0, 2.0], [1.0]),
        ([], []),
    ],
)
def test_bad_values_are_refused(measured: list[float], predicted: list[float]) -> None:
    with pytest.raises(FormatError, match="no pairs of finite numbers"):
        metrics.rmspe(measured, predicted)


def test_by_group_keeps_order_and_ends_with_all() -> None:
    frame = pd.DataFrame(
        {"family": ["vgg", "alexnet", "vgg"], "measured_ms": [10.0, 10.0, 10.0], "predicted_ms": [10.0, 12.0, 11.0]}
    )
    table = metrics.by_group(frame)
    assert list(table["family"]) == ["vgg", "alexnet", "all"]
    assert list(table["models"]) == [2, 1, 3]
    assert list(table["within_10pct"]) == pytest.approx([1.0, 0.0, 2 / 3])


def _linear_models() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    macs, memory = rng.uniform(1e8, 1e10, 12), rng.uniform(1e6, 1e9, 12)
    return pd.DataFrame(
        {
            "family": np.repeat(["vgg", "resnet", "alexnet"], 4),
            "macs": macs,
            "memory_bytes": memory,
            "measured_ms": 2.0 + 3e-9 * macs + 5e-8 * memory,
        },
        index=np.arange(100, 112),
    )


def test_regression_recovers_exact_lines_on_the_family_left_out() -> None:
    models = _linear_models()
    predicted = leave_one_family_out(models, LINEAR_BASELINES["flops_mac"])
    assert list(predicted.index) == list(models.index)
    np.testing.assert_allclose(predicted, models["measured_ms"], rtol=1e-9)


def test_a_family_is_never_trained_on_itself() -> None:
    models = _linear_models()
    before = leave_one_family_out(models, ("macs",))
    vgg = models["family"] == "vgg"
    changed = models.assign(measured_ms=models["measured_ms"].where(~vgg, models["measured_ms"] * 7))
    after = leave_one_family_out(changed, ("macs",))
    np.testing.assert_allclose(after[vgg], before[vgg])
    assert not np.allclose(after[~vgg], before[~vgg])


def test_with_baselines_adds_both_columns() -> None:
    table = with_baselines(_linear_models())
    assert {"flops_ms", "flops_mac_ms"} <= set(table.columns)
    assert metrics.rmspe(table["measured_ms"], table["flops_mac_ms"]) < metrics.rmspe(table["measured_ms"], table["flops_ms"])
