"""Processors are held to the suite that others use: ours, doubles in the place of a GPU, and one of another package.

That one is found by its entry point, planned and run beside oneDNN.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import yaml
from partition_models import images
from shipped_params import PARAMS_FILE

from doubles import QueueProcessor
from edgeplan import plan_partition
from edgeplan.chapters.partition.learning.predictors import save_pair_predictors
from edgeplan.chapters.partition.learning.training import train_pair
from edgeplan.chapters.partition.measuring.opened import opened
from edgeplan.chapters.partition.measuring.rows import PartitionRows
from edgeplan.chapters.partition.measuring.samples import samples, write_pool
from edgeplan.chapters.partition.settings import PartitionSettings
from edgeplan.chapters.profiles import profile
from edgeplan.devices.pairs import load_pair, processor_class
from edgeplan.engines import registry
from edgeplan.engines.onednn.processor import OnednnProcessor
from edgeplan.engines.registry import ENGINES, PROCESSORS
from edgeplan.errors import DeviceError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.opencl.processor import DispatchingProcessor
from edgeplan.runs import run
from edgeplan.runtime.partitioned.session import Synchronisation
from edgeplan.runtime.processor import Processor, Sharing
from edgeplan.support.machine import fingerprint
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


ROOT = Path(__file__).parents[2]
#: Convolutions and fully connected layers by the double, under kernels and features of its own.
_PACKAGE = '''
"""A tiny processor."""

import math

from doubles import QueueProcessor
from edgeplan.engines.description import Description
from edgeplan.errors import DeviceError, ModelError
from edgeplan.runtime.processor import Capabilities, Dispatcher, Kernel, Sharing

ENGINE = Description("tiny", "pip install tiny-processor", processor="tiny_processor:Tiny")


class _Told:
    def __init__(self, implementation, elements):
        self.implementation, self.elements = implementation, elements

    def features(self):
        return {"elements": float(self.elements)}


class TinyDispatcher(Dispatcher):
    features = ("elements",)

    def refusal(self, step, shapes, layouts):
        return "" if step.kind in ("conv", "fc") else f"steps of kind {step.kind}"

    def dispatch(self, step, shapes, layouts):
        return _Told(f"tiny.{step.kind}", math.prod(shapes[step.outputs[0]]))


class Tiny(QueueProcessor):
    dispatcher = TinyDispatcher

    @classmethod
    def open(cls, options, cores, block, *, profiling=False):
        if options:
            raise DeviceError(f"unknown option {min(options)!r}", where="the device file", next_step="leave it out")
        found = cls(atomics=False)
        found._capabilities = Capabilities("tiny", "1", Sharing.fine, cores=tuple(cores))
        found._profiling = profiling
        return found

    def refuses(self, lowered, step, layouts):
        lacking = self.dispatcher(self.numbers).refusal(step, lowered.shapes, layouts)
        return lacking or super().refuses(lowered, step, layouts)

    def prepare(self, executable, index):
        program, step = executable.program, executable.program.steps[index]
        own = self.dispatcher(self.numbers)
        if why := own.refusal(step, program.shapes, program.layouts):
            raise ModelError(f"tiny lacks {why}", where=step.name, next_step="leave it to the other processor")
        told = own.dispatch(step, program.shapes, program.layouts)
        return Kernel(told.implementation, super().prepare(executable, index).handle, told.features())

    def spans(self):
        found = super().spans()
        return found if self._profiling else []
'''


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package in a folder, as an installer leaves it; and a device of it in a pair with oneDNN."""
    packages, cores = tmp_path / "packages", sorted(os.sched_getaffinity(0))
    about = packages / "tiny_processor-1.0.dist-info"
    about.mkdir(parents=True)
    (packages / "tiny_processor.py").write_text(_PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-processor\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{registry.GROUP}]\ntiny = tiny_processor:ENGINE\n")
    monkeypatch.syspath_prepend(packages)
    shutil.copytree(ROOT / "config/devices", tmp_path / "config/devices")
    (tmp_path / "config/pairs").mkdir()
    device = {"format_version": 1, "name": "tiny-here", "engine": "tiny"}
    (tmp_path / "config/devices/tiny-here.yaml").write_text(yaml.safe_dump(device))
    sides = [{"name": "cpu", "device": "cpu-onednn", "cores": cores[:1]}, {"name": "npu", "device": "tiny-here"}]
    pair = {"format_version": 2, "name": "pair-tiny", "processors": sides}
    (tmp_path / "config/pairs/pair-tiny.yaml").write_text(yaml.safe_dump(pair))
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", str(tmp_path))
    registry._brought.cache_clear()
    yield tmp_path
    sys.modules.pop("tiny_processor", None)
    registry._brought.cache_clear()


class TestTiny(ProcessorContract):
    """Held to what ours are held to."""

    name = "tiny"
    profiling = True


def test_a_processor_of_another_package_is_measured_learnt_planned_and_run(workspace: Path) -> None:
    """Nothing is touched but its package, a device file and a pair file."""
    base = yaml.safe_load(PARAMS_FILE.read_text())["partition"]
    tiny = profile(ROOT / "config/profiles/tiny.yaml")["partition"]
    settings = PartitionSettings.model_validate({**base, **tiny, "samples": 8, "sample_runs": 2})
    pair, pool = load_pair("pair-tiny"), workspace / "pool"
    write_pool(pool)
    with opened(pair) as both, pytest.raises(DeviceError, match="tiny does not tell when its kernels ran"):
        samples(PartitionRows(workspace / "none", both.identity), both, pair.dispatcher(both.numbers), settings, 5, pool)
    with opened(pair, profiling=True) as both:
        assert both.synchronisation == Synchronisation.events
        dispatcher, rows = pair.dispatcher(both.numbers), PartitionRows(workspace / "rows", both.identity)
        sampled = samples(rows, both, dispatcher, settings, 5, pool)
        assert set(sampled.frame.loc[sampled.frame["kind"] == "conv", "gpu_implementation"]) == {"tiny.conv"}
        about = {"pair": pair.name, "fingerprint": fingerprint(), "versions": both.versions}
        about |= {"handshake_us": {str(both.synchronisation): 1.0}, "anchors_us": sampled.anchors_us}
    trained = train_pair(sampled.frame, dispatcher, about, trials=1, test_share=0.2, seed=1)
    assert "dispatch.elements" in set(trained.importance["feature"])
    save_pair_predictors(trained.predictors, workspace / "results/pair-tiny/partition/predictors")
    model = save_onnx(images(), workspace / "model.onnx")
    planned = plan_partition(model, workspace / "plan", "pair-tiny", costs="predicted")
    assert planned.plan.processors[1] == "tiny"
    costs = {step.name: {option.kind for option in step.options} for step in planned.costs.costs.steps}
    assert any(len(kinds) > 1 for kinds in costs.values()), "some steps may run on either"
    found = run(workspace / "plan", repeat=2, check=True)
    assert found.difference is not None
    assert found.difference <= 1e-4


def test_what_is_missing_is_told(workspace: Path) -> None:
    assert "tiny" in PROCESSORS
    assert "tiny" not in ENGINES, "it measures no models by itself"
    package = workspace / "packages/tiny_processor.py"
    package.write_text(_PACKAGE.replace("tiny_processor:Tiny", "tiny_chip:Tiny"))
    sys.modules.pop("tiny_processor", None)
    registry._brought.cache_clear()
    with pytest.raises(DeviceError, match=r"processor 'tiny' is not installed(?s:.*)pip install tiny-processor"):
        processor_class("tiny")
