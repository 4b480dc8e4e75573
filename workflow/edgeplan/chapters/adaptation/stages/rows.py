"""Stage `adaptation_rows`: gather the rows of a device of this workspace in one folder for the ladder."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from edgeplan.chapters.adaptation.kept import (
    ABOUT,
    CALIBRATING,
    CARRIERS,
    KERNELS,
    MODELS,
    RULES,
    UNSEEN_MODEL,
    VARIANT,
    About,
)
from edgeplan.predictors.training_rows import trained_on
from edgeplan.support.files import write_atomically, write_text
from edgeplan.support.frames import read_document, read_parquet, write_parquet

#: Samplers whose carriers are no sample that a device would be adapted by: uniform ones, of which few models have any.
_LEFT_OUT = ("random",)
_COLUMNS = [
    *("subject", "sampler", "kind", "config", "implementation", "input_state", "input_layout", "output_layout"),
    *("latency_us", "noise"),
]


def keep_rows(
    *,
    device: str,
    kernels: Path,
    summary: Path,
    rules: Path,
    calibration: Path,
    truth: Path,
    environment: Path,
    models: Path,
    measured: Path,
    results: Path,
    kept: Path,
) -> None:
    """Write the folder of a device from its results and rows.

    Args:
        device: its name.
        kernels: labelled kernels.
        summary: the sampler's document.
        rules: fusion rules.
        calibration: calibrating whole models.
        truth: evaluated ones.
        environment: the environment of the machine that measured.
        models: the zoo's models, with the specification of each.
        measured: folder of stored rows, which tell the seconds.
        results: folder of the device's results: unseen architectures, where they were measured.
        kept: folder to write to.
    """
    told, machine = (
        read_document(summary, "mode", "engine", "engine_version", "measured_at", "call_us"),
        read_document(environment),
    )
    table = read_parquet(kernels, "mode", *_COLUMNS)
    chosen = trained_on(table, str(told["mode"])) & (table["mode"] == "in_situ") & ~table["sampler"].isin(_LEFT_OUT)
    table = table.loc[chosen, _COLUMNS].reset_index(drop=True)
    seconds = _seconds(measured / "sampling").reindex(table["subject"].unique())
    write_parquet(table.astype({"latency_us": "float32", "noise": "float32"}), kept / KERNELS)
    write_parquet(pd.DataFrame({"subject": seconds.index, "seconds": seconds.to_numpy()}), kept / CARRIERS)
    write_parquet(_models(calibration, truth, models, results / "unseen" / "models.csv", measured), kept / MODELS)
    write_atomically(kept / RULES, functools.partial(shutil.copyfile, rules))
    about = About(
        format_version=1,
        device=device,
        engine=str(told["engine"]),
        engine_version=str(told["engine_version"]),
        threads=int(machine.get("device", {}).get("threads", 1)),
        cpu=str(machine["cpu"]),
        cpu_family_model=str(machine.get("cpu_family_model", "")),
        fingerprint=str(machine["fingerprint"]),
        measured_at=str(told["measured_at"]),
        call_us=float(told["call_us"]),
        plain_layouts=dict(told.get("plain_layouts", {})),
    )
    write_text(kept / ABOUT, about.model_dump_json(indent=1) + "\n")


def _seconds(rows: Path) -> pd.Series:
    """Return the seconds that the first measurement of each subject took, by its id."""
    read = [
        pq.read_table(path, columns=["subject", "sample", "seconds"]).to_pandas()
        for path in sorted(rows.glob("*-rows-*.parquet"))
    ]
    first = pd.concat(read)
    first = first[first["sample"] == 0]
    seconds: pd.Series = first.drop_duplicates("subject").set_index("subject")["seconds"]
    return seconds


def _models(calibration: Path, truth: Path, models: Path, unseen: Path, measured: Path) -> pd.DataFrame:
    """Return whole models of all uses with their seconds: of calibrating ones their own, the mean where a row does not tell."""
    calibrating = read_parquet(calibration, "model_id", "family", "spec", "measured_ms")
    mean = float(_seconds(measured / "calibration").mean())
    variants = read_parquet(truth, "model_id", "family", "measured_ms").merge(
        read_parquet(models, "model_id", "spec")[["model_id", "spec"]], on="model_id", validate="one_to_one"
    )
    parts = [
        calibrating.assign(use=CALIBRATING, seconds=calibrating.get("seconds", mean)),
        variants.assign(use=VARIANT, seconds=mean),
    ]
    if unseen.is_file():
        found = pd.read_csv(unseen)
        parts.append(
            pd.DataFrame(
                {
                    "model_id": found["model"],
                    "family": "",
                    "use": UNSEEN_MODEL,
                    "spec": "",
                    "measured_ms": found["measured_ms"],
                    "seconds": mean,
                }
            )
        )
    columns = ["model_id", "family", "use", "spec", "measured_ms", "seconds"]
    return pd.concat([part[columns] for part in parts], ignore_index=True)
