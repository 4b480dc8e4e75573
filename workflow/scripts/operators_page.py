"""Writes docs/operators.md from the operators that the package knows: `make operators-page`."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from edgeplan.graph.onnx.contents import BEFORE_FUSION, TRANSPARENT
from edgeplan.graph.onnx.functions import WRITTEN
from edgeplan.graph.operators.registry import SPECS
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


if __name__ == "__main__":
    write_text(PAGE, page())
