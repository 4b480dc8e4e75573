"""Builds the probes that each test case compares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from edgeplan.chapters.prediction.fusion.cases import Case, Connection, Terms
from edgeplan.chapters.prediction.fusion.probes import BINARY, MAP_KINDS, ROW_KINDS, Probe
from edgeplan.chapters.prediction.fusion.settings import FusionSettings
from edgeplan.graph.kinds import ELEMENTWISE

#: Before large tensors a stem reads few channels, so that its own time, and the noise of it, stay small.
STEM_CHANNELS = 3
_ROW_STEM_FEATURES = 8
_SIZE_STEP = 8
#: Kinds behind which no second operand of the first shape fits.
_RESHAPING = frozenset({"concat", "split", "reshape", "gap"})
#: Kinds that engines run in the plain layout only.
_LAYOUT_BOUND = frozenset({"split", "reshape", "transpose"})
#: Contexts of cases about structure rather than channels.
SHARED, ARMS, DUPLICATE = "shared", "left|right", "duplicate"
STRUCTURES = frozenset({SHARED, ARMS, DUPLICATE})
#: Kinds whose rules are asked for every class of channel counts.
SENSITIVE = ("conv", "dwconv", "bn")


def skipped_pairs() -> dict[str, str]:
    """Return the ordered pairs that are not tested, with the reason; rules take them as not fused."""
    found = {}
    for first in dict.fromkeys((*MAP_KINDS, *ROW_KINDS)):
        for after in dict.fromkeys((*MAP_KINDS, *ROW_KINDS)):
            pair = f"{first}_{after}"
            if "reshape" in (first, after):
                found[pair] = "a reshape moves no data: where it runs cannot be seen in time, and makes no difference"
            elif first == "gap":
                found[pair] = "what follows a global pooling has too little to do to be timed"
            elif {first, after} & {"fc"} and not {first, after} <= set(ROW_KINDS):
                found[pair] = "a fully connected layer has rows of features at its ends, the other kind feature maps"
            elif first in _RESHAPING and after in ("add", "mul"):
                found[pair] = "the shapes of the operands cannot agree"
    return found


def base(
    settings: FusionSettings,
    channels: int,
    *,
    other: bool = False,
    reads: int = 0,
    blocks: int = 0,
) -> Probe:
    """Return a probe without operators under test, whose activations have about as many elements as the settings ask for."""
    reads = reads or (settings.channels[settings.classes.names()[0]] if blocks else STEM_CHANNELS)
    if blocks:
        return Probe(reads, channels, max(2, round(math.sqrt(settings.small_elements / channels))), other, blocks=blocks)
    size = max(1, round(math.sqrt(settings.elements / channels) / _SIZE_STEP)) * _SIZE_STEP
    if reads == STEM_CHANNELS and channels % settings.classes.alignments[-2]:
        reads = settings.channels[str(settings.classes.alignments[-1])]  # so that `x` is held as such channels are elsewhere
    return Probe(reads, channels, size, other)


def times(probe: Probe, empty: Probe) -> Terms:
    """Return the terms whose sum is the time of a probe's operators alone."""
    return ((probe, 1), (empty, -1))


def connected(empty: Probe, first: Sequence[str], after: str, *, tapped: bool = False) -> tuple[Terms, Terms, Terms]:
    """Return the times of the first operators, of the one behind them, and of all connected."""
    place = len(first) - 1 if tapped else -1
    op1 = replace(empty, operators=tuple(first), tapped=place)
    both = replace(empty, operators=(*first, after), tapped=place)
    alone = _after(empty, first)
    return times(op1, empty), times(replace(alone, operators=(after,)), alone), times(both, empty)


def _after(empty: Probe, first: Sequence[str]) -> Probe:
    """Return the probe whose `x` has the shape that the first operators write."""
    channels = empty.channels
    for what in first:
        if what == "concat":
            channels *= 2
        elif what == "split":
            channels //= 2
    return replace(empty, channels=channels)


def map_cases(
    settings: FusionSettings, name: str, firsts: Iterable[str], afters: Sequence[str], *, small: bool = False
) -> Iterator[Case]:
    """Yield pairs on feature maps whose channel count is of the named class; small ones only before element-wise operators."""
    skipped = skipped_pairs()
    for first in firsts:
        for after in afters:
            pair = f"{first}_{after}"
            repeatable = after in ELEMENTWISE and first not in _RESHAPING | _LAYOUT_BOUND
            if pair not in skipped and (repeatable or not small):
                other = bool({first, after} & BINARY)
                empty = base(settings, settings.channels[name], other=other, blocks=settings.blocks if small else 0)
                if {first, after} & _LAYOUT_BOUND and not other:
                    # a conversion that each pays alone, and both together once, would look like a saving: take what needs none
                    empty = replace(base(settings, settings.channels[str(settings.classes.alignments[-1])]), reads=0)
                context = name if first in SENSITIVE else ""
                yield Case(pair, connection(after), context, *connected(empty, (first,), after), small)


def row_cases(settings: FusionSettings) -> Iterator[Case]:
    """Yield test cases of pairs with a fully connected layer."""
    for first in ROW_KINDS:
        for after in ROW_KINDS:
            pair = f"{first}_{after}"
            if "fc" in (first, after) and pair not in skipped_pairs():
                other = bool({first, after} & BINARY)
                empty = Probe(_ROW_STEM_FEATURES, settings.features, settings.rows, other, blocks=settings.blocks, rows=True)
                yield Case(pair, connection(after), "", *connected(empty, (first,), after), small=True)


def inbound_cases(settings: FusionSettings, labels: Sequence[str], first: Sequence[str], after: str) -> Iterator[Case]:
    """Yield test cases of operators of one context, joined with a tensor of the same or another context.

    Where the contexts differ there is one large probe: in a chain of blocks all but the first would read what the block before
    wrote.
    """
    for own in labels:
        for other in labels:
            small = own == other
            reads, blocks = settings.channels[other], settings.blocks if small else 0
            empty = base(settings, settings.channels[own], reads=reads, other=True, blocks=blocks)
            yield Case(_name(first, after), "multi-inbound", f"{own}|{other}", *connected(empty, first, after), small=small)


def chain_case(
    settings: FusionSettings, name: str, first: Sequence[str], after: str, *, context: str = "", small: bool
) -> Case:
    """Return the test case of a further operator behind several that fuse, on channels of the named class."""
    empty = base(
        settings, settings.channels[name], other=bool({*first, after} & BINARY), blocks=settings.blocks if small else 0
    )
    return Case(_name(first, after), connection(after), context, *connected(empty, first, after), small)


def _name(first: Sequence[str], after: str) -> str:
    return f"{first[0]}_{after}" if len(first) == 1 else f"{first[0]}+{first[-1]}_{after}"


def shared_case(settings: FusionSettings, name: str) -> Case:
    """Return the case of a sum in whose kernel the second operand cannot be overwritten, since a side branch reads it too."""
    empty = replace(base(settings, settings.channels[name], other=True, blocks=settings.blocks), shared=True)
    return Case("conv_add", "multi-inbound", SHARED, *connected(empty, ("conv",), "add"), small=True)


def outbound_case(settings: FusionSettings, name: str, first: str, after: str) -> Case:
    """Return the test case of a pair whose first operator is also read by a side branch."""
    empty = base(settings, settings.channels[name], other=bool({first, after} & BINARY), blocks=settings.blocks)
    return Case(f"{first}_{after}", "multi-outbound", "", *connected(empty, (first,), after, tapped=True), small=True)


def duplicate_case(settings: FusionSettings, name: str) -> Case:
    """Return the test case of the same activation computed twice: fused means that it ran once."""
    empty = base(settings, settings.channels[name])
    once = replace(empty, operators=("relu",))
    single = times(once, empty)
    twice = times(replace(once, twice=True), replace(once, tapped=0))  # the second result is read by a side branch in both
    return Case("relu_relu", "multi-outbound", DUPLICATE, single, single, (*single, *twice))


def shuffle_case(settings: FusionSettings, name: str) -> Case:
    """Return the case of a channel shuffle (both) against three like operators that end in another shape (op1)."""
    empty = base(settings, settings.channels[name])
    shuffle, other = (times(replace(empty, operators=("open", "swap", last)), empty) for last in ("join", "misjoin"))
    return Case("reshape+transpose_reshape", "single", "", other, (), shuffle)


def arms_case(settings: FusionSettings, name: str) -> Case:
    """Return the case of two convolutions into one sum: plans that fuse the left (op1) or the right (op2), what runs (both)."""
    empty = base(settings, settings.channels[name], other=True)

    def of(*operators: str, right: tuple[str, ...] = ()) -> Terms:
        return times(replace(empty, operators=operators, right=right), empty)

    left, right = (*of("conv", "add"), *of("conv3")), (*of("conv"), *of("conv3", "add"))
    return Case("conv_add", "multi-inbound", ARMS, left, right, of("conv", "add", right=("conv3",)))


def connection(after: str) -> Connection:
    """Return the connection of an operator of a kind to the ones before it."""
    return "multi-inbound" if after in BINARY else "single"
