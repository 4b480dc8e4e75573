"""Stage `zoo`: draw base models, variants, and the prior distribution."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from edgeplan.chapters.prediction.paper import printed
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.graph.ir import Graph
from edgeplan.graph.kinds import graph_macs, graph_memory_access_bytes, graph_parameters, kind
from edgeplan.support.frames import write_csv, write_parquet
from edgeplan.zoo import FAMILIES, build_variant, prior_models, variants


@dataclass(frozen=True, order=True, slots=True)
class ConvShape:
    """Describes a convolution: input size (height = width), channels, kernel, stride; depthwise when `depthwise`."""

    size: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    depthwise: bool = False


def conv_shapes(graphs: Iterable[Graph]) -> Counter[ConvShape]:
    """Count every square convolution of the graphs."""
    found: Counter[ConvShape] = Counter()
    for graph in graphs:
        for op in graph.operators:
            if op.op_type != "Conv":
                continue
            _, cin, height, width = graph.shape(op.inputs[0])
            kh, kw = op.integers("kernel_shape", (1, 1))
            if height == width and kh == kw:
                cout = graph.shape(op.outputs[0])[1]
                stride = op.integers("strides", (1, 1))[0]
                found[ConvShape(height, cin, cout, kh, stride, kind(graph, op) == "dwconv")] += 1
    return found


def _row(graph: Graph, model_id: str, family: str, index: int, spec: str) -> dict[str, object]:
    return {
        "model_id": model_id,
        "family": family,
        "index": index,
        "spec": spec,
        "macs": graph_macs(graph),
        "parameters": graph_parameters(graph),
        "memory_bytes": graph_memory_access_bytes(graph),
        "operators": len(graph.operators),
    }


def _prior_row(shape: ConvShape, count: int) -> dict[str, object]:
    name = "dwconv" if shape.depthwise else "conv"
    out = -(-shape.size // shape.stride)
    sizes = {
        "in_channels": shape.in_channels, "in_height": shape.size, "in_width": shape.size, "out_channels": shape.out_channels,
        "out_height": out, "out_width": out, "kernel_h": shape.kernel, "kernel_w": shape.kernel, "stride_h": shape.stride,
        "stride_w": shape.stride, "groups": shape.in_channels if shape.depthwise else 1,
    }  # fmt: skip
    config = {"kind": name, "type": name} | {key: size for key, size in sizes.items() if size != 1}
    return {"kind": name, "config": json.dumps(config, separators=(",", ":")), "count": count}


def build_zoo(params: PredictionParams, *, models: Path, prior: Path, costs: Path) -> None:
    """Write the table of models, the prior's configurations, and the families' average costs beside Table 2."""
    rows = []
    for family in FAMILIES.values():
        rows.append(_row(family.base(), f"{family.id}-base", family.id, -1, ""))
        rows += [
            _row(build_variant(spec), f"{family.id}-{spec.index:05d}", family.id, spec.index, spec.to_json())
            for spec in variants(family, params.zoo.variants_per_family, params.zoo.seed)
        ]
    table = pd.DataFrame(rows)
    write_parquet(table, models)
    shapes = conv_shapes(build() for build in prior_models().values())
    write_parquet(pd.DataFrame([_prior_row(s, n) for s, n in sorted(shapes.items())]), prior)
    variant_rows = table[table["index"] >= 0].groupby("family", sort=False)
    mean = (variant_rows["macs"].mean() / 1e6).round(1)
    frame = pd.DataFrame(
        {
            "family": [FAMILIES[f].paper_name for f in mean.index],
            "variants": variant_rows.size().to_numpy(),
            "mean_flops_m": mean.to_numpy(),
            "paper_flops_m": printed("table_02", "family")["paper: FLOPs (M)"].reindex(mean.index).to_numpy(),
        }
    )
    write_csv(frame, costs)
