"""Estimates the time of the chapter's stages: the budgets of params.yaml, and elsewhere the time of earlier runs."""

from __future__ import annotations

from collections.abc import Sequence

from edgeplan.chapters.prediction.sampling.carriers_wider import SORTS
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.graph.operators.registry import SPECS
from edgeplan.zoo import FAMILIES

# Typical of two cores of an AMD EPYC, not of this machine: measuring as the committed rows tell, the rest as timed on them.
_CASES, _FURTHER_CASES = 2200, 480  # fusion test cases of the first round, and of each further one
_REFERENCES_MS, _LOADING_S = 8.0, 0.03  # beside each block of a case, and for each case
_EXCESS_S = 0.8  # for each of a batch and each sampler: the last is measured to its end, but is no larger than affordable
_NETWORKS_S, _FIXED_S, _FROZEN_S = 65.0, 35.0, 0.5  # networks of the prior; further kinds, sweeps, checks; a frozen carrier
_SINGLE_S = 0.25  # a model of a single operator
_WIDER_S = 0.7  # a carrier of wider shapes
_MODEL_S = 1.3  # a whole model, all blocks
_ROWS_A_SECOND, _FIXED_ROWS = 110.0, 8000.0  # rows of all trainings by the budget of a sampler, and beside it
_ROW_S, _TRIAL_S = 0.005, 0.0002  # training on a row: without tuning, and for each trial
_PREDICTED_S, _CALL_S, _TABLES_S = 0.0045, 1.5, 10.0  # a model of the timed batch; a timed call; tables and figures
_UNSEEN_S = 120.0  # the architectures outside the zoo's families, on one device


def estimate(params: PredictionParams, engines: Sequence[str]) -> dict[str, float]:
    """Estimate the seconds of each part of a run on all devices, where nothing is stored yet; `engines` are the devices'."""
    measurement, sampling = params.measurement, params.sampling
    devices, evaluated_models = len(params.devices), params.zoo.variants_per_family * len(FAMILIES)
    calibrating_models = params.calibration.variants_per_family * len(FAMILIES)
    passes = devices + len(set(params.truth.repeat) & set(params.devices))
    cases = _CASES + _FURTHER_CASES * (params.fusion.max_rounds - 1)
    case_s = measurement.blocks * (measurement.block_ms + _REFERENCES_MS) / 1e3 + _LOADING_S
    samplers = 3 - sampling.initial_share if sampling.baselines else 1  # the prior baseline shares the initial sample
    fixed = sampling.frozen_carriers * _FROZEN_S + _FIXED_S + (_NETWORKS_S if sampling.network_gmacs else 0.0)
    excess = min(_EXCESS_S * measurement.batch_size, sampling.budget_seconds)
    sampled = samplers * (sampling.budget_seconds + excess) + 2 * sampling.mode_seconds + fixed
    in_carriers = [engine for engine in engines if sampling.modes.get(engine) == "in_situ"]
    apart = sum(sampling.beyond_seconds.get(engine, 0.0) for engine in in_carriers)
    drawn = sum(spec.single is not None for spec in SPECS.values())
    apart += sum(map(sampling.singles_on, params.devices)) * drawn * _SINGLE_S
    apart += sum(map(sampling.wider_on, params.devices)) * len(SORTS) * _WIDER_S
    rows = _ROWS_A_SECOND * sampling.budget_seconds + _FIXED_ROWS
    evaluated = params.evaluation.batch_models * _PREDICTED_S + params.evaluation.speed_runs * _CALL_S + _TABLES_S
    return {
        "fusion": devices * cases * case_s,
        "sampling": devices * sampled + apart,
        "training": devices * rows * (_ROW_S + _TRIAL_S * params.training.trials),
        "whole models": (passes * evaluated_models + devices * calibrating_models) * _MODEL_S,
        "evaluation": devices * evaluated,
        "unseen architectures": len(params.unseen.devices) * _UNSEEN_S,
    }
