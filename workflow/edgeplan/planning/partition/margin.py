"""Which options a plan may use, and why an operator is not split.

A split is admitted only where its predicted gain over the fastest whole option exceeds the error of
that prediction: what measurements do not bear out must not make a model slower. Options that
another one beats on both processors are dropped too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeplan.planning.partition.costs import SPLIT, Choice, Option, PairCosts, PairStep


def admitted(costs: PairCosts) -> PairCosts:
    """Return the same costs with the options that a plan may use."""
    return replace(costs, steps=tuple(replace(s, options=_admitted(s)) for s in costs.steps))


def _admitted(step: PairStep) -> tuple[Option, ...]:
    whole = [o for o in (step.best(kind) for kind in range(SPLIT)) if o is not None]
    limit_ms = step.best_whole.span_ms * (1 - step.error)
    splits = [o for o in step.options if o.kind == SPLIT and o.span_ms < limit_ms]
    splits.sort(key=lambda o: (o.cpu_ms, o.gpu_ms))
    kept: list[Option] = []
    for option in splits:
        if not kept or option.gpu_ms < kept[-1].gpu_ms:
            kept.append(option)
    return (*whole, *kept)


def why_whole(costs: PairCosts, admitted_costs: PairCosts, choice: Choice) -> list[str]:
    """For each step why it is not split, "" for those that are.

    Args:
        costs: as given.
        admitted_costs: the same steps with what `admitted` left of their options.
        choice: option of each step among the admitted ones.
    """
    chosen = admitted_costs.chosen(choice)
    reasons = []
    for k, option in enumerate(chosen):
        if option.kind == SPLIT:
            reasons.append("")
        elif reason := _never(costs.steps[k], admitted_costs.steps[k]):
            reasons.append(reason)
        else:
            reasons.append(_not_here(admitted_costs, chosen, k))
    return reasons


def _never(step: PairStep, kept: PairStep) -> str:
    """Why no split of a step is admitted, "" if one is."""
    if any(o.kind == SPLIT for o in kept.options):
        return ""
    split = step.best(SPLIT)
    if split is None:
        return step.unsplittable or "it has no split"
    whole = step.best_whole
    gain = whole.span_ms - split.span_ms
    if gain <= 0:
        return f"no split is faster: {split.text()} takes {split.span_ms:.4g} ms, {whole.text()} {whole.span_ms:.4g} ms"
    error = step.error * whole.span_ms
    return f"the gain of its best split ({split.text()}), {gain:.4g} ms, is within the error of {error:.4g} ms"


def _not_here(costs: PairCosts, chosen: Sequence[Option], k: int) -> str:
    """Return what splitting would add where an admitted split is not chosen."""
    split = costs.steps[k].best(SPLIT)
    assert split is not None  # noqa: S101  `_never` looked
    here = _with_hand_overs(costs, chosen, k, split) - _with_hand_overs(costs, chosen, k, chosen[k])
    if here > 0:
        return f"with its hand-overs {split.text()} takes {here:.4g} ms longer here"
    return "the whole plan is faster so"


def _with_hand_overs(costs: PairCosts, chosen: Sequence[Option], k: int, option: Option) -> float:
    total = option.span_ms
    step = costs.steps[k]
    total += max((costs.delays_ms[i][chosen[i].kind][option.kind] for i in step.inputs), default=0.0)
    return total + max((costs.delays_ms[k][option.kind][chosen[r].kind] for r in costs.readers[k]), default=0.0)
