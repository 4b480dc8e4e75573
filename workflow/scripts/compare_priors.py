"""What the prior of shipped devices is worth to a device: `python workflow/scripts/compare_priors.py DEVICE`.

Trains the device without a prior, with all shipped devices, and with those of other engines alone, and judges
each by what no training has seen: kernels and carriers of the frozen set, and whole calibrating models (with
factors fitted on others of them). No evaluated model is looked at. `--carriers 20 --networks 12` keeps the
first carriers of the adaptive sampler and the quickest networks of a device measured at length, as a quick
profile would: then nothing of the machine itself may be a prior, and only other engines are.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from edgeplan.chapters.params import load_params
from edgeplan.chapters.prediction.model_tables import kernels_of
from edgeplan.chapters.prediction.stages.training import calibrated
from edgeplan.chapters.prediction.training_part import train_in_process
from edgeplan.devices.config import load_device
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.predictors.kernel_tables import KernelTables
from edgeplan.predictors.kind_factors import cross_fitted_ms
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.training_rows import FURTHER, LACKING, trained_on
from edgeplan.support import cpus
from edgeplan.support.frames import read_document, read_parquet
from edgeplan.workspace import KERNELS, SHIPPED

_NETWORK = "network"
_QUICK_TRIALS = 4
_ABOUT = ("device", "engine", "engine_version", "measured_at", "call_us", "plain_layouts")


def main() -> None:
    """Train, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--carriers", type=int, default=0)
    parser.add_argument("--networks", type=int, default=0)
    asked = parser.parse_args()
    folder = asked.results / asked.device
    settings = load_params(Path("params.yaml")).training
    if asked.carriers:
        settings = settings.model_copy(update={"trials": _QUICK_TRIALS, "seeds": settings.seeds[:1]})
    document = read_document(folder / "measurements/sampling.json", "mode", *_ABOUT)
    table = read_parquet(folder / "measurements/kernels.parquet")
    frozen = (table["mode"] == document["mode"]) & (table["sampler"] == "frozen")
    own = table[trained_on(table, document["mode"])]
    if asked.carriers:
        own = _first(own, asked.carriers, asked.networks)
    rows = pd.concat([own, table[frozen]], ignore_index=True)
    whole = read_parquet(folder / "calibration/models.parquet", "model_id", "family", "spec", "measured_ms")
    models, measured_ms = kernels_of(whole, read_rules(folder / "fusion/rules.json")), whole["measured_ms"].to_numpy(float)
    shipped = sorted(path.parent.name for path in SHIPPED.glob(f"*/{KERNELS}"))
    others = [name for name in shipped if load_device(name).engine != document["engine"]]
    priors = {"none": (), "other engines": tuple(others), "all shipped": tuple(shipped)}
    if asked.carriers:  # of this very machine: its own rows would come back as a prior
        del priors["all shipped"]
    about = {name: document[name] for name in _ABOUT}
    print(f"{asked.device}: {len(own)} own rows of {own['subject'].nunique()} subjects")  # noqa: T201  its output is its purpose
    with TemporaryDirectory() as temporary, ThreadPoolExecutor(cpus.workers()) as pool:
        started = {
            name: pool.submit(
                train_in_process, Path(temporary) / str(number), rows, settings.model_copy(update={"prior": prior}), about
            )
            for number, (name, prior) in enumerate(priors.items())
        }
        found = {name: _judged(*future.result(), models, measured_ms) for name, future in started.items()}
    print(pd.DataFrame(found).T.rename_axis("prior").round(3).to_markdown())  # noqa: T201  as above


def _first(own: pd.DataFrame, carriers: int, networks: int) -> pd.DataFrame:
    """The first subjects of each sampler, and of the networks those that take the least."""
    kept = []
    for sampler, rows in own.groupby("sampler", sort=False):
        if sampler == _NETWORK:
            subjects = rows.groupby("subject")["latency_us"].sum().sort_values().index[:networks]
        else:
            whole = sampler in (FURTHER, LACKING)
            subjects = rows["subject"].drop_duplicates()[: None if whole else carriers if sampler == "adaptive" else 0]
        kept.append(rows[rows["subject"].isin(set(subjects))])
    return pd.concat(kept)


def _judged(
    predictor: DevicePredictor, held_out: pd.DataFrame, models: KernelTables, measured_ms: np.ndarray
) -> dict[str, float]:
    frozen = held_out[held_out["split"] == "frozen"].astype({"predicted_us": float, "measured_us": float})
    error = np.abs(np.log(frozen["predicted_us"] / frozen["measured_us"]))
    sums = frozen.groupby("subject")[["predicted_us", "measured_us"]].sum()
    of_carriers = np.abs(np.log(sums["predicted_us"] / sums["measured_us"]))
    whole = predictor.predict_many(models, allow_partial=True)
    known = whole.coverage == 1
    by_kind, call_ms = whole.by_kind_ms[:, known], predictor.card.call_us / 1e3
    of_models = np.abs(np.log(cross_fitted_ms(by_kind, call_ms, measured_ms[known]) / measured_ms[known]))
    plain = np.log(whole.latency_ms[known] / measured_ms[known])
    told = calibrated(predictor, models, measured_ms).predict_many(models, allow_partial=True)
    return {
        "kernels, mean error": float(error.mean()),
        "within 10 %": float((error < 0.1).mean()),  # as the column says
        "carriers, mean error": float(of_carriers.mean()),
        "carriers within 10 %": float((of_carriers < 0.1).mean()),
        "models, median": float(np.median(of_models)),
        "models within 10 %": float((of_models < 0.1).mean()),
        "plain sums, median of error": float(np.median(plain)),
        "plain sums within 10 %": float((np.abs(plain) < 0.1).mean()),
        "half width": float(np.median(told.high_ms / told.latency_ms - 1)),
    }


if __name__ == "__main__":
    main()
