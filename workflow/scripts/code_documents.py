"""Write documents that follow from the code: `code_documents.py operators|schemas`, by `make operators-page` and `make schema`.

The former writes docs/operators.md, the latter the JSON schemas of params.yaml, of the lines to a worker and of comparisons.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from edgeplan.chapters.registry import Params
from edgeplan.comparing.result import COMPARISON
from edgeplan.graph.onnx.contents import BEFORE_FUSION, TRANSPARENT
from edgeplan.graph.onnx.functions import WRITTEN
from edgeplan.graph.operators.registry import SPECS
from edgeplan.measurement.board.wire import schema as schema_of_lines
from edgeplan.support.files import write_text

PAGE = Path("docs/operators.md")
_HEAD = """\
# Operators

What `edgeplan predict`, `plan` and `run` know, written by `make operators-page` from
`workflow/edgeplan/graph/operators/`. A kind is the field's name for an operator; fixed inputs have
to be constants: `edgeplan prepare` computes them where they follow from shapes.
[My model is refused](models.md) says what else helps.

| ONNX operator | kind | fixed inputs |
| --- | --- | --- |
"""
_CHAINS = "Sum, Max and Min of many are chains of two."
_REWRITTEN = """\
Preparation writes an Einsum as products of matrices, an `If` whose condition follows from
constants as the branch that is taken, another one as both branches and a Where that picks, Scaler
(`ai.onnx.ml`) as a difference and a product. What
computes with quantised numbers becomes the plain operator between DequantizeLinear and
QuantizeLinear: QLinearConv, QLinearMatMul, ConvInteger, MatMulInteger, DynamicQuantizeLinear,
and of `com.microsoft` QLinearAdd, QLinearMul, QLinearConcat, QLinearAveragePool,
QLinearGlobalAveragePool, QLinearSigmoid, QLinearLeakyRelu, QGemm, MatMulIntegerToFloat and
DynamicQuantizeMatMul. DynamicQuantizeLSTM becomes an LSTM whose states are not rounded.

What ONNX itself defines by a function is written as that (Attention, Swish, SwiGLU, Celu,
MeanVarianceNormalization, CenterCropPad, GroupNormalization of opset 18 ...), and as plain
operators are
"""


def page() -> str:
    """Write the page of operators as Markdown."""
    lines = []
    for name, spec in sorted(SPECS.items()):
        fixed = ", ".join(filter(None, spec.constants)) or "-"
        lines.append(f"| {name} | {', '.join(spec.all_kinds)} | {fixed} |\n")
    passed = " and ".join(sorted(TRANSPARENT))
    written = ", ".join(name if not domain else f"{name} (`{domain}`)" for domain, name in sorted(WRITTEN))
    listed = fill(f"{written}. Of others of `com.microsoft` the error says: {BEFORE_FUSION}.", 100, break_on_hyphens=False)
    return f"{_HEAD}{''.join(lines)}\n{passed} pass their input on; {_CHAINS}\n\n{_REWRITTEN}{listed}\n"


def schema(name: str) -> str:
    """Write a schema of `SCHEMAS` as text."""
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMAS[name]()}
    return json.dumps(found, indent=2, sort_keys=True) + "\n"


#: By the name of their file in config/schema.
SCHEMAS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "params": Params.model_json_schema,  # descriptions are the docstrings of the models
    "worker": schema_of_lines,
    "comparison": COMPARISON.json_schema,
}
if __name__ == "__main__":
    if sys.argv[1:] == ["operators"]:
        write_text(PAGE, page())
    else:
        for name in SCHEMAS:
            write_text(Path(f"config/schema/{name}.schema.json"), schema(name))
