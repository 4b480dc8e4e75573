"""Stage `partition`: samples, predictors, splits of layers, models end to end, handshakes; all that measures is here."""

from __future__ import annotations

import logging
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.partition import layers as drawing
from edgeplan.chapters.partition.costs import ModelCosts, fixed_share
from edgeplan.chapters.partition.layers import CONV, KINDS, LayerShape
from edgeplan.chapters.partition.learning.predictors import PLAIN, PairPredictors, augmented, save_pair_predictors, shape_matrix
from edgeplan.chapters.partition.learning.training import Predict, Trained, layers_of, train_pair
from edgeplan.chapters.partition.measuring.opened import LACKING, Opened, Runner, about_pair, on_all_cores, opened, running
from edgeplan.chapters.partition.measuring.rows import COLUMNS, WHEN, NotThereError, PartitionRows
from edgeplan.chapters.partition.measuring.samples import ChainPlace, anchor_session, timed, write_pool
from edgeplan.chapters.partition.measuring.samples import samples as measured_samples
from edgeplan.chapters.partition.measuring.splits import SplitMeasuring, part_rows
from edgeplan.chapters.partition.planned import PlannedModel, lowered_workload, plan_model, plan_steps
from edgeplan.chapters.partition.settings import ALL_CORES, SAME_PLAN, SIDES, PartitionParams, PartitionSettings
from edgeplan.devices.pairs import PairFile, load_pair
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.errors import DeviceError, EdgeplanError
from edgeplan.measurement.others import others_share, watched
from edgeplan.measurement.process import stock
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.planning.partition.costs import Choice, at_ratio, equal, greedy, in_sequence, single
from edgeplan.progress import in_line
from edgeplan.runtime.partitioned.session import Synchronisation, handshake
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.store import nothing_stored, stored_rows_only
from edgeplan.support.workers import ColdRunError
from edgeplan.workloads.registry import WORKLOADS, save_workload

OURS = "ours"
_NUMBERS = tuple(name for name in COLUMNS["models"] if name not in ("way", "reason"))
_US_PER_MS = 1e3


def measured(
    pair: PairFile, predictors: PairPredictors, model: Path, folder: Path, runs: int, settings: Sequence[str], pool: Path
) -> pd.DataFrame:
    """Measure a model in every way, with the columns of `rows.COLUMNS`; what cannot be measured has a reason."""
    rows: list[dict[str, Any]] = []
    try:
        with opened(pair) as both:
            planned = plan_model(model, predictors, both.names, both.synchronisation)
            rows += _interleaved(both, predictors, planned, runs, pool)
    except EdgeplanError as error:
        rows.append({"way": OURS, "reason": error.headline})
    rows += [_stock(pair, setting, model, folder, runs) for setting in settings]
    frame = pd.DataFrame(rows).reindex(columns=list(COLUMNS["models"]))
    frame["reason"] = frame["reason"].astype(object).fillna("").astype(str)
    frame[list(_NUMBERS)] = frame[list(_NUMBERS)].astype("float64")
    return frame


def _ways(costs: ModelCosts, predictors: PairPredictors) -> Mapping[str, Choice]:
    share = float(np.mean(list(predictors.card.fixed_share.values()) or [0.5]))  # best on the training samples
    return {
        **{side: single(costs.costs, lane) for lane, side in enumerate(SIDES)},
        "equal": equal(costs.costs),
        "fixed": at_ratio(costs.costs, share),
        "greedy": greedy(costs.costs),
    }


def _interleaved(
    pair: Opened, predictors: PairPredictors, planned: PlannedModel, count: int, pool: Path
) -> list[dict[str, Any]]:
    """Our plan first, then the others, one run of each after the other."""
    lowered, costs, plan = planned.lowered, planned.costs, planned.plan
    inputs = random_inputs({name: lowered.shapes[name] for name in lowered.inputs}, 0, lowered.types, lowered.limits)
    expected = onnxruntime_reference(planned.model, inputs)
    runs: list[Runner] = []
    ours = {"way": OURS, "predicted_ms": plan.makespan_ms, "splits": plan.splits}
    rows: list[dict[str, Any]] = [ours | {"plan_seconds": planned.seconds, "plan_gap": plan.gap}]
    with ExitStack() as stack:
        parts = [planned.partitioned(pair.block)]
        for way, choice in _ways(costs, predictors).items():
            parts.append(planned.partitioned(pair.block, costs.assignments(choice)))
            predicted = in_sequence(costs.costs, choice).makespan_ms
            rows.append({"way": way, "predicted_ms": predicted, "splits": costs.costs.splits(choice)})
        for row, made in zip(rows, parts, strict=True):
            run, told = running(pair, stack, made, planned.model, inputs, expected)
            row.update(told, steps=len(lowered.steps))
            runs.append(run)
        runs += on_all_cores(pair, planned.model, inputs)
        anchors: list[Runner] = [
            partial(stack.enter_context(anchor_session(pair, lane, pool)).inference_ms, {})
            for lane in (0, 1)
            if predictors.card.anchors_us
        ]
        times = np.array([[run() for run in (*runs, *anchors)] for _ in range(count)])
    pair.host.ready()
    for row, own in zip(rows, times.T, strict=False):
        row.update(_summary(own))
    rows[0]["slowdown"] = _slowdown(times[:, len(runs) :], predictors)
    beside = [_summary(own) for own in times.T[len(rows) : len(runs)]]
    best = min(beside, key=lambda found: found["median_ms"])
    return [*rows, {"way": ALL_CORES, "steps": len(lowered.steps), **best}]


def _slowdown(anchors_ms: npt.NDArray[np.float64], predictors: PairPredictors) -> float:
    """By how much the anchors took longer than when the samples were measured, both processors' mean."""
    usual_ms = [sum(predictors.card.anchors_us[side]) / _US_PER_MS for side in SIDES if side in predictors.card.anchors_us]
    if not usual_ms:
        return 1.0
    return float(np.exp(np.mean(np.log(np.median(anchors_ms, axis=0) / usual_ms))))


def _summary(times_ms: Any) -> dict[str, float]:
    """Median, and how far the medians of even and odd runs are apart."""
    found = [float(t) for t in times_ms]
    halves = [statistics.median(found[start::2] or found) for start in (0, 1)]
    return {"median_ms": statistics.median(found), "repeat": max(halves) / min(halves)}


def _stock(pair: PairFile, setting: str, model: Path, folder: Path, runs: int) -> dict[str, Any]:
    row: dict[str, Any] = {"way": setting}
    (folder / setting).mkdir()
    try:
        found = stock.run_model(setting, model, folder / setting, tuple(sorted(pair.cores)), runs + 1)
    except (ColdRunError, DeviceError) as error:
        return row | {"reason": error.headline}
    return row | _summary(found.run_ms[1:])


#: Figure -> its layer by output channels, and the range of these.
CURVES: Mapping[str, tuple[Callable[[int], LayerShape], int, int]] = {
    "figure_02": (lambda outputs: LayerShape.linear(50, 3072, outputs), 16, 1024),
    "figure_03": (lambda outputs: LayerShape.linear(50, 768, outputs), 64, 3072),
    "figure_05": (lambda outputs: LayerShape.linear(50, 768, outputs), 2048, 2560),
    "figure_06": (lambda outputs: LayerShape(CONV, 64, 64, 128, outputs, 3, 1), 16, 256),
}
_UNIT = 4  # channels: curves have jumps at vectors and tiles
_GROUPS = "work_groups"


def curves(measuring: SplitMeasuring, beside: Mapping[tuple[str, str], Predict]) -> pd.DataFrame:
    """Both processors and all predictors over the channels of each figure."""
    predictors, settings = measuring.predictors, measuring.settings
    parts = []
    for figure, (make, low, high) in CURVES.items():
        points = np.unique(np.round(np.linspace(low, high, settings.curve_points) / _UNIT).astype(int) * _UNIT)
        layers = [make(int(outputs)) for outputs in points]
        key = [[asdict(layer) for layer in layers], settings.fresh_runs]
        found = measuring.rows.found("curves", key, partial(_measured, measuring, layers))
        sides = {side: found[found["way"] == side].sort_values("place") for side in SIDES}
        _, matrix = augmented(layers, predictors.dispatcher)
        columns: dict[str, Any] = {"figure": figure, "outputs": points}
        for side, own in sides.items():
            columns |= {f"{side}_{name}": own[name].to_numpy() for name in ("us", "low_us", "high_us")}
        columns |= {"implementation": sides[SIDES[1]][f"{SIDES[1]}_implementation"].to_numpy()}
        features = predictors.dispatcher.features
        groups = matrix[:, features.index(_GROUPS) - len(features)] if _GROUPS in features else np.nan
        columns |= {_GROUPS: groups}
        columns |= {"ours_us": predictors.us(1, layers), "plain_us": predictors.us(1, layers, PLAIN)}
        shapes = shape_matrix(layers)
        columns |= {f"{name}_us": predict(shapes) for (name, kind), predict in beside.items() if kind == layers[0].kind}
        parts.append(pd.DataFrame(columns))
    measuring.rows.merge("curves")
    return pd.concat(parts, ignore_index=True)


def _measured(measuring: SplitMeasuring, layers: list[LayerShape]) -> pd.DataFrame:
    assert measuring.pair is not None  # noqa: S101  or nothing may be measured
    parts = []
    each = max(1, measuring.settings.chain // 2)
    for at in range(0, len(layers), each):
        some = layers[at : at + each]
        places = [*(ChainPlace(layer, layer.outputs) for layer in some), *(ChainPlace(layer, 0) for layer in some)]
        rows = part_rows(places, timed(measuring.pair, places, measuring.folder, measuring.settings.fresh_runs))
        place = [at + k for k in range(len(some))]
        parts.append(rows.assign(place=place * 2, way=[side for side in SIDES for _ in some]))
    return pd.concat(parts, ignore_index=True)


log = logging.getLogger(__name__)
_HANDSHAKE_STEPS = 20
#: A median that is more than so many times the least is of a machine on which others work.
_LONGEST_HANDSHAKE = 2.0


def measure_partition(params: PartitionParams, *, pair_path: Path, rows: Path, work: Path, measured: Path) -> None:
    """Measure what the rows lack, train, and write all of it."""
    pair = load_pair(pair_path)
    settings, folder = params.partition, (work / pair.name).resolve()
    with watched(rows, pair.cores):
        run = _Run(pair, settings, params.seed, rows, folder)
        run.go()
    save_pair_predictors(run.trained.predictors, measured / "predictors")
    frames = {"samples": run.samples, "errors": run.trained.errors, "importance": run.trained.importance}
    frames |= {"layers": run.layers, "models": run.models, "handshakes": run.handshakes, "curves": run.curves}
    for name, frame in frames.items():
        write_parquet(frame, measured / f"{name}.parquet")
    write_json(measured / "environment.json", run.environment())
    shutil.rmtree(folder, ignore_errors=True)


def _same_plan(rows: pd.DataFrame, now: tuple[float, int]) -> bool:
    """Tell whether rows of a model are of a plan, by its makespan and its splits; one that did not run says no makespan."""
    (ours,) = rows[rows["way"] == OURS][["predicted_ms", "splits"]].to_numpy(float)
    return bool(np.isnan(ours[0]) or (np.isclose(ours[0], now[0], rtol=SAME_PLAN) and ours[1] == now[1]))


class _Run:
    """One run of the stage."""

    def __init__(self, pair: PairFile, settings: PartitionSettings, seed: int, rows: Path, folder: Path) -> None:
        self.pair, self.settings, self.seed, self.folder = pair, settings, seed, folder
        self._rows_path = rows
        self.about = about_pair(pair, rows)
        self.dispatcher = pair.dispatcher(self.about["numbers"])
        self.rows = PartitionRows(rows, self.about["identity"], wait_seconds=settings.lock_timeout_seconds)

    def go(self) -> None:
        """Measure and train, in the order in which one needs the other."""
        if not stored_rows_only():
            shutil.rmtree(self.folder, ignore_errors=True)  # of a run that was killed
            write_pool(self.folder)
        try:
            self.handshakes = self.rows.found("handshakes", self.settings.handshakes, self._handshakes)
            self.rows.merge("handshakes")
            log.info("handshakes: %s", in_line(*self.handshakes.to_dict("records")))
            with nullcontext() if stored_rows_only() else opened(self.pair, profiling=True) as pair:
                self._layers(pair)
        except NotThereError as error:
            raise nothing_stored(LACKING, self._rows_path) from error
        self.models = self._models()
        self.rows.merge("models")

    def _layers(self, pair: Opened | None) -> None:
        """Samples, predictors, splits and curves: on processors that note times."""
        sampled = measured_samples(self.rows, pair, self.dispatcher, self.settings, self.seed, self.folder)
        self.samples, self.anchors_us = sampled.frame, sampled.anchors_us
        log.info("%d samples", len(self.samples))
        self.trained = self._trained()
        log.info("errors of predictors: %s", in_line(self.trained.predictors.card.errors))
        handshake_us = self.trained.predictors.card.handshake_us[self.about["synchronisation"]]
        measuring = SplitMeasuring(self.rows, pair, self.trained.predictors, self.settings, self.folder, handshake_us)
        self._learn_beside(measuring)
        measuring = replace(measuring, predictors=self.trained.predictors)
        self.layers = measuring.layers(self.seed)
        log.info("%d layers split", self.layers["name"].nunique())
        self.curves = curves(measuring, self.trained.beside)

    def _handshakes(self) -> pd.DataFrame:
        """By polling and by events, on processors that note no times."""
        found = []
        with opened(self.pair) as pair:
            for how in Synchronisation:
                row: dict[str, Any] = {"synchronisation": how.value, "note": ""}
                try:
                    made = handshake(*pair.processors, how, self.settings.handshakes, _HANDSHAKE_STEPS)
                    row |= {"least_us": made.least_us, "median_us": made.median_us}
                except DeviceError as error:
                    row |= {"least_us": float("nan"), "median_us": float("nan"), "note": error.what}
                found.append(row)
        return pd.DataFrame(found)

    def _trained(self) -> Trained:
        settings = self.settings
        made = self.handshakes.dropna(subset="median_us").set_index("synchronisation")
        costs = made["median_us"].clip(upper=_LONGEST_HANDSHAKE * made["least_us"])
        about = {
            "pair": self.pair.name,
            "fingerprint": self.about["identity"][0],
            "versions": tuple(self.about["versions"]),
            "handshake_us": costs.to_dict(),
            "anchors_us": self.anchors_us,
        }
        share = settings.test_share
        return train_pair(self.samples, self.dispatcher, about, trials=settings.trials, test_share=share, seed=self.seed)

    def _learn_beside(self, measuring: SplitMeasuring) -> None:
        """Learn from the training samples times beside each other, and the one ratio that is best for each kind."""
        training = self.trained.training(self.samples)
        beside, gain_errors = measuring.beside(training)
        self._update(beside=beside, gain_errors=gain_errors)
        log.info("splits over their slower part: %s; errors of gains: %s", in_line(beside), in_line(gain_errors))
        shares = {}
        for kind in KINDS:
            some = layers_of(training[training["kind"] == kind])
            shares[kind] = fixed_share(self.trained.predictors, some, self.settings.grid_step, measuring.handshake_us)
        self._update(fixed_share=shares)

    def _update(self, **values: Mapping[str, float]) -> None:
        predictors = self.trained.predictors
        self.trained = replace(self.trained, predictors=replace(predictors, card=predictors.card.model_copy(update=values)))

    def _models(self) -> pd.DataFrame:
        """Rows of all models; those of our plan tell what is planned now: now_ms, now_splits."""
        found = []
        for name in self.settings.models:
            now = self._planned_now(name)
            what = [name, self.seed, self.settings.model_runs, self.settings.settings]
            try:
                rows = self.rows.found("models", what, partial(self._model, name), partial(_same_plan, now=now))
            except NotThereError:
                log.warning("no rows of %s: it is left out, since nothing may be measured", name)
                continue
            ours = rows["way"] == OURS
            found.append(
                rows.assign(model=name, now_ms=np.where(ours, now[0], np.nan), now_splits=np.where(ours, now[1], np.nan))
            )
        if not found:
            raise nothing_stored(LACKING, self._rows_path)
        return pd.concat(found, ignore_index=True)

    def _planned_now(self, name: str) -> tuple[float, int]:
        """Return the makespan in ms and the splits of the plan that the present predictors lead to; no device is needed."""
        (cpu, gpu), waits = self.about["names"], self.about["synchronisation"]
        made = plan_steps(Path(), lowered_workload(WORKLOADS[name]()), self.trained.predictors, (cpu, gpu), waits).plan
        return made.makespan_ms, made.splits

    def _model(self, name: str) -> pd.DataFrame:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = save_workload(WORKLOADS[name](), folder / f"{name}.onnx", self.seed)
        s = self.settings
        frame = measured(self.pair, self.trained.predictors, model, folder, s.model_runs, s.settings, self.folder)
        shutil.rmtree(folder, ignore_errors=True)
        log.info("%s: %s", name, in_line(*frame[["way", "median_ms", "reason"]].to_dict("records")))
        return frame

    def environment(self) -> dict[str, Any]:
        """State of the machine, and what the rows are of."""
        s = self.settings
        rules = {kind: len(drawing.all_layers(kind, s.layer_flops, s.conv_divisors)) for kind in KINDS}
        when = max(float(frame[WHEN].max()) for frame in (self.handshakes, self.models))
        return {
            **self.about["environment"],
            **others_share(self._rows_path),
            "processors": list(self.about["names"]),
            "versions": list(self.about["versions"]),
            "synchronisation": f"{self.about['synchronisation']}: {self.about['why']}",
            "layers_by_rule": rules,
            "measured_at": time.strftime("%Y-%m-%d", time.gmtime(when)),
            "protocols": {kind: sorted(names) for kind, names in self.rows.protocols.items()},
        }
