"""Checks a row from a board against what was asked for: a worker is believed its times, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from edgeplan.engines.base import EngineNode
from edgeplan.engines.copies import apart
from edgeplan.errors import FormatError
from edgeplan.graph.kernel_nodes import copies_graph
from edgeplan.measurement.board.wire import MeasuredRow
from edgeplan.measurement.measurer import Batch
from edgeplan.measurement.records import AnySubject, FileSubject, Measurement, Subject

#: Times of runs and references, us: from a nanosecond to a day.
_LEAST_US, _MOST_US = 1e-3, 8.64e10
#: Seconds by which a row may be dated after it has arrived.
_AHEAD_SECONDS = 60.0


def checked(row: MeasuredRow, subject: AnySubject, batch: Batch, now: float, board: str) -> Measurement:
    """Make a measurement of a row.

    Args:
        row: the row, as it came.
        subject: the subject that it claims to be of.
        batch: the batch that was asked for.
        now: time at which the row arrived, seconds since the epoch.
        board: name of the board, for messages.
    """
    fault = _fault(row, subject, batch, now)
    if fault:
        raise FormatError(
            f"a row does not fit what was asked for: {fault}",
            where=f"{board}, subject {row.name}",
            next_step="nothing of it was stored; if the board is yours, bring the same edgeplan to it: edgeplan device deploy",
        )
    blocks = len(row.least_us)
    return Measurement(
        subject=row.name,
        sample=row.sample,
        least_us=np.array(row.least_us),
        median_us=np.array(row.median_us),
        compute_us=np.array(row.compute_us),
        bandwidth_us=np.array(row.bandwidth_us),
        measured_at=np.array(row.measured_at),
        nodes=tuple(
            EngineNode(n.name, n.op_type, n.implementation, n.members, n.tensor, n.input_layout, n.output_layout)
            for n in row.nodes
        ),
        node_us=np.array(row.node_us).reshape(blocks, len(row.nodes)),
        nominal=batch.nominal,
        exponents=batch.settings.reference_exponents,
        seconds=row.seconds,
    )


def _fault(row: MeasuredRow, subject: AnySubject, batch: Batch, now: float) -> str:
    """Say in words why a row does not fit; "" if it does."""
    return next(filter(None, (*_faults_of_times(row, batch, now), *_faults_of_nodes(row, subject))), "")


def _faults_of_times(row: MeasuredRow, batch: Batch, now: float) -> Iterator[str]:
    settings, blocks = batch.settings, len(row.least_us)
    if row.sample != batch.sample:
        yield f"sample {row.sample} instead of {batch.sample}"
    if not settings.blocks <= blocks <= settings.blocks + settings.extra_blocks:
        yield f"{blocks} blocks instead of {settings.blocks} to {settings.blocks + settings.extra_blocks}"
    for name in ("least_us", "median_us", "compute_us", "bandwidth_us"):
        values = getattr(row, name)
        if len(values) != blocks:
            yield f"{name} has {len(values)} values for {blocks} blocks"
        elif not _within(np.array(values), _LEAST_US, _MOST_US):
            yield f"{name} is out of range"
    if any(least > median for least, median in zip(row.least_us, row.median_us, strict=False)):
        yield "a least time is above the median"
    dates = np.array(row.measured_at)
    if len(dates) != blocks or not _within(dates, 0.0, now + _AHEAD_SECONDS) or (np.diff(dates) < 0).any():
        yield "measured_at is not a date a block, in order, in the past"


def _faults_of_nodes(row: MeasuredRow, subject: AnySubject) -> Iterator[str]:
    blocks = len(row.least_us)
    operators = _operators(subject)
    if row.nodes and not operators:
        yield "it has nodes, and none were asked for"
    if len(row.node_us) != blocks * len(row.nodes):
        yield f"node_us has {len(row.node_us)} values for {blocks} blocks of {len(row.nodes)} nodes"
    elif row.node_us and not _within(np.array(row.node_us), 0.0, _MOST_US):
        yield "node_us is out of range"
    if strangers := {member for node in row.nodes for member in node.members}.difference(operators):
        yield f"a node holds {min(strangers)[:80]!r}, which is no operator of the graph"


def _operators(subject: AnySubject) -> AbstractSet[str]:
    """Return the operators that nodes may hold: none where no nodes were asked for, or where an engine describes its own."""
    if isinstance(subject, Subject):
        return subject.graph.by_name.keys() if subject.profiled else frozenset()
    if isinstance(subject, FileSubject):
        return frozenset()
    with suppress(FormatError):
        return copies_graph(subject.config, subject.copies, apart=apart(subject.config), around=True).by_name.keys()
    return frozenset()


def _within(values: npt.NDArray[np.float64], least: float, most: float) -> bool:
    return bool(np.isfinite(values).all() and (values >= least).all() and (values <= most).all())
