"""Trainings in processes of their own: the same as here, errors come through, and a death is named."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pandas as pd
import pytest
from edgeplan.chapters.prediction.training_part import train_in_process
from edgeplan.predictors.training import train_predictor
from law_of_latency import ABOUT, SETTINGS, rows

from edgeplan.chapters.prediction import training_part
from edgeplan.errors import FormatError


def test_another_process_trains_the_same(tmp_path: Path) -> None:
    table = rows(150)
    here, held_out = train_predictor(table, SETTINGS, **ABOUT)
    there, held_out_there = train_in_process(tmp_path, table, SETTINGS, ABOUT)
    assert (there.card, there.texts) == (here.card, here.texts)
    pd.testing.assert_frame_equal(held_out_there, held_out)


def test_what_does_not_fit_is_told_as_here(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="every labelled kernel is excluded from training") as caught:
        train_in_process(tmp_path, rows(100).assign(sampler="frozen"), SETTINGS, ABOUT)
    assert (caught.value.where, caught.value.next_step) == ("training table", "sample kernels")


def test_a_process_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is one that kills itself, as a library that crashes would."""
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\nkill -SEGV $$\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(training_part.sys, "executable", str(interpreter))
    assert os.access(interpreter, os.X_OK)
    with pytest.raises(FormatError, match=f"a training was ended by {signal.SIGSEGV.name}"):
        train_in_process(tmp_path, rows(20), SETTINGS, ABOUT)
