"""Selects the rows of the training table that the predictors of a device learn from, for training and for tables."""

from __future__ import annotations

import pandas as pd

#: Name of kernels of kinds that no node of the engine showed: they are measured alone, whatever the mode of the device.
LACKING = "lacking"
#: Name of kernels in carriers of the kinds that no family has (`chapters/prediction/sampling/carriers_detection_text.py`).
FURTHER = "further"
#: Name of convolutions beyond those of the prior's walks (`chapters/prediction/sampling/carriers_large_grouped.py`).
BEYOND = "beyond"
#: Name of kernels in models of a single operator (`edgeplan.chapters.prediction.sampling.singles`).
SINGLE = "single"
#: Samplers whose rows the predictors of a device learn from.
TRAINED_ON = ("adaptive", "random", "prior", "network", FURTHER, BEYOND, SINGLE, "isolated", LACKING)


def trained_on(table: pd.DataFrame, mode: str | None) -> pd.Series:
    """Return a mask of the rows that are trained on: those of `TRAINED_ON` in the device's measuring mode.

    Uniform samples alone predict models badly, but they hold the large depthwise kernels that the prior seldom draws. Carriers
    that two samplers share count once, for the first.

    Args:
        table: labelled kernels: sampler, and mode and subject if there are several.
        mode: the device's measuring mode; None takes rows of every mode.

    Returns:
        One boolean a row (rows,), with the table's index.
    """
    chosen: pd.Series = table["sampler"].isin(TRAINED_ON)
    if mode is not None and "mode" in table.columns:
        chosen &= (table["mode"] == mode) | (table["sampler"] == LACKING)
    if "subject" in table.columns:
        owner = table["sampler"].where(chosen).groupby(table["subject"]).transform("first")
        chosen &= table["sampler"] == owner
    return chosen
