"""Stage `partition_eop`: operators sampled and swept, every way to run EOP's models; all that measures is here."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.partition.costs import ModelCosts, model_costs
from edgeplan.chapters.partition.eop import sweeps
from edgeplan.chapters.partition.eop.sweeps import SweptModel
from edgeplan.chapters.partition.eop.ways import EOP, PREDICTED, VARIED, WAYS, Way, as_predicted, measured_ways, variant
from edgeplan.chapters.partition.learning.predictors import PairPredictors, load_pair_predictors
from edgeplan.chapters.partition.measuring.opened import LACKING, Opened, Runner, about_pair, on_all_cores, opened, running
from edgeplan.chapters.partition.measuring.rows import WHEN, NotThereError, PartitionRows
from edgeplan.chapters.partition.planned import lowered_workload
from edgeplan.chapters.partition.settings import ALL_CORES, SIDES, PartitionParams
from edgeplan.devices.pairs import PairFile, load_pair
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.errors import EdgeplanError
from edgeplan.measurement.others import others_share, watched
from edgeplan.planning.partition.eop import Eop
from edgeplan.progress import in_line
from edgeplan.runtime.partitioned.program import Assignment, Split, preceding
from edgeplan.runtime.partitioned.sections import Dimension, extent
from edgeplan.runtime.partitioned.session import handshake
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.store import Protocol, nothing_stored, stored_rows_only
from edgeplan.workloads.registry import WORKLOADS, Workload, save_workload

#: A way with where it runs each step.
Planned = tuple[Way, Sequence[Assignment]]
log = logging.getLogger(__name__)
PROTOCOL = Protocol("eop/3", ("eop/2",))
#: Columns of each kind of stored rows.
COLUMNS = {
    "sampled": ("size", "side", "us"),
    "sweeps": (*sweeps.SWEEP, "name", "operator", "of_paper", "refused"),
    "plans": (
        *("way", "predicted_ms", "simulated_ms", "median_ms", "repeat", "error", "tolerance", "splits", "steps"),
        *("plan_seconds", "plan_gap", "same_as", "reason"),
    ),
    "key": (
        *("step", "name", "operator", "dimension", "ratio", "cpu_pattern", "gpu_pattern"),
        *("tuned_us", "grid_us", "key_operators"),
    ),
}
#: Of the largest magnitude: a dozen softmaxes and normalised rows on the CPU alone are 0.9e-5 from ONNX Runtime's.
_DEEP = 3e-5
_HANDSHAKES, _HANDSHAKE_STEPS = 50, 20


def measure_eop(params: PartitionParams, *, pair_path: Path, rows: Path, work: Path, predictors: Path, measured: Path) -> None:
    """Measure a pair for EOP, or read what is stored of it."""
    pair = load_pair(pair_path)
    folder = (work / pair.name).resolve()
    with watched(rows, pair.cores):
        run = _Run(pair, params, rows, folder, load_pair_predictors(predictors, pair))
        run.go()
    for name in COLUMNS:
        write_parquet(getattr(run, name), measured / f"{name}.parquet")
    write_json(measured / "environment.json", run.environment())
    shutil.rmtree(folder, ignore_errors=True)


class _Run:
    """One run of the stage."""

    def __init__(self, pair: PairFile, params: PartitionParams, rows: Path, folder: Path, predictors: PairPredictors) -> None:
        self.predictors, self.settings, self.seed = predictors, params.partition.eop, params.seed
        self.pair, self.folder, self._path, self._about = pair, folder, rows, about_pair(pair, rows)
        self.rows = PartitionRows(rows, self._about["identity"], COLUMNS, PROTOCOL, params.partition.lock_timeout_seconds)

    def go(self) -> None:
        """Measure in the order in which one needs the other; then what was measured goes into one file of each kind."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        try:
            with nullcontext() if stored_rows_only() else opened(self.pair, profiling=True) as pair:
                self.sampled = pd.concat([self._sampled(pair, one) for one in sweeps.SAMPLED], ignore_index=True)
        except NotThereError as error:
            raise nothing_stored(LACKING, self._path) from error
        models = [(name, WORKLOADS[name], "", "", 0) for name in self.settings.models]
        for (figure, setting, model), values in VARIED.items() if self.settings.varied else ():
            models += [(*variant(model, setting, value), figure, setting, value) for value in values]
        parts: dict[str, list[pd.DataFrame]] = {"sweeps": [], "plans": [], "key": []}
        for name, build, figure, setting, value in models:
            try:
                found = self._model(name, build)
            except NotThereError:
                log.warning("no rows of %s: it is left out, since nothing may be measured", name)
                continue
            if not figure:
                lowered = lowered_workload(build())
                before = preceding(lowered, sweeps.swept_layouts(lowered), self.predictors.dispatcher.block)
                found["plans"] = found["plans"].assign(subgraphs=float(sweeps.subgraphs_of(before)))
            for kind, frame in found.items():
                parts[kind].append(frame.assign(model=name, figure=figure, setting=setting, value=value))
        if not parts["plans"]:
            raise nothing_stored(LACKING, self._path)
        joined = {kind: pd.concat([f for f in some if len(f)] or some, ignore_index=True) for kind, some in parts.items()}
        self.sweeps, self.plans, self.key = (joined[kind] for kind in parts)
        for kind in COLUMNS:
            self.rows.merge(kind)

    def environment(self) -> dict[str, Any]:
        """State of the machine that measured, with which library and driver, and when the newest row was."""
        when = time.strftime("%Y-%m-%d", time.gmtime(float(self.plans[WHEN].max())))
        _, *versions = self._about["identity"][:3]  # see `Opened.identity`
        return {**self._about["environment"], **others_share(self._path), "versions": versions, "measured_at": when}

    # Operators alone

    def _sampled(self, pair: Opened | None, one: sweeps.SampledOperator) -> pd.DataFrame:
        sizes = list(one.at(self.settings))
        what = [one.operator, one.dimension, sizes, self.settings.sample_runs]
        found = self.rows.found("sampled", what, partial(self._alone, pair, one, sizes))
        return found.assign(operator=one.operator, dimension=one.dimension)

    def _alone(self, pair: Opened | None, one: sweeps.SampledOperator, sizes: list[int]) -> pd.DataFrame:
        """At each size the median of its repeats on each processor, each the median of its runs."""
        assert pair is not None  # noqa: S101  or nothing may be measured
        rows = []
        for size in sizes:
            model = save_workload(one.build(size), self.folder / "alone.onnx", self.seed)
            subject = sweeps.inside(sweeps.subject_of(one.operator, model, self.seed))
            own = [k for k, step in enumerate(subject.lowered.steps) if sweeps.operator_of(step) == one.operator]
            refused = sweeps.on_gpu(pair, subject)
            for lane in (0, 1):
                if not own or (lane == 1 and any(refused[k] for k in own)):
                    rows.append({"size": size, "side": SIDES[lane], "us": float("nan")})
                    continue
                assigned = [0 if lane == 0 or why else 1 for why in refused]
                made = sweeps.executable_parts(pair, subject, list(assigned))
                times = sweeps.timed_steps(pair, subject, made, self.settings.sample_runs)[lane]
                rows.append({"size": size, "side": SIDES[lane], "us": float(np.median(times[own[-sweeps.REPEATS :]]))})
        log.info("%s over %s: %s", one.operator, one.dimension, in_line(*rows))
        return pd.DataFrame(rows)

    # Models

    def _model(self, name: str, build: Callable[[], Workload]) -> dict[str, pd.DataFrame]:
        s = self.settings
        what = [name, self.seed, list(s.shares), s.sweep_runs]
        planned = [*what, s.margin, s.runs, s.rounds]
        path = self.folder / f"{len(name)}.onnx"

        @cache
        def subject() -> SweptModel:
            return sweeps.subject_of(name, save_workload(build(), path, self.seed), self.seed)

        swept = self.rows.found("sweeps", what, lambda: self._swept(subject()))
        failed = swept["dimension"].eq("failed")
        if failed.any():
            lost = {"way": WAYS[0], "reason": str(swept.loc[failed, "refused"].iloc[0])}
            return {"sweeps": swept[~failed], "plans": _frame([lost], "plans"), "key": _frame([], "key")}

        @cache
        def costs() -> tuple[ModelCosts, Mapping[str, Planned], Eop]:
            found = self._costs(subject(), swept)
            decided, tuned = measured_ways(found.costs)
            chosen = {
                name: (way, sweeps.at_ratios(subject(), found.block, found.assignments(way.choice), way.ratios))
                for name, way in decided.items()
            }
            return found, chosen | {PREDICTED: self._predicted(subject())}, tuned

        plans = self.rows.found("plans", planned, lambda: self._plans(subject(), costs()[1]))
        key = self.rows.found("key", planned, lambda: self._key(subject(), *costs()))
        path.unlink(missing_ok=True)
        return {"sweeps": swept, "plans": plans, "key": key}

    def _swept(self, subject: SweptModel) -> pd.DataFrame:
        try:
            with opened(self.pair, profiling=True) as pair:
                refused = sweeps.on_gpu(pair, subject)
                rows = sweeps.sweep(pair, subject, self.settings.shares, self.settings.sweep_runs)
        except EdgeplanError as error:
            log.warning("%s: %s", subject.name, error.what)
            return _frame([{"step": 0, "dimension": "failed", "refused": error.headline}], "sweeps")
        steps = [subject.lowered.steps[k] for k in rows["step"]]
        names = [sweeps.dimension_of(s, Dimension(d)) if d else "" for s, d in zip(steps, rows["dimension"], strict=True)]
        log.info("%s: %d rows of %d steps", subject.name, len(rows), len(subject.lowered.steps))
        return rows.assign(
            name=[s.name for s in steps],
            operator=[sweeps.operator_of(s) for s in steps],
            of_paper=names,
            refused=[refused[k] for k in rows["step"]],
        )

    def _costs(self, subject: SweptModel, swept: pd.DataFrame) -> ModelCosts:
        with opened(self.pair) as pair:
            over = handshake(*pair.processors, pair.synchronisation, _HANDSHAKES, _HANDSHAKE_STEPS)
            refused = sweeps.on_gpu(pair, subject)
            return sweeps.measured_costs(
                subject.lowered,
                subject.layouts,
                swept,
                refused,
                block=pair.block,
                names=pair.names,
                handshake_ms=over.median_us / 1e3,
                margin=self.settings.margin,
            )

    def _predicted(self, subject: SweptModel) -> Planned:
        """Return what EOP's algorithms make of costs that the pair's predictors give."""
        with opened(self.pair) as pair:
            costs = model_costs(
                subject.lowered, subject.layouts, self.predictors, names=pair.names, synchronisation=pair.synchronisation
            )
        way = as_predicted(costs.costs)
        return way, sweeps.at_ratios(subject, costs.block, costs.assignments(way.choice), way.ratios)

    def _plans(self, subject: SweptModel, found: Mapping[str, Planned]) -> pd.DataFrame:
        """Every way in new sessions, one inference of each in turn; those that are the same plan run once."""
        rows: dict[str, dict[str, Any]] = {}
        first: dict[object, str] = {}
        for name, (way, assigned) in found.items():
            same = first.setdefault(tuple(assigned), name)
            told: dict[str, Any] = {"predicted_ms": way.predicted_ms, "simulated_ms": way.simulated_ms, "splits": way.splits}
            told |= {"plan_seconds": way.seconds, "plan_gap": way.gap, "same_as": "" if same == name else same}
            rows[name] = {"way": name, "steps": len(subject.lowered.steps), "reason": "", **told}
        rows[ALL_CORES] = {"way": ALL_CORES, "steps": len(subject.lowered.steps), "same_as": "", "reason": ""}
        expected = onnxruntime_reference(subject.model, dict(subject.inputs))
        times: dict[str, list[list[float]]] = {}
        with opened(self.pair) as pair:
            for _ in range(self.settings.rounds):
                for name, own in self._round(pair, subject, found, rows, expected).items():
                    times.setdefault(name, []).append(own)
        for name, rounds in times.items():
            medians = [float(np.median(own)) for own in rounds]
            rows[name] |= {"median_ms": float(np.median(np.concatenate(rounds))), "repeat": max(medians) / min(medians)}
        measured = ("median_ms", "repeat", "error", "tolerance", "reason")
        for row in rows.values():
            if row["same_as"]:
                row |= {column: rows[row["same_as"]].get(column) for column in measured}
        log.info("%s: %s", subject.name, in_line({name: row.get("median_ms") for name, row in rows.items()}))
        return _frame(list(rows.values()), "plans")

    def _round(
        self,
        pair: Opened,
        subject: SweptModel,
        found: Mapping[str, Planned],
        rows: Mapping[str, dict[str, Any]],
        expected: Mapping[str, Any],
    ) -> dict[str, list[float]]:
        """Times (ms) of every way that runs, all of them open at once; rows get what the outputs were, or why there is none."""
        exact = [_DEEP] if any(step.kind == "layer_norm" for step in subject.lowered.steps) else []
        runners: dict[str, Runner] = {}
        taken: dict[str, list[float]] = {}
        with ExitStack() as stack:
            for name, (_, assigned) in found.items():
                if rows[name]["reason"] or rows[name]["same_as"]:
                    continue
                try:
                    made = sweeps.executable_parts(pair, subject, list(assigned))
                    run, told = running(pair, stack, made, subject.model, subject.inputs, expected, *exact)
                except EdgeplanError as error:
                    rows[name]["reason"] = error.headline
                    continue
                runners[name] = run
                rows[name] |= told | {"error": max(told["error"], rows[name].get("error", 0.0))}
            layouts = on_all_cores(pair, subject.model, subject.inputs)
            for _ in range(self.settings.runs):
                for name, run in [*runners.items()]:
                    try:
                        taken.setdefault(name, []).append(run())
                    except EdgeplanError as error:
                        rows[name]["reason"] = error.headline
                        del runners[name], taken[name]
                for k, run in enumerate(layouts):
                    taken.setdefault(f"{ALL_CORES} {k}", []).append(run())
        wide = [taken.pop(f"{ALL_CORES} {k}") for k in range(len(layouts))]
        return taken | {ALL_CORES: min(wide, key=lambda own: float(np.median(own)))}

    def _key(self, subject: SweptModel, costs: ModelCosts, planned: Mapping[str, Planned], tuned: Eop) -> pd.DataFrame:
        """Key operators at EOP's ratios, and each at its best of all that were swept, both measured again in turn."""
        best = sweeps.best_options(costs.costs, tuned.key)
        whole = [s.options.index(s.best_whole) for s in costs.costs.steps]
        grid = costs.assignments([best.get(k, whole[k]) for k in range(len(whole))])
        ran = planned[EOP][1]
        spans: dict[str, list[Any]] = {"tuned": [], "grid": []}
        with opened(self.pair, profiling=True) as pair:
            for _ in range(self.settings.rounds):
                for name, assigned in (("tuned", ran), ("grid", grid)):
                    made = sweeps.executable_parts(pair, subject, list(assigned))
                    spans[name].append(sweeps.timed_steps(pair, subject, made, self.settings.runs)[2])
        tuned_us, grid_us = (np.median(np.array(found), axis=0) for found in spans.values())
        rows = []
        for k, ratio, matched in zip(tuned.key, tuned.ratios, tuned.matched, strict=True):
            step, at = subject.lowered.steps[k], ran[k]
            share, split = ratio, None
            if isinstance(at, Split):  # what ran is the nearest that can be executed
                share, split = at.end / extent(subject.lowered, costs.block, step, at.dimension).size, at.dimension
            row = {"step": k, "name": step.name, "operator": sweeps.operator_of(step), "ratio": share}
            row |= {"dimension": sweeps.dimension_of(step, split) if split is not None else "", "key_operators": len(tuned.key)}
            row |= {f"{side}_pattern": p.name if p else "" for side, p in zip(SIDES, matched.patterns, strict=True)}
            rows.append(row | {"tuned_us": float(tuned_us[k]), "grid_us": float(grid_us[k])})
        return _frame(rows, "key")


def _frame(rows: list[dict[str, Any]], kind: str) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(COLUMNS[kind]))
    texts = {"way", "same_as", "reason", "dimension", "name", "operator", "of_paper", "refused", "cpu_pattern", "gpu_pattern"}
    for column in frame.columns:
        frame[column] = frame[column].fillna("").astype(str) if column in texts else frame[column].astype("float64")
    return frame
