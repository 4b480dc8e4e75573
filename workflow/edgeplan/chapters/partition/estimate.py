"""This module estimates how long the stages of the chapter take."""

from __future__ import annotations

from collections.abc import Sequence

from edgeplan.chapters.partition.eop.variants import VARIED, recurrent
from edgeplan.chapters.partition.settings import PartitionParams

# Typical of two cores of an AMD EPYC, not of this machine, as the committed rows tell.
_SAMPLE_S, _TRAINING_S, _LAYER_S, _MODEL_RUN_S, _MODEL_S = 0.006, 3.0, 0.01, 3.0, 16.0
_CHECKED_S = 60.0  # a plan that checks itself, and all its ways on fresh runs
_SWEEP_S, _PLAN_S, _VARIANT_S = 4.0, 3.0, 12.0


def estimate(params: PartitionParams, engines: Sequence[str]) -> dict[str, float]:
    """Seconds that all pairs take, where nothing is stored yet; engines do not matter."""
    del engines
    s = params.partition
    layers = 2 * s.layers * (s.grid_points * s.grid_runs + s.grid_best * s.grid_again_runs + 8 * s.fresh_runs)
    lipg = 2 * s.samples * s.sample_runs * _SAMPLE_S + s.trials * _TRAINING_S + layers * _LAYER_S
    lipg += len(s.models) * (_MODEL_S + s.model_runs * _MODEL_RUN_S)
    e = s.eop
    variants = sum(map(len, VARIED.values())) if e.varied else 0
    each = len(e.shares) * e.sweep_runs * _SWEEP_S + e.rounds * e.runs * _PLAN_S + 2 * e.search_seconds
    eop = len(e.models) * each + variants * _VARIANT_S
    checked = len(s.checked_pairs) * len(s.checked_models) * _CHECKED_S
    checked += len(s.checked_fully) * len(recurrent()) * _VARIANT_S
    checked = min(checked, len(s.checked_pairs) * s.checked_seconds or checked)
    return {
        "plans that check themselves": checked,
        "splits of layers and models": len(s.pairs) * lipg,
        "EOP's ways": len(s.pairs) * eop,
    }
