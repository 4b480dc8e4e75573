"""Memory is the same for each cold run: mapped code, and memory that is at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeplan.measurement.process import page_cache, prepare_machine
from edgeplan.runtime.dnnl import Dnnl

_FAULTS_OF_A_LIBRARY = """
import ctypes, resource, sys
from edgeplan.measurement.process import prepare_machine
library = ctypes.CDLL(sys.argv[1])
if sys.argv[2] == "mapped":
    prepare_machine.map_code()
address = next(l for l in open("/proc/self/maps") if sys.argv[1] in l and "r-x" in l).split("-")
start, end = int(address[0], 16), int(address[1].split()[0], 16)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for page in range(start, end, 4096):
    ctypes.c_char.from_address(page).value
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_code_that_was_mapped_is_not_faulted_in_again() -> None:
    path = Dnnl().info.path

    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", _FAULTS_OF_A_LIBRARY, path, how], capture_output=True, check=True)
        return int(done.stdout)

    assert faults("mapped") < 0.1 * faults("plain")


def test_a_library_that_left_the_page_cache_is_read_again() -> None:
    library = next(Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "multiarray" in line)
    if page_cache.evict([library]) == 1.0:
        pytest.skip("this file system keeps its pages")
    prepare_machine.map_code()
    assert page_cache.cached_share([library]) == 1.0


def test_memory_is_given_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    before = resident()
    prepare_machine.back_memory(16 << 20)
    assert resident() - before < 16 << 20


def test_files_are_looked_at_and_stay_in_the_page_cache(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("empty", "weights")]
    for file, size in zip(files, (0, 10_001), strict=True):
        file.write_bytes(b"w" * size)
    page_cache.evict(files)
    prepare_machine.back_files(files)
    assert page_cache.cached_share(files) == 1.0
