"""CUDA where it is not there, and where its driver reports errors: the codes are injected, no GPU is needed."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgeplan.cuda import building, driver
from edgeplan.cuda.building import Modules, translated
from edgeplan.cuda.contexts import GpuContext
from edgeplan.cuda.driver import Driver
from edgeplan.errors import DeviceError
from edgeplan.opencl.building import variant
from edgeplan.opencl.launch import Launch
from edgeplan.processors.cuda import CudaOptions, CudaProcessor


class _Code(IntEnum):
    """Results of the driver, as cuda-bindings names them."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_ECC_UNCORRECTABLE = 214
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_LAUNCH_TIMEOUT = 702
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
    CUDA_ERROR_UNKNOWN = 999


def _driver(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> Driver:
    """A driver whose functions return what is given."""
    api = SimpleNamespace(CUresult=_Code, **{name: lambda *_, found=found: found for name, found in functions.items()})
    monkeypatch.setattr(driver, "_bindings", lambda: (api, SimpleNamespace()))
    return Driver("a GPU")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (_Code.CUDA_ERROR_OUT_OF_MEMORY, "end other programs on this GPU"),
        (_Code.CUDA_ERROR_DEVICE_UNAVAILABLE, "exclusive mode"),
        (_Code.CUDA_ERROR_LAUNCH_TIMEOUT, "a watchdog ended the kernel"),
        (_Code.CUDA_ERROR_ECC_UNCORRECTABLE, "run on another one"),
        (_Code.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "install the NVIDIA driver again"),
        (_Code.CUDA_ERROR_UNKNOWN, "look for the GPU in nvidia-smi"),
    ],
)
def test_errors_of_the_driver_say_what_to_do(monkeypatch: pytest.MonkeyPatch, code: _Code, advice: str) -> None:
    """Where it is called, and where it is asked whether all has run."""
    found = _driver(monkeypatch, cuMemAlloc=(code,), cuStreamQuery=(code,))
    for call in (lambda: found.call("cuMemAlloc", 1), lambda: found.done(None)):
        with pytest.raises(DeviceError, match=code.name.removeprefix("CUDA_ERROR_")) as error:
            call()
        assert advice in str(error.value)


def test_what_a_function_returns_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _driver(
        monkeypatch,
        none=(_Code.CUDA_SUCCESS,),
        one=(_Code.CUDA_SUCCESS, 7),
        two=(_Code.CUDA_SUCCESS, 7, 8),
        cuStreamQuery=(_Code.CUDA_ERROR_NOT_READY,),
    )
    assert [found.call(name) for name in ("none", "one", "two")] == [None, 7, (7, 8)]
    assert not found.done(None)


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"device": "first"}, "device is 'first'"), ({"multiprocessors": "-8"}, "is '-8'"), ({"sm": "8"}, "unknown option 'sm'")],
)
def test_options_that_do_not_fit_are_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(DeviceError, match=problem):
        CudaOptions.of(given)
    assert CudaOptions.of({"multiprocessors": "16"}) == CudaOptions(0, 16)


def test_a_gpu_computes_on_no_core() -> None:
    with pytest.raises(DeviceError, match="computes on no CPU cores"):
        CudaProcessor.open({}, (0,), 16)


def test_arguments_of_a_launch_lie_where_the_driver_reads_them() -> None:
    """Each at an address of its own: memory by its address, numbers in 32 bits."""
    modules = SimpleNamespace(function=lambda *_: "a kernel")
    processor = SimpleNamespace(_context=SimpleNamespace(modules=modules))
    given = (np.uint64((1 << 40) + 5), np.int32(-7), np.float32(0.25), np.int32(1 << 30))
    launch = Launch("empty", "empty", (), (64, 6), (32, 2), ())
    found = CudaProcessor._command(processor, launch, given)  # type: ignore[arg-type]
    places = (ctypes.c_uint64 * len(given)).from_address(found.arguments)
    kinds = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_float, ctypes.c_int32)
    assert [kind.from_address(place).value for kind, place in zip(kinds, places, strict=True)] == list(given)
    assert (found.grid, found.group) == ((2, 3, 1), (32, 2, 1))


def test_a_merged_program_names_each_kernel_by_its_source_and_ends_its_macros() -> None:
    small, large = (translated("conv_direct", (("B", 16), ("V", 4), ("R", rows), ("N", 1))) for rows in (1, 4))
    found = building.merged((small, large))
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


def test_kernels_of_a_merged_program_are_found_under_their_names_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, bytes]] = []
    found = _driver(monkeypatch, cuModuleLoadData=(_Code.CUDA_SUCCESS, "the module"))
    monkeypatch.setattr(found.api, "cuModuleGetFunction", lambda *given: asked.append(given) or (_Code.CUDA_SUCCESS, 2),
                        raising=False)  # fmt: skip
    sources = tuple(translated("conv_direct", (("B", 16), ("V", 4), ("R", rows), ("N", 1))) for rows in (1, 4))
    whole, modules = building.merged(sources), Modules(found, "sm_90", "one")
    modules.load(whole, b"machine code")
    modules.take_from(whole, sources)
    for source in sources:
        modules.function(source, "conv_direct")
    assert asked == [("the module", b"conv_direct_of_0"), ("the module", b"conv_direct_of_1")]


def test_code_that_was_kept_is_taken_only_if_it_is_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that is cut short, changed, or of another driver is compiled again."""
    compiled: list[str] = []

    def compile_(_self: Driver, name: str, _text: str, _options: list[str]) -> bytes:
        compiled.append(name)
        return b"machine code"

    monkeypatch.setattr(building, "state_folder", lambda: tmp_path)
    monkeypatch.setattr(Driver, "compiled", compile_)
    monkeypatch.setattr(Driver, "compiler", "13.0")
    asked = translated("empty", ())
    found = _driver(monkeypatch, cuModuleLoadData=(_Code.CUDA_SUCCESS, 1), cuModuleGetFunction=(_Code.CUDA_SUCCESS, 2))

    def load(identity: str = "one") -> int:
        Modules(found, "sm_90", identity).function(asked, "empty")
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


def test_a_context_is_opened_once_and_ended_with_its_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors of one slice share it, and the kernels that were loaded into it."""
    called: list[str] = []
    found = _driver(monkeypatch)
    answers = {"cuDeviceGetName": b"some GPU\0", "cuDeviceGetAttribute": 9, "cuDriverGetVersion": 13000, "cuModuleLoadData": 5}

    def call(function: str, *_: Any) -> Any:
        called.append(function)
        return answers.get(function, 1)

    monkeypatch.setattr(found, "call", call)
    found.api.CUdevice_attribute = SimpleNamespace(
        **{
            f"CU_DEVICE_ATTRIBUTE_{name}": 1
            for name in ("MULTIPROCESSOR_COUNT", "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR")
        }
    )
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
    found = _driver(monkeypatch)
    found.nvrtc = nvrtc
    asked = translated(source, (("B", 16), ("V", 4), ("R", 4), ("N", 1), ("GP", 64), ("GC", 64)))
    assert asked.text.endswith(variant(source, ()).text)
    assert found.compiled(asked.name, asked.text, ["--gpu-architecture=sm_90", *asked.options])
    with pytest.raises(DeviceError, match="NVRTC cannot compile the kernel broken"):
        found.compiled("broken", "__kernel", [])
