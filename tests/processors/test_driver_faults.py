"""Faults of drivers where a pair meets them, and CUDA where it is not there: each code is injected, and the rest is real.

Exclusive mode, too little memory, a watchdog and a lost device: none of these can be had on purpose where tests run. CUDA's
processor runs on a driver that answers without a GPU; OpenCL's on a real device whose driver answers with the code.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from partition_models import Saved
from streamed_models import plain_model

from edgeplan.cuda import driver
from edgeplan.cuda.driver import Driver, GpuContext, Modules, translated
from edgeplan.engines.gpu.cuda import CudaOptions, CudaProcessor
from edgeplan.engines.gpu.opencl import OpenclProcessor
from edgeplan.engines.onednn.processor import OnednnProcessor
from edgeplan.errors import DeviceError
from edgeplan.opencl.building import program_source
from edgeplan.opencl.launch import Launch
from edgeplan.opencl.platforms import OpenclOptions
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.partitioned.program import Partitioned, partition
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation
from edgeplan.runtime.processor import Processor
from edgeplan.runtime.program import activation_layouts

_CORES = sorted(os.sched_getaffinity(0))


class _Code(IntEnum):
    """Results of CUDA's driver, as cuda-bindings names them."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INSUFFICIENT_DRIVER = 35
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_LAUNCH_TIMEOUT = 702
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
    CUDA_ERROR_UNKNOWN = 999


class _Numbers:
    def __getattr__(self, name: str) -> int:
        return 0


class _Answers:
    """CUDA's driver without a GPU: every function succeeds but those that are to fail, and no kernel ever runs.

    Args:
        lost: whether all functions fail from the first that does.
        fails: by function, what it reports.
    """

    def __init__(self, *, lost: bool = False, **fails: _Code) -> None:
        self.fails, self.lost, self.dead = fails, lost, False
        self.asked: list[str] = []
        self.given: dict[str, list[tuple[Any, ...]]] = {}
        self._memory: list[Any] = []
        self.CUresult = _Code

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU_"):
            return 0
        return _Numbers() if name.startswith("CU") else lambda *given: self._answer(name, given)

    def _answer(self, name: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
        self.asked.append(name)
        self.given.setdefault(name, []).append(given)
        if name in self.fails or self.dead:
            self.dead = self.lost
            return (self.fails.get(name, _Code.CUDA_ERROR_UNKNOWN),)
        ok = _Code.CUDA_SUCCESS
        if name == "cuMemHostAlloc":
            self._memory.append(ctypes.create_string_buffer(int(given[0]) + 64))
            return ok, ctypes.addressof(self._memory[-1]) + -ctypes.addressof(self._memory[-1]) % 64
        known: dict[str, tuple[Any, ...]] = {
            "cuDeviceGetName": (ok, b"a GPU\0"),
            "cuDriverGetVersion": (ok, 13000),
            "cuMemGetInfo": (ok, 1 << 30, 1 << 34),
            "cuStreamQuery": (ok,),
        }
        return known.get(name, (ok, 1))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., _Answers]:
    """Have CUDA's driver answer as told; NVRTC compiles whatever it is given."""
    monkeypatch.setattr(Driver, "compiled", lambda *_: b"machine code")

    def answering(**fails: Any) -> _Answers:
        answers = _Answers(**fails)
        nvrtc = SimpleNamespace(nvrtcVersion=lambda: (_Code.CUDA_SUCCESS, 13, 0))
        monkeypatch.setattr(driver, "_bindings", lambda: (answers, nvrtc))
        return answers

    return answering


@pytest.fixture
def cpu() -> Iterator[OnednnProcessor]:
    with OnednnProcessor(_CORES[:1]) as found:
        yield found


def _split(cpu: OnednnProcessor, other: Processor, folder: Path) -> tuple[Partitioned, Path, dict[str, Any]]:
    """A small model, each step on the other processor that has a kernel of it, in a partition."""
    model = Saved(plain_model(), folder)
    layouts = activation_layouts(model.lowered, BLOCKED)
    assigned = [0 if other.refuses(model.lowered, step, layouts) else 1 for step in model.lowered.steps]
    assert 1 in assigned
    return partition(model.lowered, layouts, cpu.dnnl.info.block, assigned), model.path, model.inputs


def test_a_gpu_in_exclusive_mode_is_not_opened_and_nothing_is_kept(gpu: Callable[..., _Answers]) -> None:
    for function in ("cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"):
        answers = gpu(**{function: _Code.CUDA_ERROR_DEVICE_UNAVAILABLE})
        with pytest.raises(DeviceError, match=f"{function} reports DEVICE_UNAVAILABLE") as error:
            CudaProcessor(CudaOptions(), 16)
        assert "exclusive mode" in str(error.value)
        assert "a GPU" in str(error.value)
        retained = "cuCtxSetCurrent" in answers.asked
        assert ("cuDevicePrimaryCtxRelease" in answers.asked) == retained


def test_too_little_memory_of_a_gpu_leaves_it_usable(
    gpu: Callable[..., _Answers], cpu: OnednnProcessor, tmp_path: Path
) -> None:
    answers = gpu()
    with CudaProcessor(CudaOptions(), cpu.dnnl.info.block) as processor:
        answers.fails["cuMemAlloc"] = _Code.CUDA_ERROR_OUT_OF_MEMORY
        partitioned, model, _ = _split(cpu, processor, tmp_path)
        with pytest.raises(DeviceError, match="cuMemAlloc reports OUT_OF_MEMORY") as error:
            PairSession.of(cpu, processor, partitioned, model)
        assert "run a smaller model" in str(error.value)
        assert "cuMemFreeHost" in answers.asked, "the host's half is returned"
        answers.fails.clear()
        with PairSession.of(cpu, processor, partitioned, model) as session:
            assert session.synchronisation == Synchronisation.polling


@pytest.mark.parametrize(
    "fault",
    [
        (_Code.CUDA_ERROR_LAUNCH_TIMEOUT, False, "a watchdog ended the kernel"),
        (_Code.CUDA_ERROR_UNKNOWN, True, "look for the GPU in nvidia-smi"),
        (_Code.CUDA_ERROR_NO_DEVICE, True, "check with nvidia-smi"),
        (_Code.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, False, "install the NVIDIA driver again"),
    ],
)
@pytest.mark.parametrize("synchronisation", Synchronisation)
def test_a_gpu_that_stops_in_a_run_says_why_and_is_closed(
    gpu: Callable[..., _Answers], cpu: OnednnProcessor, tmp_path: Path, fault: Any, synchronisation: Synchronisation
) -> None:
    """By polling, too, where the host only sees that nobody comes: the driver is asked, and what it says is told."""
    code, lost, advice = fault
    answers = gpu(lost=lost)
    with CudaProcessor(CudaOptions(), cpu.dnnl.info.block) as processor:
        partitioned, model, inputs = _split(cpu, processor, tmp_path)
        with PairSession.of(cpu, processor, partitioned, model, synchronisation, limit_seconds=0.2) as session:
            answers.fails["cuStreamQuery"] = code
            with pytest.raises(DeviceError, match=code.name.removeprefix("CUDA_ERROR_")) as error:
                session.run(inputs)
            assert advice in str(error.value)
            with pytest.raises(DeviceError, match="failed in an earlier run"):
                session.run(inputs)
    assert answers.dead == lost
    with OnednnProcessor(_CORES[:1]) as alone:  # the machine works on without it
        assert alone.dnnl.info.block


@pytest.mark.parametrize("lacking", [RuntimeError('Function "cuGreenCtxCreate" not found'), AttributeError("cuGreenCtxCreate")])
def test_a_driver_that_is_too_old_for_slices_says_so(
    gpu: Callable[..., _Answers], monkeypatch: pytest.MonkeyPatch, lacking: Exception
) -> None:
    answers = gpu()

    def fails(*_: object) -> None:
        raise lacking

    monkeypatch.setattr(answers, "cuDeviceGetDevResource", fails, raising=False)
    monkeypatch.setattr(answers, "cuDeviceGetAttribute", lambda *_: (_Code.CUDA_SUCCESS, 132), raising=False)
    with pytest.raises(DeviceError, match="too old for cuDeviceGetDevResource") as error:
        CudaProcessor(CudaOptions(multiprocessors=8), 16)
    assert "install a newer NVIDIA driver" in str(error.value)
    assert "cuDevicePrimaryCtxRelease" in answers.asked


@pytest.mark.parametrize(
    ("problem", "told", "step"),
    [
        (ImportError("no module"), "cuda-bindings is not installed", r"pip install 'edgeplan\[cuda\]'"),
        (RuntimeError("libcuda.so.1: cannot open"), "there is no CUDA here", "install the NVIDIA driver"),
    ],
)
def test_where_no_driver_is_it_is_said(monkeypatch: pytest.MonkeyPatch, problem: Exception, told: str, step: str) -> None:
    def fails(*_: object) -> Any:
        raise problem

    driver._bindings.cache_clear()
    here = SimpleNamespace(cuInit=fails, nvrtcVersion=fails)
    monkeypatch.setattr(driver, "import_module", fails if isinstance(problem, ImportError) else lambda _: here)
    with pytest.raises(DeviceError, match=f"{told}(?s:.*){step}"):
        CudaProcessor.open({}, (), 16)
    old = SimpleNamespace(cuInit=lambda _: (_Code.CUDA_ERROR_INSUFFICIENT_DRIVER,), nvrtcVersion=lambda: (0, 13, 0))
    monkeypatch.setattr(driver, "import_module", lambda _: old)
    with pytest.raises(DeviceError, match=r"cuInit reports INSUFFICIENT_DRIVER(?s:.*)install a newer NVIDIA driver"):
        CudaProcessor.open({}, (), 16)


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"device": "first"}, "device is 'first'"), ({"multiprocessors": "-8"}, "is '-8'"), ({"sm": "8"}, "unknown option 'sm'")],
)
def test_options_that_do_not_fit_are_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(DeviceError, match=problem):
        CudaOptions.of(given)
    assert CudaOptions.of({"multiprocessors": "16"}) == CudaOptions(0, 16)
    with pytest.raises(DeviceError, match="computes on no CPU cores"):
        CudaProcessor.open({}, (0,), 16)


def test_arguments_of_a_launch_lie_where_the_driver_reads_them() -> None:
    """Each at an address of its own: memory by its address, numbers in 32 bits."""
    modules = SimpleNamespace(function=lambda *_: "a kernel")
    processor = SimpleNamespace(_context=SimpleNamespace(modules=modules))
    given = (np.uint64((1 << 40) + 5), np.int32(-7), np.float32(0.25), np.int32(1 << 30))
    launch = Launch("empty", "empty", (), (64, 6), (32, 2), ())
    found = CudaProcessor.command(processor, launch, given)  # type: ignore[arg-type]
    places = (ctypes.c_uint64 * len(given)).from_address(found.arguments)
    kinds = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_float, ctypes.c_int32)
    assert [kind.from_address(place).value for kind, place in zip(kinds, places, strict=True)] == list(given)
    assert (found.grid, found.group) == ((2, 3, 1), (32, 2, 1))


def test_a_merged_program_names_each_kernel_by_its_source_and_ends_its_macros(gpu: Callable[..., _Answers]) -> None:
    """Kernels are found there under these names."""
    small, large = sources = tuple(translated("conv_direct", (("B", 16), ("V", 4), ("R", rows), ("N", 1))) for rows in (1, 4))
    found = driver.merged(sources)
    assert found.text.count("struct mask4") == 1, "one prelude"
    assert "#undef ALIGNED\n" not in found.text, "whose macros last"
    for number, (rows, source) in enumerate(((1, small), (4, large))):
        part = found.text.partition(f"namespace source_{number} ")
        assert f"#define conv_direct conv_direct_of_{number}\n" in part[0].rpartition("#undef")[2]
        assert f"#define R {rows}\n" in part[0].rpartition("#undef")[2]
        inside, _, after = part[2].partition("\n}\n#undef")
        assert source.text.endswith(inside.removeprefix("{\n"))
        for name in ("R", "FLOATV", "SOON", "conv_direct"):
            assert f"#undef {name}\n" in f"#undef{after}"
    answers = gpu()
    modules = Modules(Driver("a GPU"), "sm_90", "one")
    modules.load(found, b"machine code")
    modules.take_from(found, sources)
    for source in sources:
        modules.function(source, "conv_direct")
    assert answers.given["cuModuleLoadData"] == [(b"machine code",)]
    assert answers.given["cuModuleGetFunction"] == [(1, b"conv_direct_of_0"), (1, b"conv_direct_of_1")]


def test_code_that_was_kept_is_taken_only_if_it_is_whole(
    gpu: Callable[..., _Answers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file that is cut short, changed, or of another driver is compiled again."""
    gpu()
    compiled: list[str] = []

    def compile_(_self: Driver, name: str, _text: str, _options: list[str]) -> bytes:
        compiled.append(name)
        return b"machine code"

    monkeypatch.setattr(driver, "state_folder", lambda: tmp_path)
    monkeypatch.setattr(Driver, "compiled", compile_)

    def load(identity: str = "one") -> int:
        Modules(Driver("a GPU"), "sm_90", identity).function(translated("empty", ()), "empty")
        return len(compiled)

    assert [load(), load()] == [1, 1]
    (kept,) = (tmp_path / "cuda").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1])
    assert load() == 2
    kept.write_bytes(whole[:-1] + b"?")
    assert load() == 3
    assert kept.read_bytes() == whole
    assert load("another") == 4


def test_a_context_is_opened_once_and_ended_with_its_last_use(gpu: Callable[..., _Answers]) -> None:
    """Processors of one slice share it, and the kernels that were loaded into it."""
    called, found = gpu().asked, Driver("a GPU")
    first, second = (GpuContext.shared(found, 0, 0) for _ in range(2))
    assert first is second
    assert called.count("cuDevicePrimaryCtxRetain") == 1
    first.close()
    assert "cuDevicePrimaryCtxRelease" not in called
    second.close()
    assert called[-1] == "cuDevicePrimaryCtxRelease"
    third = GpuContext.shared(found, 0, 0)
    assert third is not first
    third.close()
    assert called.count("cuDevicePrimaryCtxRetain") == 2


@pytest.mark.parametrize(
    "source", ["conv_tiled", "linear_tiled", "conv_winograd", "conv_first", "pointwise", "window", "matmul", "grouped_rows"]
)
def test_sources_are_cuda_too(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """NVRTC compiles them without a GPU."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="the extra cuda is not installed")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(driver, "_bindings", lambda: (None, nvrtc))
    found = Driver("a GPU")
    asked = translated(source, (("B", 16), ("V", 4), ("R", 4), ("N", 1), ("GP", 64), ("GC", 64)))
    assert asked.text.endswith(program_source(source, ()).text)
    assert found.compiled(asked.name, asked.text, ["--gpu-architecture=sm_90", *asked.options])
    with pytest.raises(DeviceError, match="NVRTC cannot compile the kernel broken"):
        found.compiled("broken", "__kernel", [])


# OpenCL


class _Failing:
    """The calls of pyopencl, one of which reports a code."""

    def __init__(self, cl: Any, routine: str, code: str) -> None:
        self._cl, self._routine, self._code = cl, routine, code

    def __getattr__(self, name: str) -> Any:
        return self.fail if name == self._routine else getattr(self._cl, name)

    def fail(self, *_: object, **__: object) -> Any:
        cl = self._cl
        raise cl.RuntimeError(cl._cl._ErrorRecord("", int(getattr(cl.status_code, self._code)), self._routine))


@pytest.fixture
def opencl() -> Iterator[OpenclProcessor]:
    try:
        with OpenclProcessor(OpenclOptions(cores=tuple(_CORES[-1:])), Dnnl().info.block) as found:
            yield found
    except DeviceError as error:
        pytest.skip(error.what)


@pytest.mark.parametrize(
    "fault",
    [
        ("DEVICE_NOT_AVAILABLE", "another program has the device for itself"),
        ("OUT_OF_RESOURCES", "a watchdog reports this"),
        ("INVALID_COMMAND_QUEUE", "the driver gave the device up"),
    ],
)
@pytest.mark.parametrize("synchronisation", Synchronisation)
def test_an_opencl_device_that_stops_in_a_run_says_why_and_is_closed(
    opencl: OpenclProcessor, cpu: OnednnProcessor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    fault: tuple[str, str], synchronisation: Synchronisation,
) -> None:  # fmt: skip
    code, advice = fault
    if synchronisation == Synchronisation.polling and len(_CORES) < 2:
        pytest.skip("two processors need a core each")
    partitioned, model, inputs = _split(cpu, opencl, tmp_path)
    session = PairSession.of(cpu, opencl, partitioned, model, Synchronisation.events)
    session.run(inputs)
    session.close()
    for routine in ("enqueue_nd_range_kernel", "finish"):
        with PairSession.of(cpu, opencl, partitioned, model, synchronisation) as session, monkeypatch.context() as patch:
            failing = _Failing(opencl._cl, routine, code)
            if routine == "finish":  # the driver's call returns, with the code
                waiter = opencl._waiter
                assert waiter is not None
                patch.setattr(waiter, "run", lambda *given, run=waiter.run, fail=failing.fail: (run(*given), fail()))
            else:
                patch.setattr(opencl, "_cl", failing)
            with pytest.raises(DeviceError, match=code) as error:
                session.run(inputs)
            assert advice in str(error.value)
            assert opencl.capabilities.name in str(error.value)
    with PairSession.of(cpu, opencl, partitioned, model, synchronisation) as session:
        assert session.run(inputs), "the next session runs"


def test_an_opencl_device_in_exclusive_mode_or_without_memory_is_told(
    opencl: OpenclProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    cl = opencl._cl
    for routine, code, advice in (
        ("Context", "DEVICE_NOT_AVAILABLE", "has the device for itself"),
        ("CommandQueue", "OUT_OF_HOST_MEMORY", "end other programs on this machine"),
    ):
        with monkeypatch.context() as patch:
            failing = _Failing(cl, routine, code)
            patch.setattr("edgeplan.engines.gpu.opencl.pyopencl", lambda failing=failing: failing)
            with pytest.raises(DeviceError, match=f"OpenCL cannot open the device: (?s:.*){advice}"):
                OpenclProcessor(OpenclOptions(cores=tuple(_CORES[-1:])), 16)
    with monkeypatch.context() as patch:
        patch.setattr(opencl, "_cl", _Failing(cl, "svm_empty", "MEM_OBJECT_ALLOCATION_FAILURE"))
        if opencl.capabilities.sharing == "fine":
            with pytest.raises(DeviceError, match=r"cannot allocate 64 bytes(?s:.*)end other programs on this device"):
                opencl.allocate(64)
    assert opencl.allocate(64).data.sum() == 0
