"""Every processor is held to the suite that others use, and so is the double that tests put in the place of a GPU."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import numpy as np
import pytest

from doubles import QueueProcessor
from edgeplan.devices.pairs import processor_class
from edgeplan.engines.registry import PROCESSORS
from edgeplan.errors import DeviceError
from edgeplan.opencl.processor import DispatchingProcessor
from edgeplan.processors.onednn import OnednnProcessor
from edgeplan.runtime.processor import Processor, Sharing
from edgeplan.testing.processors import ProcessorContract


class TestOnednn(ProcessorContract):
    """oneDNN on the first core that tests may use."""

    name = "onednn"
    cores = tuple(sorted(os.sched_getaffinity(0))[:1])


class TestDouble(ProcessorContract):
    """One that polls."""

    def make(self) -> Processor:
        return QueueProcessor()


class TestMirroredDouble(ProcessorContract):
    """One that computes in a copy of the memory, and polls."""

    def make(self) -> Processor:
        return QueueProcessor(sharing=Sharing.mirrored)


class DispatchingContract(ProcessorContract):
    """What cold starts ask of processors that run this package's own kernels; skipped where the device is not there."""

    def make(self) -> Processor:
        try:
            return super().make()
        except DeviceError as error:
            pytest.skip(error.what)

    def test_uploads_of_several_threads_are_each_there(self, processor: DispatchingProcessor) -> None:
        """Threads of a cold start upload weights side by side: each address is its own, and what lies there has come."""
        given = [np.full(1 << 16, index, np.float32) for index in range(32)]
        with ThreadPoolExecutor(4, initializer=processor.enter) as threads:
            memories = list(threads.map(processor.upload, given))
        read = np.full_like(given, -1.0)
        for memory, values in zip(memories, read, strict=True):
            processor.enqueue_read(memory, 0, values)
        processor.finish()
        assert [set(values.tolist()) for values in read] == [{float(index)} for index in range(32)]


class TestOpencl(DispatchingContract):
    """The first device, on memory as fine as it has; it tells when kernels ran."""

    name = "opencl"
    cores = tuple(sorted(os.sched_getaffinity(0))[-1:])
    profiling = True


class TestMirroredOpencl(TestOpencl):
    """The device has its own copy of the memory."""

    options = MappingProxyType({"sharing": "mirrored"})


class TestCuda(DispatchingContract):
    """The first NVIDIA GPU, whole."""

    name = "cuda"


class TestTimedCuda(TestCuda):
    """A slice of it, which tells when kernels ran."""

    options = MappingProxyType({"multiprocessors": "8"})
    profiling = True


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
