"""A plan of memory says how far its measured times can be trusted."""

from __future__ import annotations

import pytest

from edgeplan.cli.memory import sureness_lines
from edgeplan.profiling.streaming import StreamProfile


def _profile(run_ms: tuple[float, ...], others: float) -> StreamProfile:
    return StreamProfile(
        compute_ms=(1.0,), bytes_per_ms=1.0, lanes=2, objects_bytes=0, idle_bytes=0, run_ms=run_ms, lowest=(), others=others
    )


@pytest.mark.parametrize(
    ("run_ms", "unsure"),
    [((), 0.0), ((50.0, 10.0), 0.0), ((90.0, 10.0, 10.0, 10.0), 0.0), ((9.0, 8.0, 9.0, 10.0, 11.0, 12.0), 0.2)],
)
def test_quartiles_of_all_inferences_but_the_first_say_how_sure_times_are(run_ms: tuple[float, ...], unsure: float) -> None:
    assert _profile(run_ms, 0.0).unsure == pytest.approx(unsure)


def test_other_work_is_named_where_it_was_there() -> None:
    quiet, busy = (sureness_lines(_profile((9.0, 8.0, 12.0), others)) for others in (0.05, 0.5))
    assert len(quiet) == 1
    assert "20 %" in quiet[0]
    assert "50 % of the processors' time" in busy[1]
