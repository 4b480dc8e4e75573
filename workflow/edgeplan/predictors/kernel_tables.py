"""Builds kernel tables: what whole-model prediction needs of a model, for one model or for tens of thousands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph, Tensor
from edgeplan.graph.kernels import Kernel, KernelConfig
from edgeplan.predictors.configs import ConfigTable, Integers
from edgeplan.support.topology import topological

_LISTS = ("config_id", "inputs_of", "tensor_of_input", "tensor_shape", "tensor_rank", "tensor_producer", "graph_outputs")


@dataclass(frozen=True)
class ModelKernels:
    """Holds the kernels of one model in topological order, and the tensors between them.

    Attributes:
        name: name of the model.
        names: name of each kernel (its anchor operator).
        configs: configuration of each kernel.
        inputs: tensors each kernel reads, indices into `shapes`.
        shapes: each tensor as a "reorder" configuration: what converting its layout costs depends on nothing else.
        ranks: rank of each tensor.
        producers: kernel that writes each tensor, -1 for graph inputs.
        outputs: tensors that are graph outputs.
    """

    name: str
    names: tuple[str, ...]
    configs: tuple[KernelConfig, ...]
    inputs: tuple[tuple[int, ...], ...]
    shapes: tuple[KernelConfig, ...]
    ranks: tuple[int, ...]
    producers: tuple[int, ...]
    outputs: tuple[int, ...]


def kernel_table(graph: Graph, kernels: Sequence[Kernel]) -> ModelKernels:
    """Return the kernel table of a graph that was split into kernels."""
    ordered = _topological(graph, kernels)
    writer = {output: i for i, kernel in enumerate(ordered) for output in kernel.outputs}
    tensors = dict.fromkeys((*graph.inputs, *(t for k in ordered for t in (*k.inputs, *k.outputs))))
    place = {tensor: i for i, tensor in enumerate(tensors)}
    missing = [o for o in graph.outputs if o not in place]
    if missing:
        raise ModelError(f"no kernel writes the graph output {missing[0]}", where=graph.name, next_step="split the whole graph")
    return ModelKernels(
        graph.name,
        tuple(k.name for k in ordered),
        tuple(k.config for k in ordered),
        tuple(tuple(place[i] for i in k.inputs) for k in ordered),
        tuple(reorder_config(graph.tensors[t]) for t in tensors),
        tuple(len(graph.shape(t)) for t in tensors),
        tuple(writer.get(t, -1) for t in tensors),
        tuple(place[o] for o in dict.fromkeys(graph.outputs)),
    )


def reorder_config(tensor: Tensor) -> KernelConfig:
    """Return the configuration of a tensor's layout conversion; axes beyond the fourth fold into the width."""
    n, c, h, *w = (*tensor.shape, 1, 1, 1, 1)[: max(4, len(tensor.shape))]
    width = int(np.prod(w, dtype=np.int64))
    return KernelConfig(
        "reorder",
        "reorder",
        tensor.dtype,
        n,
        in_channels=c,
        in_height=h,
        in_width=width,
        out_channels=c,
        out_height=h,
        out_width=width,
    )


def _topological(graph: Graph, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Sort kernels so that each comes after those it reads from, otherwise in the order given."""
    writer = {output: i for i, kernel in enumerate(kernels) for output in kernel.outputs}
    before: list[set[int]] = []
    for kernel in kernels:
        if not kernel.inputs:
            raise ModelError(
                "a kernel reads no activation", where=f"{graph.name}, node {kernel.name}", next_step="fold constants"
            )
        if lost := next((t for t in kernel.inputs if t not in writer and t not in graph.inputs), None):
            raise ModelError(
                f"no kernel writes {lost}", where=f"{graph.name}, node {kernel.name}", next_step="split the whole graph"
            )
        before.append({writer[tensor] for tensor in kernel.inputs if tensor in writer})
    order = topological(before)
    if len(order) != len(kernels):
        done = set(order)
        stuck = next(k.name for i, k in enumerate(kernels) if i not in done)
        raise ModelError(
            "kernels wait for each other", where=f"{graph.name}, node {stuck}", next_step="correct the fusion rules"
        )
    return [kernels[i] for i in order]


@dataclass(frozen=True)
class KernelTables:
    """Holds the kernels of many models; distinct configurations and tensor shapes are kept once.

    Attributes:
        models: names of the models (m,).
        configs, shapes: distinct kernel configurations and tensor shapes.
        kernel_start: first kernel of each model, and one past the last (m + 1,).
        config: configuration of each kernel (k,).
        input_start: first input of each kernel, and one past the last (k + 1,).
        input_tensor: tensor of each input (inputs,).
        tensor_model: model of each tensor (t,).
        tensor_shape, tensor_rank: shape and rank of each tensor (t,).
        tensor_producer: kernel that writes each tensor, -1 for graph inputs (t,).
        outputs: tensors that are graph outputs.
    """

    models: tuple[str, ...]
    configs: ConfigTable
    shapes: ConfigTable
    kernel_start: Integers
    config: Integers
    input_start: Integers
    input_tensor: Integers
    tensor_model: Integers
    tensor_shape: Integers
    tensor_rank: Integers
    tensor_producer: Integers
    outputs: Integers

    @staticmethod
    def of(models: Iterable[ModelKernels]) -> KernelTables:
        """Join the kernels of models, which are read one at a time."""
        configs: dict[KernelConfig, int] = {}
        shapes: dict[KernelConfig, int] = {}
        names: list[str] = []
        kernels = tensors = 0
        kernel_start, columns = [0], {key: [] for key in _LISTS}  # type: tuple[list[int], dict[str, list[int]]]
        tensor_model: list[int] = []
        for number, model in enumerate(models):
            names.append(model.name)
            columns["config_id"] += [configs.setdefault(c, len(configs)) for c in model.configs]
            columns["inputs_of"] += map(len, model.inputs)
            columns["tensor_of_input"] += [tensors + i for of_kernel in model.inputs for i in of_kernel]
            columns["tensor_shape"] += [shapes.setdefault(s, len(shapes)) for s in model.shapes]
            columns["tensor_rank"] += model.ranks
            columns["tensor_producer"] += [kernels + p if p >= 0 else -1 for p in model.producers]
            columns["graph_outputs"] += [tensors + o for o in model.outputs]
            tensor_model += [number] * len(model.shapes)
            kernels, tensors = kernels + len(model.configs), tensors + len(model.shapes)
            kernel_start.append(kernels)
        arrays = {key: np.array(values, dtype=np.int64) for key, values in columns.items()}
        return KernelTables(
            tuple(names),
            ConfigTable.of(configs),
            ConfigTable.of(shapes),
            np.array(kernel_start, dtype=np.int64),
            arrays["config_id"],
            np.concatenate([[0], np.cumsum(arrays["inputs_of"])]).astype(np.int64),
            arrays["tensor_of_input"],
            np.array(tensor_model, dtype=np.int64),
            arrays["tensor_shape"],
            arrays["tensor_rank"],
            arrays["tensor_producer"],
            arrays["graph_outputs"],
        )


def levels(tables: KernelTables) -> npt.NDArray[np.int64]:
    """Return each kernel's position in its model (k,): equal positions in different models do not depend on each other."""
    count = np.diff(tables.kernel_start)
    return np.arange(len(tables.config)) - np.repeat(tables.kernel_start[:-1], count)
