"""Measured costs with the noise of single measurements taken out: times of splits on the patterns fitted to them.

A planner that takes the least of many measured times takes those that happened to be measured too
short. EOP does not, since it plans by fitted patterns (Algorithm 1); this gives any planner the
same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgeplan.planning.partition.costs import CPU, GPU, SPLIT, Option, PairCosts, PairStep
from edgeplan.planning.partition.patterns import Pattern, fit


def fitted(costs: PairCosts) -> PairCosts:
    """The same costs; both times of each split are those of the patterns over its dimension, whole ones as measured."""
    return replace(costs, steps=tuple(replace(s, options=_fitted(s)) for s in costs.steps))


def patterns(step: PairStep, dimension: str) -> tuple[Pattern | None, Pattern | None]:
    """Return the patterns of a step's splits over a dimension and of it whole, by share of the step, on the CPU and the GPU.

    Args:
        step: of the costs.
        dimension: of its splits; "" for whole alone.
    """
    splits = [o for o in step.options if o.kind == SPLIT and o.dimension == dimension]
    found: list[Pattern | None] = []
    for processor in (CPU, GPU):
        samples = [(o.cpu_share, o.cpu_ms) if processor == CPU else (1 - o.cpu_share, o.gpu_ms) for o in splits]
        whole = step.best(processor)
        samples += [(1.0, whole.span_ms)] if whole is not None else []
        found.append(fit(*zip(*samples, strict=True)) if samples else None)
    return found[0], found[1]


def _fitted(step: PairStep) -> tuple[Option, ...]:
    dimensions = {o.dimension for o in step.options if o.kind == SPLIT}
    known: Mapping[str, tuple[Pattern | None, Pattern | None]] = {name: patterns(step, name) for name in dimensions}
    return tuple(_on(o, *known[o.dimension]) if o.kind == SPLIT else o for o in step.options)


def _on(option: Option, cpu: Pattern | None, gpu: Pattern | None) -> Option:
    cpu_ms = float(cpu.at(option.cpu_share)) if cpu is not None else option.cpu_ms
    gpu_ms = float(gpu.at(1 - option.cpu_share)) if gpu is not None else option.gpu_ms
    return replace(option, cpu_ms=cpu_ms, gpu_ms=gpu_ms)
