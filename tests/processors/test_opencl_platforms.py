"""Devices are found by options, and kernels built without risk for the process; messages say what is missing and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeplan.errors import DeviceError
from edgeplan.measurement.process.child import ColdRunError
from edgeplan.opencl import building, platforms
from edgeplan.opencl.building import Programs, Variant
from edgeplan.opencl.platforms import OpenclOptions, find_device, pyopencl
from edgeplan.support.subprocesses import environment

_GOOD = "__kernel void f(__global float *a) { a[0] = 1.0f; }"


@pytest.fixture
def programs() -> Programs:
    """Those of the first device; tests that need one are skipped where there is none."""
    try:
        device = find_device(OpenclOptions())
    except DeviceError as error:
        pytest.skip(error.what)
    return Programs(pyopencl().Context([device]), OpenclOptions())


def _variant(text: str, name: str = "one (B 8)") -> Variant:
    return Variant(name=name, text=text, options=("-cl-std=CL1.2",))


@pytest.mark.parametrize(
    ("given", "message", "following"),
    [
        ({"vector": "5"}, "vector is '5'", "one of 4, 8, 16"),
        ({"cores": "one"}, "cores is 'one'", "cores: '1'"),
        ({"cores": "1,1"}, "cores is '1,1'", "different cores"),
        ({"sharing": "all"}, "sharing is 'all'", "fine, coarse, copies"),
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
    found = OpenclOptions.of({"platform": "portable", "cores": " 3, 1", "vector": "4", "sharing": "coarse"})
    assert found == OpenclOptions("portable", "", (3, 1), 4, "coarse")


def test_a_machine_without_opencl_is_told_what_to_install(tmp_path: Path) -> None:
    code = (
        "from edgeplan.opencl.platforms import *; from edgeplan.errors import DeviceError\n"
        "try: find_device(OpenclOptions())\n"
        "except DeviceError as error: print(error)"
    )
    places = {"OCL_ICD_VENDORS": str(tmp_path), "OPENCL_VENDOR_PATH": str(tmp_path)}
    pytest.importorskip("pyopencl")
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment(), **places}, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("no OpenCL platform"), done.stdout
    assert "apt install pocl-opencl-icd" in done.stdout


def test_a_machine_without_pyopencl_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pyopencl.cache_clear()
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(DeviceError, match="pyopencl is not installed") as error:
        find_device(OpenclOptions())
    assert "pip install 'edgeplan[partition]'" in str(error.value)


@pytest.mark.usefixtures("programs")
def test_an_unknown_device_is_told_which_there_are() -> None:
    with pytest.raises(DeviceError, match="no OpenCL device 'abacus'") as error:
        find_device(OpenclOptions(device="abacus"))
    assert find_device(OpenclOptions()).name in str(error.value)


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


class TestRemembered:
    """What was built once on a device is not tried apart again."""

    @pytest.fixture(autouse=True)
    def _own_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def test_from_one_process_to_the_next(self, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = _variant(_GOOD), _variant(_GOOD + "\n")
        programs.try_apart([one])
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
