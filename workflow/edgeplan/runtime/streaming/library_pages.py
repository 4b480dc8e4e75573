"""Pages of a loaded library that are in memory: letting go of those that are not needed now, and keeping those that are.

Making kernels runs other code than executing them. What the library's file holds can be had again at any time: pages that
nobody changed are dropped once the kernels are made, and those that execution needs come back one by one.

Under a limit of memory that is not enough. A page that is not in the page cache is read with megabytes around it, all of which
count, and which may push out what the next kernel needs. So a profile says which pages making and executing kernels need
(`RecordedPages`), and a process under a limit has those and no others in memory (`KeptPages`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

_RANDOM, _DONTNEED, _POPULATE_READ = 1, 4, 22  # of madvise(2); the second one from Linux 5.14 on
_PRESENT = 0x80  # in the last of the bytes that /proc/PID/pagemap holds of a page
_ENTRY_BYTES = 8
_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ \d+\s*(.*)$")

#: Pages of a file: the first of each run, and how many there are, one after the other.
Runs = Sequence[int]


class Mapping(NamedTuple):
    """A mapping of a file that cannot be written, and holds nothing but what the file says.

    Attributes:
        path: of the file.
        begin, end: its addresses.
        page: of the file that it begins with.
    """

    path: str
    begin: int
    end: int
    page: int


class LibraryPages:
    """Pages of a file's mappings that cannot be written and hold nothing but what the file says.

    Args:
        path: of the library.
    """

    def __init__(self, path: str) -> None:
        self._mappings = tuple(mapping for mapping in unchanged_mappings() if mapping.path == path)

    def begin(self) -> None:
        """Prepare for kernels to be made."""

    def drop(self) -> None:
        """Take the pages out of this process's memory; whoever needs one has it again. Where the system refuses, they stay."""
        _unmap(self._mappings)

    def made(self) -> None:
        """Note that all kernels are made: they will be executed now."""
        self.drop()

    def executed(self) -> None:
        """An inference has run code that had not run before."""


class RecordedPages(LibraryPages):
    """The same pages, with a record of those that making kernels and executing them need.

    Args:
        path: of the library.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._making: set[int] = set()
        self._running: set[int] = set()
        self._seen = self._making

    def drop(self) -> None:
        """Drop the pages once they are written down."""
        self._seen.update(present(self._mappings))
        super().drop()

    def made(self) -> None:
        """Write down from now on what is executed."""
        super().made()
        self._seen = self._running

    def found(self) -> tuple[Runs, Runs]:
        """Return the pages that making kernels needed, and those that executing them did."""
        self._seen.update(present(self._mappings))
        return runs_of(self._making), runs_of(self._running)


class KeptPages(LibraryPages):
    """The pages of the library in a process under a limit: those that are needed at a time, and no others.

    Args:
        path: of the library.
        making: pages that making kernels needs.
        running: pages that executing them needs.
    """

    def __init__(self, path: str, making: Runs, running: Runs) -> None:
        super().__init__(path)
        self._making, self._running = making, running

    def begin(self) -> None:
        """Have in memory what making kernels needs."""
        keep([(self._mappings, self._making)])

    def drop(self) -> None:
        """Keep them all: what is needed at a time was chosen before."""

    def made(self) -> None:
        """Have in memory what executing kernels needs, and nothing else: no page will be waited for."""
        keep([(self._mappings, self._running)])

    def executed(self) -> None:
        """Give up what was read around code that ran for the first time."""
        give_up_unused()


def give_up_unused() -> None:
    """Keep of all files that this process has mapped the pages that it uses, and give up the rest of what was read of them.

    What a loader reads ahead counts to the memory of a control group, and drags what is used out of it with itself.
    """
    of_file: dict[str, list[Mapping]] = {}
    for mapping in unchanged_mappings():
        of_file.setdefault(mapping.path, []).append(mapping)
    keep([(mappings, runs_of(present(mappings))) for mappings in of_file.values()])


def keep(files: Iterable[tuple[Sequence[Mapping], Runs]]) -> None:
    """Have some pages of mapped files in memory, and no others where no other process uses them.

    Args:
        files: the mappings of each file, and pages of it.
    """
    advise = _advise()
    opened = [(mappings, runs, descriptor) for mappings, runs in files if (descriptor := _opened(mappings)) is not None]
    for mappings, _, _ in opened:
        for mapping in mappings:
            advise(mapping.begin, mapping.end - mapping.begin, _RANDOM)  # nothing is read ahead any more, but around code
        _unmap(mappings)
    for _, _, descriptor in opened:  # what this code itself needs is mapped again by now: that stays
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    for mappings, runs, descriptor in opened:
        pairs = [(first * mmap.PAGESIZE, count * mmap.PAGESIZE) for first, count in zip(runs[::2], runs[1::2], strict=True)]
        for at, size in pairs:
            os.posix_fadvise(descriptor, at, size, os.POSIX_FADV_WILLNEED)  # these pages alone, nothing around them
        for _, begin, end, page in mappings:
            for at, size in pairs:
                first = max(begin, begin + at - page * mmap.PAGESIZE)
                last = min(end, begin + at + size - page * mmap.PAGESIZE)
                if first < last:
                    advise(first, last - first, _POPULATE_READ)
        os.close(descriptor)


def _opened(mappings: Sequence[Mapping]) -> int | None:
    """A descriptor of the file of some mappings; None where there are none, or it has been deleted."""
    try:
        return os.open(mappings[0].path, os.O_RDONLY | os.O_CLOEXEC) if mappings else None
    except OSError:
        return None


def present(mappings: Iterable[Mapping]) -> Iterator[int]:
    """Yield the pages of a file that its mappings have in memory; none where the system does not tell."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:  # noqa: PTH123  pathlib is not imported for this
            for mapping in mappings:
                file.seek(mapping.begin // mmap.PAGESIZE * _ENTRY_BYTES)
                told = file.read((mapping.end - mapping.begin) // mmap.PAGESIZE * _ENTRY_BYTES)
                for k, byte in enumerate(told[_ENTRY_BYTES - 1 :: _ENTRY_BYTES]):
                    if byte & _PRESENT:
                        yield mapping.page + k
    except OSError:
        return


def runs_of(pages: Iterable[int]) -> list[int]:
    """Return pages as runs of pages that follow each other."""
    found: list[int] = []
    for page in sorted(set(pages)):
        if found and page == found[-2] + found[-1]:
            found[-1] += 1
        else:
            found += [page, 1]
    return found


def unchanged_mappings() -> Iterator[Mapping]:
    """Yield the mappings of files in this process that cannot be written, and of which nothing was."""
    try:
        with open("/proc/self/smaps") as file:  # noqa: PTH123  likewise
            lines = file.read().splitlines()
    except OSError:
        return
    mapping: Mapping | None = None
    for line in lines:
        if head := _HEAD.match(line):
            fits = head[5].startswith("/") and "w" not in head[3] and head[3][3] == "p"
            first, begin, end = int(head[4], 16) // mmap.PAGESIZE, int(head[1], 16), int(head[2], 16)
            mapping = Mapping(head[5], begin, end, first) if fits else None
        elif mapping is not None and line.startswith("Anonymous:"):
            if int(line.split()[1]) == 0:  # relocated pages are there in no file
                yield mapping
            mapping = None


def _unmap(mappings: Iterable[Mapping]) -> None:
    advise = _advise()
    for mapping in mappings:
        advise(mapping.begin, mapping.end - mapping.begin, _DONTNEED)


def _advise() -> Any:
    function: Any = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
