"""Estimates how long the stages of the chapter take."""

from __future__ import annotations

from collections.abc import Sequence

from edgeplan.chapters.cold_start.settings import ColdStartParams

# Typical of two cores of an AMD EPYC, not of this machine, as the committed rows tell.
_COLD_PROFILE_S, _COLD_PLANS_S, _COLD_RUN_S = 20.0, 30.0, 1.2  # a block of a model's profile; its plans; a fresh process
_GPU_PLANS_S, _COMPILED_START_S = 45.0, 8.0  # a model's costs on a GPU; a start that compiles, in fresh processes


def estimate(params: ColdStartParams, engines: Sequence[str]) -> dict[str, float]:
    """Estimate the seconds of cold starts on all their devices, where nothing is stored yet; `engines` are the devices'."""
    del engines
    cold = params.cold_start
    kinds = len(cold.settings) + 1 + len(cold.plans)
    runs = kinds * len(cold.threads) * len(cold.states) * cold.repeats
    profiled = cold.profile_blocks * _COLD_PROFILE_S
    gpu = params.cold_gpu
    quick = (len(gpu.planners) + len(gpu.settings)) * gpu.repeats * _COLD_RUN_S
    each = _GPU_PLANS_S + len(gpu.states) * (quick + 2 * gpu.compiled_repeats * _COMPILED_START_S)
    return {
        "cold starts": len(cold.devices) * len(cold.models) * (profiled + _COLD_PLANS_S + runs * _COLD_RUN_S),
        "cold starts on GPUs": len(gpu.devices) * len(gpu.models) * each,
    }
