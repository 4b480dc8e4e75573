"""Devices are found by options, and kernels built without risk for the process; messages say what is missing and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeplan.engines.base import EngineSettings
from edgeplan.engines.gpu.opencl import device_numbers
from edgeplan.engines.gpu.session import Opencl
from edgeplan.errors import DeviceError
from edgeplan.opencl import building, platforms
from edgeplan.opencl.building import Programs, ProgramSource
from edgeplan.opencl.platforms import OpenclOptions, find_device, pyopencl
from edgeplan.support.subprocesses import child_environment
from edgeplan.support.workers import ColdRunError

_GOOD = "__kernel void f(__global float *a) { a[0] = 1.0f; }"


@pytest.fixture
def programs() -> Programs:
    """Those of the first device; tests that need one are skipped where there is none."""
    try:
        device = find_device(OpenclOptions())
    except DeviceError as error:
        pytest.skip(error.what)
    return Programs(pyopencl().Context([device]), OpenclOptions())


def _variant(text: str, name: str = "one (B 8)") -> ProgramSource:
    return ProgramSource(name=name, text=text, options=("-cl-std=CL1.2",))


@pytest.mark.parametrize(
    ("given", "message", "following"),
    [
        ({"vector": "5"}, "vector is '5'", "one of 4, 8, 16"),
        ({"cores": "one"}, "cores is 'one'", "cores: '1'"),
        ({"cores": "1,1"}, "cores is '1,1'", "different cores"),
        ({"sharing": "all"}, "sharing is 'all'", "fine, mirrored"),
        ({"layout": "nhwc"}, "unknown option 'layout'", "platform, device, cores"),
    ],
)
def test_options_that_do_not_fit_are_named(given: dict[str, str], message: str, following: str) -> None:
    with pytest.raises(DeviceError) as error:
        OpenclOptions.of(given)
    assert message in error.value.what
    assert following in str(error.value)
    assert "field options" in str(error.value)


def test_options_are_read_from_text() -> None:
    found = OpenclOptions.of({"platform": "portable", "cores": " 3, 1", "vector": "4", "sharing": "mirrored"})
    assert found == OpenclOptions("portable", "", (3, 1), 4, "mirrored")


def _found(vendors: Path | None, **options: object) -> list[str]:
    """What a process finds whose loader reads drivers there: the device and PoCL's threads or an error, and how many PoCLs."""
    code = (
        "import os; from edgeplan.opencl.platforms import *; from edgeplan.opencl import platforms\n"
        "from edgeplan.errors import DeviceError\n"
        f"try: print(device_versions(find_device(OpenclOptions(**{options!r}))), len(platforms._STARTED.threads), sep='\\n')\n"
        "except DeviceError as error: print(error)\n"
        "print(sum(one.name == 'Portable Computing Language' for one in platforms.pyopencl().get_platforms()))"
    )
    pytest.importorskip("pyopencl")
    kept = {name: value for name, value in child_environment().items() if not name.startswith(("OCL_ICD_", "OPENCL_VENDOR"))}
    given = {} if vendors is None else {"OCL_ICD_VENDORS": str(vendors)}
    done = subprocess.run([sys.executable, "-c", code], env=kept | given, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_a_machine_without_opencl_is_told_what_to_install(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"  # a file stands for one driver: not even a wheel is looked for
    nothing.touch()
    first, *more = _found(nothing)
    assert first.startswith("no OpenCL platform")
    assert "pip install pocl-binary-distribution" in more[-1]
    assert "apt install pocl-opencl-icd" in more[-1]


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The library of PoCL's wheel."""
    found = platforms._wheel()
    if found is None:
        pytest.skip("pocl-binary-distribution is not installed")
    return found


@pytest.mark.parametrize("folder", ["", "missing", "broken"])
@pytest.mark.usefixtures("wheel")
def test_the_wheel_serves_where_the_system_has_no_driver_or_a_broken_one(tmp_path: Path, folder: str) -> None:
    """Images for GPUs name libraries that only a host with a GPU has."""
    if folder == "broken":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "absent.icd").write_text("libabsent_opencl.so.1")
    device, threads, _ = _found(tmp_path / folder, platform="portable", cores=(0,))
    assert "PoCL 3.0" in device
    assert threads == "1"


def test_a_driver_that_is_listed_twice_counts_once(tmp_path: Path, wheel: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.icd").write_text(str(wheel))
    device, threads, listed = _found(tmp_path, cores=(0,))
    assert "PoCL 3.0" in device
    assert int(listed) > 1
    assert threads == "1"
    (told,) = [line for line in _found(tmp_path, device="abacus") if "next:" in line]
    assert told.count("Portable Computing Language") == 1


@pytest.mark.usefixtures("wheel")
def test_a_driver_of_the_system_is_preferred_and_alone_has_threads(tmp_path: Path) -> None:
    system = list(Path("/etc/OpenCL/vendors").glob("*pocl*.icd"))
    if not system:
        pytest.skip("the system has no PoCL")
    device, threads, listed = _found(None, platform="portable", cores=(0,))
    assert listed == "2"
    assert threads == "1"
    assert device != _found(tmp_path, platform="portable")[0]


def test_the_version_is_that_of_the_driver_that_options_name(programs: Programs) -> None:
    options = {"platform": programs._device.platform.name}
    version = Opencl.version_for(EngineSettings(options=options))
    assert version.endswith("+" + "_".join(programs._device.driver_version.split()))
    with pytest.raises(DeviceError, match="on a platform 'none of these'"):
        Opencl.version_for(EngineSettings(options={"platform": "none of these"}))


@pytest.mark.parametrize(
    ("version", "native", "block", "wanted"),
    [
        ("OpenCL 3.0 PoCL 3.0  Linux, Release, LLVM 14.0.6", 16, 16, 8),
        ("OpenCL 3.0 PoCL 3.1+debian  Linux, LLVM 15.0.6", 16, 16, 16),
        ("OpenCL 3.0 PoCL 3.1+debian  Linux, LLVM 15.0.6", 16, 8, 8),
        ("OpenCL 3.0 PoCL 3.0  Linux, Release, LLVM 14.0.6", 8, 8, 8),
        ("OpenCL 3.0 CUDA 13.0.97", 1, 16, 4),
    ],
)
def test_vectors_are_as_wide_as_the_device_says_and_its_driver_compiles(
    programs: Programs, version: str, native: int, block: int, wanted: int
) -> None:
    device = _Told(programs._device, platform=SimpleNamespace(version=version), native_vector_width_float=native)
    assert device_numbers(device, block, OpenclOptions()).vector == wanted
    assert device_numbers(device, block, OpenclOptions(vector=4)).vector == 4


class _Told:
    """A device, but for what it is told to say."""

    def __init__(self, device: Any, **told: Any) -> None:
        self._device, self._told = device, told

    def __getattr__(self, name: str) -> Any:
        return self._told[name] if name in self._told else getattr(self._device, name)


def test_a_machine_without_pyopencl_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pyopencl.cache_clear()
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(DeviceError, match="pyopencl is not installed") as error:
        find_device(OpenclOptions())
    assert "pip install 'edgeplan[partition]'" in str(error.value)


@pytest.mark.usefixtures("programs")
def test_the_thread_of_pocl_computes_on_the_named_core_alone() -> None:
    for core in sorted(os.sched_getaffinity(0)):
        before = os.sched_getaffinity(0)
        device = find_device(OpenclOptions(platform="portable", cores=(core,)))
        assert device.max_compute_units == 1
        assert [os.sched_getaffinity(thread) for thread in platforms._STARTED.threads] == [{core}]
        assert os.sched_getaffinity(0) == before


@pytest.mark.usefixtures("programs")
def test_cores_that_cannot_be_had_are_refused() -> None:
    with pytest.raises(DeviceError, match="computes on 1 core") as error:
        find_device(OpenclOptions(cores=(0, 1)))
    assert "a process for each" in str(error.value)
    before = os.sched_getaffinity(0)
    with pytest.raises(DeviceError, match="cannot use cores 9999"):
        find_device(OpenclOptions(cores=(9999,)))
    assert os.sched_getaffinity(0) == before


def test_a_driver_that_crashes_while_it_builds_ends_no_process_of_ours(programs: Programs) -> None:
    crashing = _variant(f"#pragma clang __debug crash\n{_GOOD}", "crashing (B 8)")
    with pytest.raises(DeviceError, match=r"the OpenCL driver fails while it builds kernels: .*was ended by SIG") as error:
        programs.try_apart([_variant(_GOOD), crashing, _variant(_GOOD + " ", "never tried")])
    assert "crashing (B 8) on" in str(error.value)
    assert "never tried" not in str(error.value)
    assert programs.kernel(_variant(_GOOD), "f").num_args == 1


def test_a_kernel_that_the_driver_refuses_is_told(programs: Programs) -> None:
    with pytest.raises(DeviceError, match=r"cannot build the kernel wrong \(B 8\): .*nothing") as error:
        programs.try_apart([_variant(_GOOD), _variant("__kernel void f(int a) { nothing; }", "wrong (B 8)")])
    assert "another vector" in str(error.value)


def test_what_was_built_once_on_a_device_is_not_tried_apart_again(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor by the next process."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, other = _variant(_GOOD), _variant(_GOOD + "\n")
    Programs(programs._context, OpenclOptions()).try_apart([one])
    tried: list[object] = []

    def refuse(*given: object) -> None:
        tried.append(given)
        raise ColdRunError("asked again")

    monkeypatch.setattr(building, "work_apart", refuse)
    again = Programs(programs._context, OpenclOptions())
    assert again.kernel(one, "f").num_args == 1
    assert not tried
    with pytest.raises(DeviceError, match="asked again"):
        again.try_apart([one, other])
    assert len(tried) == 1
