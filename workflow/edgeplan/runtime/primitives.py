"""Steps to oneDNN primitive descriptors, in given layouts."""

from __future__ import annotations

from collections.abc import Sequence

from edgeplan.runtime import constants
from edgeplan.runtime.descriptors import Described, Descriptors, Operand, Variant
from edgeplan.runtime.dnnl import Handle
from edgeplan.runtime.primitive_kinds import MAKERS
from edgeplan.runtime.steps import Step


class Describer(Descriptors):
    """Makes primitive descriptors for the steps of one model."""

    def describe(self, step: Step, variant: Variant) -> Described:
        """The descriptor of a step's primitive, at its first implementation.

        Raises:
            Unsupported: oneDNN has none in these layouts.
        """
        reads = tuple(
            Operand(argument, tensor, variant.source, self.activation(tensor, variant.source))
            for argument, tensor in zip(self._source_arguments(step), step.inputs, strict=True)
        )
        writes = (
            Operand(constants.ARG_DST, step.outputs[0], variant.output, self.activation(step.outputs[0], variant.output)),
        )
        posts, attributes, summed = self._post_ops(step, variant)
        descriptor, slots = MAKERS[step.kind](self, step, variant, reads, writes[0], attributes)
        return Described(descriptor, reads + posts, writes, slots, summed)

    @staticmethod
    def _source_arguments(step: Step) -> Sequence[int]:
        if step.kind == "concat":
            return range(constants.ARG_MULTIPLE_SRC, constants.ARG_MULTIPLE_SRC + len(step.inputs))
        return range(constants.ARG_SRC, constants.ARG_SRC + len(step.inputs))

    def _post_ops(self, step: Step, variant: Variant) -> tuple[tuple[Operand, ...], Handle, str]:
        if not step.post_ops and step.kind != "scale":
            return (), self.dnnl.attributes(), ""
        dnnl, ops, operands, summed = self.dnnl, self.dnnl.post_ops(), [], ""
        if step.kind == "scale":  # y = x * scale, then + shift
            shift = self.per_channel(step)
            dnnl.append(ops, "binary", constants.BINARY["add"], shift.value)
        for position, post in enumerate(step.post_ops, start=1 if step.kind == "scale" else 0):
            if post.kind == "eltwise":
                dnnl.append(ops, "eltwise", constants.ELTWISE[post.algorithm], post.alpha, post.beta)
            elif post.kind == "sum":
                dnnl.append(ops, "sum", 1.0, 0, constants.F32)
                summed = post.tensor
            else:
                descriptor = self.activation(post.tensor, variant.output)
                argument = constants.ARG_POST_OP * (position + 1) | constants.ARG_SRC_1
                dnnl.append(ops, "binary", constants.BINARY[post.algorithm], descriptor.value)
                operands.append(Operand(argument, post.tensor, variant.output, descriptor))
        return tuple(operands), dnnl.attributes(ops), summed
