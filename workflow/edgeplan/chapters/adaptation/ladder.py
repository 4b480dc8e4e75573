"""Climbs the ladder of budgets: predictors of a new device from so many seconds of measuring, adapted and from scratch.

Rungs are cut out of kept rows: carriers and small whole models are drawn as a device is adapted live, until their recorded
seconds are spent. Every draw of a rung serves all that is compared.

A process of its own computes the rungs of one device: `python -m edgeplan.chapters.adaptation.ladder FOLDER`, since trainings
in threads of one process are not held apart by LightGBM.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.adaptation.kept import UNSEEN_MODEL, VARIANT, KeptDevice, model_kernels, tables_of
from edgeplan.chapters.adaptation.settings import AdaptationSettings
from edgeplan.errors import FormatError
from edgeplan.predictors.adapted import AdaptedPredictor, fitted_to_models, old_member, scratch_member
from edgeplan.predictors.adapting import NewDevice, from_scratch, joined, rows_of, said_us, strata_of
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels
from edgeplan.predictors.kind_factors import fit_factors
from edgeplan.predictors.labels import read_labels
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.said import Recalling
from edgeplan.predictors.strata import Strata, drawn
from edgeplan.support import cpus
from edgeplan.support.files import write_json
from edgeplan.support.frames import read_document, read_parquet, write_parquet
from edgeplan.support.subprocesses import ending, module_command, run

#: Names of what is compared: the predictor of an old device as it is, adapted, and from scratch.
OLD, ADAPTED, SCRATCH = "old", "adapted", "scratch"
#: The source of a predictor that is adapted without an old device of its engine: all others together.
POOLED = "pooled"
#: The budget, in seconds, that stands for all rows.
ALL_SECONDS = 1e6
#: Samplers whose carriers are drawn with all rows alone, as no live draw has them: whole published networks, which take
#: seconds each, and convolutions beyond those that models mostly hold.
_NOT_DRAWN = ("network", "beyond")
#: From such a budget on draws share most of what was measured, and few do; likewise of all devices pooled, which take longest.
_LONG_S, _FEW_DRAWS = 300.0, 2
_JOB, _FOUND = "job.json", "found.parquet"


@dataclass(frozen=True)
class Drawn:
    """Holds the carriers and whole models that a budget pays for.

    Attributes:
        subjects: carriers.
        models: numbers of calibrating models.
        seconds: time that all of it took to measure, the start included.
    """

    subjects: frozenset[str]
    models: npt.NDArray[np.int64]
    seconds: float


@dataclass(frozen=True)
class LadderDevice:
    """Describes a device that is adapted to, as rungs know it.

    Attributes:
        kept: its measurements.
        calibrating: kernels of its calibrating models, in their order.
        judged: whole models that predictors are judged by.
        tables: kernel tables of the models.
    """

    kept: KeptDevice
    calibrating: list[ModelKernels]
    judged: pd.DataFrame
    tables: KernelTables

    @staticmethod
    def of(kept: KeptDevice) -> LadderDevice:
        """Split the models of a device into kernels."""
        judged = kept.models[kept.models["use"].isin([VARIANT, UNSEEN_MODEL])].reset_index(drop=True)
        return LadderDevice(
            kept, model_kernels(kept.calibrating, kept.rules), judged, tables_of(model_kernels(judged, kept.rules))
        )

    def new(self, draw: Drawn) -> NewDevice:
        """Collect the kernels and whole models that a draw measured of the device."""
        about, kernels = self.kept.about, self.kept.kernels
        return NewDevice(
            about.device,
            about.engine,
            about.engine_version,
            about.measured_at,
            about.call_us,
            about.plain_layouts,
            kernels[kernels["subject"].isin(draw.subjects)].reset_index(drop=True),
            [self.calibrating[i] for i in draw.models],
            self.kept.calibrating["measured_ms"].to_numpy(float)[draw.models],
        )


@dataclass(frozen=True)
class Pool:
    """Holds the carriers that are drawn from, by the strata of their kernels.

    Attributes:
        seconds: measuring time of each carrier, by its subject.
        apart: whether it is drawn with all rows alone (`_NOT_DRAWN`).
        strata: strata of the calibrating models' kernels.
        samples: kernels of each carrier by stratum.
    """

    seconds: pd.Series
    apart: npt.NDArray[np.bool_]
    strata: Strata
    samples: list[dict[tuple[str, int], int]]

    @staticmethod
    def of(target: LadderDevice, guide: DevicePredictor) -> Pool:
        """Make the pool of a device; an old device's predictor, the guide, tells the strata."""
        rows, seconds = target.kept.kernels, target.kept.carriers
        sampler = rows.drop_duplicates("subject").set_index("subject")["sampler"]
        kind, said = rows["kind"].to_numpy(), said_us(guide, rows)
        places = rows.groupby("subject", sort=False).indices
        strata = strata_of(guide, target.calibrating)
        samples = [strata.counts(kind[places[s]].tolist(), said[places[s]]) for s in seconds.index]
        return Pool(seconds, sampler.loc[seconds.index].isin(_NOT_DRAWN).to_numpy(), strata, samples)


def draws(target: LadderDevice, pool: Pool, settings: AdaptationSettings, budget_s: float, seed: int) -> Drawn:
    """Draw what is measured within a budget: strata of carriers, and one family's models after another's.

    What would go beyond the budget is passed over, as it is live, where its time is told from that of those before.

    Args:
        target: the device.
        pool: carriers to draw from.
        settings: shares of the budget.
        budget_s: seconds; `ALL_SECONDS` for all.
        seed: of the draw.
    """
    rng = np.random.default_rng([seed, round(1000 * budget_s) % 2**31])
    kept = target.kept
    whole = budget_s >= ALL_SECONDS
    left = max(budget_s - settings.start_seconds, 0.0)
    models, for_models = _spent(
        _by_family(kept.calibrating, rng), kept.calibrating["seconds"].to_numpy(float), settings.models_share * left
    )
    allowed = np.arange(len(pool.samples)) if whole else np.flatnonzero(~pool.apart)
    order = [int(allowed[i]) for i in drawn(pool.strata, [pool.samples[i] for i in allowed], rng)]
    carriers, for_carriers = _spent(order, pool.seconds.to_numpy(float), left - for_models)
    subjects = frozenset(pool.seconds.index[carriers].tolist())
    return Drawn(subjects, np.array(models, np.int64), min(budget_s, settings.start_seconds) + for_models + for_carriers)


def _spent(order: Sequence[int], seconds: npt.NDArray[np.float64], budget_s: float) -> tuple[list[int], float]:
    """Take in order what the budget holds; return the numbers taken, and their seconds."""
    taken, spent = list[int](), 0.0
    for number in order:
        if spent + seconds[number] <= budget_s:
            taken.append(int(number))
            spent += float(seconds[number])
    return taken, spent


def _by_family(models: pd.DataFrame, rng: np.random.Generator) -> list[int]:
    """Draw the order of models at random, so that each family has its n-th before any has its next."""
    order = rng.permutation(len(models))
    family = models["family"].to_numpy()[order]
    turn = pd.Series(family).groupby(family).cumcount().to_numpy()
    return [int(i) for i in order[np.argsort(turn, kind="stable")]]


def old_predictor(target: LadderDevice) -> DevicePredictor:
    """Train the predictor of a device from all its rows, as others are adapted from."""
    every = Drawn(frozenset(target.kept.carriers.index), np.arange(len(target.calibrating)), ALL_SECONDS)
    new = target.new(every)
    trained = from_scratch(new)
    if trained is None:
        raise FormatError(
            f"too few kernels of {target.kept.about.device} to learn from",
            where="data/transfer",
            next_step="measure more of them",
        )
    models = KernelTables.of(new.models)
    found = trained.predict_many(models, allow_partial=True)
    whole = found.coverage == 1
    fitted = fit_factors(found.by_kind_ms[:, whole], new.call_us / 1e3, new.measured_ms[whole])
    known = {regressor.kind for regressor in trained.card.regressors}
    factors = {kind: factor for kind, factor in zip(found.kinds, fitted.tolist(), strict=True) if kind in known}
    interval = _alone(trained, new, models).card.interval
    return replace(trained, card=trained.card.model_copy(update={"factors": factors, "interval": interval}))


def _alone(trained: DevicePredictor, new: NewDevice, models: KernelTables) -> AdaptedPredictor:
    """Return a predictor from scratch with factors and an interval by whole models, as an adapted one has them."""
    alone = AdaptedPredictor.of([scratch_member(trained, alone=True)], trained.card)
    return fitted_to_models(alone, models, new.measured_ms)


def rungs(
    target: LadderDevice,
    own: DevicePredictor,
    olds: Mapping[str, DevicePredictor],
    engines: dict[str, str],
    settings: AdaptationSettings,
) -> Iterator[pd.DataFrame]:
    """Climb every rung of a device: a row for each judged model and each predictor.

    Args:
        target: the device.
        own: its own predictor from all its rows, as others are adapted from.
        olds: predictors of other devices by name.
        engines: their engines.
        settings: budgets, shares and seeds.
    """
    same = [name for name in olds if engines[name] == target.kept.about.engine]
    sources = {name: [name] for name in same} | ({POOLED: list(olds)} if olds else {})
    pool = Pool.of(target, olds[(same or list(olds))[0]])
    labels = read_labels(target.kept.kernels)
    rows, subjects = {name: rows_of(old, labels) for name, old in olds.items()}, pd.Index(labels.frame["subject"].unique())
    for name in same:
        yield _judged(target, olds[name], (OLD, name, 0.0, 0), None)
    for budget_s in (*settings.budgets_seconds, ALL_SECONDS):
        for seed in range(1 if budget_s >= ALL_SECONDS else settings.seeds if budget_s < _LONG_S else _FEW_DRAWS):
            draw = draws(target, pool, settings, budget_s, seed)
            new = target.new(draw)
            models = KernelTables.of(new.models)
            trained = from_scratch(new) if budget_s < ALL_SECONDS else own.without_factors()
            scratch = Recalling.of(trained) if trained is not None else None
            if scratch is not None:
                yield _judged(target, _alone(scratch, new, models), (SCRATCH, "", budget_s, seed), draw)
            groups = np.flatnonzero(subjects.isin(draw.subjects))
            measured = {name: every.take(np.isin(every.group, groups)) for name, every in rows.items()}
            shown = {name: chosen for name, chosen in sources.items() if name != POOLED or seed < _FEW_DRAWS}
            asked = dict.fromkeys(old for chosen in shown.values() for old in chosen)
            members = {old: old_member(olds[old], measured[old], seed) for old in asked}
            for name, chosen in shown.items():
                found = joined(new, [members[old] for old in chosen], scratch, models)
                yield _judged(target, found, (ADAPTED, name, budget_s, seed), draw)


def _judged(
    target: LadderDevice, predictor: DevicePredictor, what: tuple[str, str, float, int], draw: Drawn | None
) -> pd.DataFrame:
    found = predictor.predict_many(target.tables, allow_partial=True)
    method, source, budget_s, seed = what
    return pd.DataFrame(
        {
            "target": target.kept.about.device,
            "source": source,
            "method": method,
            "budget_s": budget_s,
            "seed": seed,
            "model_id": target.judged["model_id"],
            "use": target.judged["use"],
            "measured_ms": target.judged["measured_ms"].astype("float32"),
            "predicted_ms": found.latency_ms.astype("float32"),
            "low_ms": found.low_ms.astype("float32"),
            "high_ms": found.high_ms.astype("float32"),
            "spent_s": draw.seconds if draw else 0.0,
            "carriers": len(draw.subjects) if draw else 0,
            "whole_models": len(draw.models) if draw else 0,
        }
    )


def in_processes(kept: Path, devices: Sequence[str], settings: AdaptationSettings, folder: Path) -> pd.DataFrame:
    """Climb the ladder of all devices, a process each: first what others are adapted from, then the rungs.

    Args:
        kept: folder of the devices.
        devices: their names.
        settings: budgets, shares and seeds.
        folder: an empty one, for what processes tell each other.

    Raises:
        FormatError: rows do not fit, or a process died.
    """
    common = {"kept": str(kept.resolve()), "devices": list(devices), "settings": settings.model_dump(mode="json")}
    for step in ("old", "rungs"):
        for name in devices:
            write_json(folder / step / name / _JOB, {**common, "step": step, "device": name, "olds": str(folder / "old")})
        with ThreadPoolExecutor(cpus.workers()) as pool:
            list(pool.map(_process, [folder / step / name for name in devices]))
    return pd.concat([read_parquet(folder / "rungs" / name / _FOUND) for name in devices], ignore_index=True)


def _process(folder: Path) -> None:
    done = run(module_command(__name__, str(folder)), capture_output=False)
    if done.returncode:
        raise FormatError(f"computing rungs {ending(done.returncode)}", where=str(folder), next_step="run the stage again")


def _main(folder: Path) -> None:
    job = read_document(folder / _JOB, "kept", "devices", "settings", "step", "device", "olds")
    settings = AdaptationSettings.model_validate(job["settings"])
    kept = {name: KeptDevice.read(Path(job["kept"]) / name) for name in job["devices"]}
    target = LadderDevice.of(kept[job["device"]])
    if job["step"] == "old":
        old_predictor(target).save(folder / "predictors")
        return
    trained = {name: DevicePredictor.load(Path(job["olds"]) / name / "predictors") for name in kept}
    olds = {name: Recalling.of(predictor) for name, predictor in trained.items() if name != job["device"]}
    engines = {name: device.about.engine for name, device in kept.items()}
    write_parquet(
        pd.concat(list(rungs(target, trained[job["device"]], olds, engines, settings)), ignore_index=True), folder / _FOUND
    )


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
