"""Where a step is split next: what each processor took tells which of them waited, and how far to shift."""

from __future__ import annotations

from collections.abc import Mapping

from edgeplan.runtime.partitioned.sections import Extent

#: Times of both processors' parts.
Parts = tuple[float, float]
#: A split whose slower part takes so many times the better whole time is no start to look further from.
_HOPELESS = 1.5
#: Parts that differ by less than this share of the longer one are as even as runs repeat.
_EVEN = 0.03


def first_end(extent: Extent, whole: Parts) -> int:
    """The end of the CPU's part at which both would take equally long, if time grew with the part alone."""
    cpu, gpu = whole
    return extent.nearest(gpu / (cpu + gpu) if cpu + gpu > 0 else 0.5)


def next_end(extent: Extent, whole: Parts, known: Mapping[int, Parts]) -> int | None:
    """The end that is worth measuring behind those that were; None where nothing is to be gained."""
    if last_end(extent) < extent.unit:
        return None
    if not known:
        return first_end(extent, whole)
    best = min(known, key=lambda end: max(known[end]))
    if max(known[best]) > _HOPELESS * min(whole):
        return None
    cpu, gpu = known[best]
    rates = best / max(cpu, 1e-9), (extent.size - best) / max(gpu, 1e-9)
    wanted = extent.nearest(rates[0] / sum(rates))
    if wanted not in known:
        return wanted
    further = shifted(extent, best, known[best])
    return further if further not in known else None


def shifted(extent: Extent, end: int, parts: Parts) -> int:
    """The end after a block was shifted to the processor that waited for the other; the same where both are even."""
    cpu, gpu = parts
    if abs(cpu - gpu) <= _EVEN * max(cpu, gpu):
        return end
    wanted = end + (extent.unit if cpu < gpu else -extent.unit)
    return min(max(wanted, extent.unit), last_end(extent))


def last_end(extent: Extent) -> int:
    """The largest end that leaves something for the GPU; below one unit, where the step cannot be cut."""
    return (extent.size - 1) // extent.unit * extent.unit
