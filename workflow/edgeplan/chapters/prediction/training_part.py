"""Runs one training in a process of its own: `python -m edgeplan.chapters.prediction.training_part FOLDER`.

LightGBM does not hold trainings in several threads of one process apart: now and then one ended in a segmentation fault. Nor
can they be forked from a process that has started threads of OpenMP, or run in a pool that imports `__main__`, which is a
script of Snakemake.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.errors import EdgeplanError, FormatError
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.training import train_predictor
from edgeplan.support.files import write_json
from edgeplan.support.frames import read_document, read_parquet, write_parquet
from edgeplan.support.subprocesses import ending, module_command, run

_ROWS, _JOB, _PREDICTORS, _HELD_OUT, _ERROR = "rows.parquet", "job.json", "predictors", "held_out.parquet", "error.json"


def train_in_process(
    folder: Path, rows: pd.DataFrame, settings: TrainingSettings, about: Mapping[str, Any]
) -> tuple[DevicePredictor, pd.DataFrame]:
    """Train as `train_predictor` does, in a process of its own.

    Args:
        folder: empty; what the two processes tell each other goes there.
        rows: labelled kernels.
        settings: how to train.
        about: the further arguments of `train_predictor`.
    """
    write_parquet(rows, folder / _ROWS)
    write_json(folder / _JOB, {"settings": settings.model_dump(mode="json"), "about": dict(about)})
    done = run(module_command(__name__, str(folder)), capture_output=False)
    if (folder / _ERROR).is_file():
        told = read_document(folder / _ERROR, "what", "where", "next_step")
        raise FormatError(str(told["what"]), where=str(told["where"]), next_step=str(told["next_step"]))
    if done.returncode:
        raise FormatError(f"a training {ending(done.returncode)}", next_step="run it again")
    return DevicePredictor.load(folder / _PREDICTORS), read_parquet(folder / _HELD_OUT)


def _main(folder: Path) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    job = read_document(folder / _JOB, "settings", "about")
    try:
        settings = TrainingSettings.model_validate(job["settings"])
        predictor, held_out = train_predictor(read_parquet(folder / _ROWS), settings, **job["about"])
    except EdgeplanError as error:
        write_json(folder / _ERROR, {"what": error.what, "where": error.where, "next_step": error.next_step})
        return
    predictor.save(folder / _PREDICTORS)
    write_parquet(held_out, folder / _HELD_OUT)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
