"""Every processor is held to the suite that others use, and so is the double that tests put in the place of a GPU."""

from __future__ import annotations

import os

import pytest

from doubles import QueueProcessor
from edgeplan.errors import DeviceError
from edgeplan.opencl.platforms import OpenclOptions
from edgeplan.processors.base import Processor, Sharing
from edgeplan.processors.onednn import OnednnProcessor
from edgeplan.processors.opencl import OpenclProcessor
from edgeplan.processors.registry import PROCESSORS, processor_class
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.testing.processors import ProcessorContract


class TestOnednn(ProcessorContract):
    """oneDNN on the first core that tests may use."""

    def make(self) -> Processor:
        return OnednnProcessor(sorted(os.sched_getaffinity(0))[:1])


class TestDouble(ProcessorContract):
    """One that polls."""

    def make(self) -> Processor:
        return QueueProcessor()


class TestCoarseDouble(ProcessorContract):
    """One to which memory is handed over."""

    def make(self) -> Processor:
        return QueueProcessor(sharing=Sharing.coarse, atomics=False)


class _Opencl(ProcessorContract):
    sharing, profiling = "fine", False

    def make(self) -> Processor:
        cores = tuple(sorted(os.sched_getaffinity(0))[-1:])
        try:
            return OpenclProcessor(
                OpenclOptions(cores=cores, sharing=self.sharing), Dnnl().info.block, profiling=self.profiling
            )
        except DeviceError as error:
            pytest.skip(error.what)


class TestOpencl(_Opencl):
    """The first device, on memory as fine as it has; it tells when kernels ran."""

    profiling = True


class TestCoarseOpencl(_Opencl):
    """Memory is handed over between kernels."""

    sharing = "coarse"


class TestCopyingOpencl(_Opencl):
    """Memory is copied."""

    sharing = "copies"


def test_processors_are_found_by_name() -> None:
    assert processor_class("onednn") is OnednnProcessor
    assert all(issubclass(processor_class(name), Processor) for name in PROCESSORS)
    with pytest.raises(DeviceError, match="unknown processor 'npu'"):
        processor_class("npu")


def test_cores_that_are_not_there_are_named() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(DeviceError, match="cannot compute on the cores 4095"):
        OnednnProcessor((4095,))
    assert os.sched_getaffinity(0) == before


def test_the_thread_runs_anywhere_again_when_the_processor_is_closed() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    with OnednnProcessor((core,)) as processor:
        assert os.sched_getaffinity(0) == {core}
        assert processor.capabilities.cores == (core,)
    assert os.sched_getaffinity(0) == before
