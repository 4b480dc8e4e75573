"""Programs put together by hand, for the library that stands for oneDNN in tests (`tests/runtime/fake_onednn.c`).

Step k makes x[k + 1] = (x[k] + weights[k]) / 2 + 1 of so few values that a session takes microseconds.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.runtime import constants, loops
from edgeplan.runtime.dnnl import Dims
from edgeplan.runtime.library import LibraryInfo
from edgeplan.runtime.linking import LinkedStep, RawWeight
from edgeplan.runtime.native_session import NativeSession, open_session
from edgeplan.runtime.packed_programs import ColdProgram, ModelFile, cold_program
from edgeplan.runtime.program_file import MEMORY_KIND, PROGRAM_BIN, Border, Section, border_row, checksum, packed
from edgeplan.runtime.tape import DESCRIPTORS, ENGINE, Given, Tape, Written, handle, number, record_sections
from edgeplan.support.files import stamp
from edgeplan.support.machine import machine_text

Array = npt.NDArray[np.float32]

VALUES, BYTES, PAGE = 64, 256, 4096
OBJECTS = ("engine", "stream", "descriptor", "attributes", "post_ops", "described", "primitive", "memory")
_TAG, _SRC, _SRC_1, _DST = 2, 1, 2, 17
_SOURCE = Path(__file__).parents[1] / "runtime" / "fake_onednn.c"
_BUILD = Path(__file__).parents[2] / "native" / "build.py"


class Event(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_char * 64),
        ("thread", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("number", ctypes.c_int64),
    )


def compiler() -> list[str]:
    """The project's compiler, as `native/build.py` finds it."""
    told = importlib.util.spec_from_file_location("native_build", _BUILD)
    assert told is not None
    assert told.loader is not None
    module = importlib.util.module_from_spec(told)
    told.loader.exec_module(module)
    found: list[str] = module.compiler()
    return found


def build_fake(folder: Path) -> FakeOnednn:
    path = folder / "libfake_onednn.so"
    command = [*compiler(), "-x", "c", "-O1", "-shared", "-fPIC", "-pthread", str(_SOURCE), "-o", str(path)]
    subprocess.run(command, check=True)
    return FakeOnednn(path)


class FakeOnednn:
    """The library that stands for oneDNN, and its file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        self._library.fake_event.restype = ctypes.POINTER(Event)
        self.info = LibraryInfo(self.path, "3.99.0", "fake", "OpenMP", "avx2", 8, exact_bytes=True)

    def reset(self) -> None:
        self._library.fake_reset()

    def rule(self, function: str, nth: int = 0, *, status: int = 0, delay_us: int = 0) -> None:
        """The nth call of a function from now on (0: each) takes so much longer, and fails where there is a status."""
        self._library.fake_rule(f"dnnl_{function}".encode(), nth, status, delay_us)

    def live(self) -> dict[str, int]:
        """Objects that were made and not freed, by kind; the engine stays."""
        found = {name: int(self._library.fake_live(1 + kind)) for kind, name in enumerate(OBJECTS)}
        return {name: count for name, count in found.items() if count and name != "engine"}

    @property
    def misuses(self) -> int:
        """Return how often an object was of another kind, or freed before."""
        return int(self._library.fake_misuses())

    def events(self, function: str) -> list[Event]:
        """Calls of a function, in order."""
        found = [self._library.fake_event(k).contents for k in range(self._library.fake_events())]
        return [event for event in found if event.function == f"dnnl_{function}".encode()]

    def open(self, folder: Path, **how: Any) -> NativeSession:
        return open_session(folder, library=self.path, **how)


@dataclass(frozen=True)
class Chain:
    """What a chain of steps computes."""

    weights: Array

    @staticmethod
    def of(steps: int) -> Chain:
        return Chain(np.random.default_rng(7).standard_normal((steps, VALUES), np.float32))

    @property
    def inputs(self) -> dict[str, Array]:
        return {"x": np.arange(VALUES, dtype=np.float32)}

    @property
    def wanted(self) -> Array:
        x = self.inputs["x"]
        for weights in self.weights:
            x = np.float32(0.5) * (x + weights) + np.float32(1)
        return x

    @property
    def steps(self) -> int:
        return len(self.weights)


def _tape(steps: int, later: int = 0, implementation: str = "fake:second") -> Tape:
    """A primitive of each step, then those of later runs, and a memory behind each step and before the first."""
    tape = Tape()
    shape = (number(1), Given(loops.CONSTANT, bytes(Dims(VALUES))), number(constants.F32), number(_TAG))
    values = handle(DESCRIPTORS, tape.descriptor("dnnl_memory_desc_create_with_tag", *shape))
    attributes = tape.attributes()
    for k, threads in enumerate((*[1] * steps, *[2] * later)):  # each of another algorithm, else they were one
        given = (ENGINE, number(k), values, values, values)
        tape.primitive("dnnl_binary_primitive_desc_create", implementation, attributes, threads, given)
    for k in range(steps + 1):
        tape.memory(values.value.row, BYTES * k)
    return tape


def write_cold(
    fake: FakeOnednn,
    chain: Chain,
    folder: Path,
    *,
    sources: Sequence[str] = ("cached_read", "cached_mmap"),
    queues: Sequence[Sequence[int]] = (),
    later: bool = False,
    implementation: str = "fake:second",
    outputs: Sequence[Border] = (),
    **facts: Any,
) -> None:
    """Write a plan folder of a cold start: sources of weights are taken in turn, `queues` are steps that further lanes prepare,
    `later` runs have kernels of their own, and `facts` are more that the program says of itself.
    """
    folder.mkdir(exist_ok=True)
    count = chain.steps
    contents = [weights.tobytes() for weights in chain.weights]

    def step(k: int, source: str, primitive: int) -> LinkedStep:
        raw, calls = RawWeight("operand", 0, BYTES * k, BYTES, (VALUES,)), ((primitive, _SRC, k, _SRC_1, -1, _DST, k + 1),)
        made = LinkedStep(f"step {k}", source, calls, ((0, 0, 0, BYTES, -1),), BYTES, (raw,), "binary", {})
        made.place, made.segment, made.checksum = BYTES * k, PAGE * k, checksum(contents[k])
        return made

    model, cache = folder / "model.bin", folder / "weights.cache"
    model.write_bytes(b"".join(contents))
    cache.write_bytes(b"".join(content.ljust(PAGE, b"\0") for content in contents))
    queued = {k for queue in queues for k in queue}
    whole = {
        "model": "chain", "threads": 2, "layout": "nchw", "equal_cores": True, "little_ratio": 1.0, "widen_from": count,
        "arena_bytes": BYTES * (count + 1), "weights_bytes": BYTES * count, "cache_bytes": PAGE * count,
        "stamp": stamp(cache.stat()), **facts,
    }  # fmt: skip
    steps = [step(k, sources[k % len(sources)], k) for k in range(count)]
    program = ColdProgram(
        whole,
        ([k for k in range(count) if k not in queued], *queues),
        [Border("x", (VALUES,), 0)],
        outputs or [Border("y", (VALUES,), BYTES * count)],
        [ModelFile(str(model), model.stat().st_size, stamp(model.stat()))],
        _tape(count, count if later else 0, implementation),
        steps,
        [step(k, "shared", count + k) if later else None for k in range(count)],
    )
    (folder / PROGRAM_BIN).write_bytes(cold_program(program, fake.info, continuous=later))


def write_memory(
    fake: FakeOnednn,
    chain: Chain,
    folder: Path,
    *,
    resident: int = 0,
    readers: Sequence[int] = (),
    **facts: Any,
) -> None:
    """Write a plan folder of memory: activations by turns in two buffers, weights by turns in two places behind them; those of
    the last `resident` steps stay, in places of their own.
    """
    folder.mkdir(exist_ok=True)
    count, file = chain.steps, folder / "weights.bin"
    file.write_bytes(b"".join(weights.tobytes().ljust(PAGE, b"\0") for weights in chain.weights))
    written = Written(_tape(count))
    records = [written.record(((k, _SRC, 0, _SRC_1, 0, _DST, 0),), bound=False) for k in range(count)]
    streamed = range(count - resident)
    places = [1 + k % 2 for k in streamed] + [3 + k for k in range(resident)]
    after = [k - 2 if k >= 2 else -1 for k in streamed] + [-1] * resident  # the step that used the place before
    last = [max((k for k in streamed if k % 2 == place), default=-1) for place in range(2)]
    again = [last[k % 2] if k < 2 else -1 for k in streamed] + list(range(len(streamed), count))
    arena, units = PAGE * (3 + resident), PAGE // 64
    schedule = [0, BYTES // 64, *(units * place for place in places), *after, *again]
    operands = [row for k in range(count) for row in ((k % 2, 0), (-1, 0), ((k + 1) % 2, 0))]
    whole = {
        **written.facts, "threads": 1, "steps": count, "model": "chain", "machine": machine_text(),
        "version": fake.info.version, "commit": fake.info.commit, "isa": fake.info.isa, "layout": "nchw",
        "library": fake.path, "arena_bytes": arena, "weights_bytes": PAGE * count, "stamp": stamp(file.stat()),
        "isolated": False, "checksum": checksum(file.read_bytes()), "bytes_per_ms": 1e5, **facts,
    }  # fmt: skip
    budgets = [(1 << 20, arena, 2.0, 1.0), (1 << 20, arena, 2.0, 1.0)]
    sections: dict[Section, Any] = {
        **written.sections,
        **record_sections(records),
        Section.INPUTS: [border_row(Border("x", (VALUES,), 0, buffer=0))],
        Section.OUTPUTS: [border_row(Border("y", (VALUES,), 0, buffer=count % 2))],
        Section.STEP_NAMES: [f"step {k}" for k in range(count)],
        Section.STEPS: [(k, 3 * k, PAGE * k, PAGE, PAGE) for k in range(count)],
        Section.OPERANDS: operands,
        Section.BUFFERS: [(BYTES, 0, count), (BYTES, 0, count)],
        Section.SCHEDULES: budgets,
        Section.PLACES: np.array(schedule * len(budgets), np.int32),
        Section.READERS: list(readers),
    }
    (folder / PROGRAM_BIN).write_bytes(packed(MEMORY_KIND, whole, sections))
