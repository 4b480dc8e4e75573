"""Starts ncnn cold on the CPU, f32: the engine that NNV12 extends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from edgeplan.engines.cold import Array, Artefact, Baseline, BaselineSession, UnsupportedError, model_outputs
from edgeplan.engines.ncnn.convert import convert, converter_version

_REDUCED_PRECISION = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_packed",
    "use_bf16_storage",
)


class Ncnn(Baseline):
    """This setting has all of ncnn's f32 kernels (Winograd, sgemm, packing); weights are transformed at every start."""

    #: Whether convolutions may be computed as products of matrices, by Winograd's algorithm or im2col.
    by_products = True

    def load_library(self, threads: int) -> None:
        del threads
        try:
            import ncnn
        except ImportError as error:
            raise UnsupportedError(f"ncnn is not installed: {error}") from error
        self._ncnn = ncnn

    def version(self) -> str:
        return str(self._ncnn.__version__)

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        del threads
        if any(shape[0] != 1 or len(shape) == 1 for shape in inputs.values()):
            raise UnsupportedError("ncnn has no batch axis: only batches of one")
        param, weights = convert(model, inputs, folder)
        outputs = {f"out{index}": shape for index, shape in enumerate(model_outputs(model).values())}
        return Artefact(
            main=param,
            files=(param, weights),
            companions={"weights": weights},
            input_names=tuple(f"in{index}" for index in range(len(inputs))),
            outputs=outputs,
            note=f"converted by pnnx {converter_version()}",
        )

    def prepare_inputs(self, inputs: Mapping[str, Array]) -> Mapping[str, Any]:
        # ncnn has no batch axis; cloned, since a Mat around an array of numpy's neither owns nor aligns its memory
        return {name: self._ncnn.Mat(value[0]).clone() for name, value in inputs.items()}

    def open(self, artefact: Artefact, inputs: Mapping[str, Any], threads: int) -> BaselineSession:
        return self._opened(artefact, inputs, threads)

    def _opened(self, artefact: Artefact, inputs: Mapping[str, Any], threads: int, *, gpu: bool = False) -> BaselineSession:
        start = perf_counter()
        net = self._ncnn.Net()
        net.opt.num_threads = threads
        for option in _REDUCED_PRECISION:
            if hasattr(net.opt, option):  # the newer ones are unknown to older versions
                setattr(net.opt, option, False)
        net.opt.use_vulkan_compute = gpu
        if not self.by_products:
            net.opt.use_winograd_convolution = net.opt.use_sgemm_convolution = False
        failed = net.load_param(str(artefact.main))
        graph = perf_counter()
        failed = failed or net.load_model(str(artefact.companions["weights"]))
        if failed:
            raise UnsupportedError("ncnn cannot load the converted model: it holds a layer that ncnn does not have")
        stages = {"load_graph": (graph - start) * 1e3, "load_and_transform_weights": (perf_counter() - graph) * 1e3}
        named = dict(zip(artefact.input_names, inputs.values(), strict=True))
        return _Session(net, named, artefact.outputs, stages)


class NcnnDirect(Ncnn):
    """This setting has direct convolutions alone, which need no memory besides (FlexNN's NCNN-Direct)."""

    by_products = False


class _Session(BaselineSession):
    def __init__(
        self, net: Any, inputs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], stages: Mapping[str, float]
    ) -> None:
        self._net, self._inputs, self._shapes, self._stages = net, inputs, shapes, stages
        self._outputs: Sequence[Any] = ()

    def run(self) -> None:
        extractor = self._net.create_extractor()
        for name, value in self._inputs.items():
            extractor.input(name, value)
        results = [extractor.extract(name) for name in self._shapes]
        if any(code for code, _ in results):
            raise UnsupportedError("ncnn could not compute the outputs of the converted model")
        self._outputs = [value for _, value in results]

    def outputs(self) -> Mapping[str, Array]:
        return {
            name: np.array(value).reshape(shape)
            for (name, shape), value in zip(self._shapes.items(), self._outputs, strict=True)
        }

    def stages_ms(self) -> Mapping[str, float]:
        return self._stages
