"""Pages of a mapped file: which are in memory, and having some of them there and no others."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeplan.measurement.process.page_cache import cached_share, evict
from edgeplan.runtime.streaming.library_pages import (
    KeptPages,
    RecordedPages,
    keep,
    present,
    runs_of,
    unchanged_mappings,
)

LANE = "fast"  # see tests/conftest.py

_PAGES = 4096


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[tuple[Path, mmap.mmap]]:
    """A file of 16 MiB on a disk, mapped so that it cannot be written, no page of it in memory."""
    path = tmp_path / "library.so"
    path.write_bytes(bytes(_PAGES * mmap.PAGESIZE))
    if evict([path]):
        pytest.skip("the file system of temporary files is in memory")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as view:
        yield path, view


@given(st.sets(st.integers(0, 60)))
def test_runs_name_each_page_once(pages: set[int]) -> None:
    runs = runs_of([*pages, *pages])
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    assert {first + k for first, count in pairs for k in range(count)} == pages
    assert all(end < first for (end, first) in ((a + n, b) for (a, n), (b, _) in pairwise(pairs)))


def test_pages_that_are_kept_are_in_memory_and_no_others(mapped: tuple[Path, mmap.mmap]) -> None:
    path, view = mapped
    assert view[5 * mmap.PAGESIZE] == 0  # the system reads more around it
    mappings = [mapping for mapping in unchanged_mappings() if mapping.path == str(path)]
    assert mappings
    keep([(mappings, [7, 2, 1000, 1])])
    assert set(present(mappings)) >= {7, 8, 1000} or not set(present(mappings))  # systems before Linux 5.14 map none
    assert cached_share([path]) * _PAGES <= 3 + 1


def test_what_was_recorded_is_what_is_kept(mapped: tuple[Path, mmap.mmap]) -> None:
    path, view = mapped
    recorded = RecordedPages(str(path))
    recorded.begin()
    assert view[0] == 0
    recorded.made()
    assert view[3000 * mmap.PAGESIZE] == 0
    making, running = recorded.found()
    assert (making[0], 0 in running[::2]) == (0, False)
    kept = KeptPages(str(path), making, running)
    kept.begin()
    assert cached_share([path]) * _PAGES <= sum(making[1::2]) + 1
    kept.made()
    kept.drop()
    assert 0 < cached_share([path]) * _PAGES <= sum(running[1::2]) + 1
