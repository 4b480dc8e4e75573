"""Steps to oneDNN primitive descriptors, in given layouts."""

from __future__ import annotations

from collections.abc import Sequence

from edgeplan.graph.steps import Step
from edgeplan.runtime import constants
from edgeplan.runtime.descriptors import Described, Descriptors, Operand, Variant
from edgeplan.runtime.dnnl import Handle
from edgeplan.runtime.primitive_kinds import MAKERS, PRODUCT_SIDES, weighted_sides

#: Of what a step writes first, second, third (an LSTM's last states).
_WRITTEN = (constants.ARG_DST, constants.ARG_DST_1, constants.ARG_DST_2)


class Describer(Descriptors):
    """Makes primitive descriptors for the steps of one model."""

    def describe(self, step: Step, variant: Variant) -> Described:
        """The descriptor of a step's primitive, at its first implementation."""
        reads = tuple(
            Operand(argument, tensor, variant.source, self._operand(step, f"read_{place}", tensor, variant.source))
            for place, (argument, tensor) in enumerate(zip(self._source_arguments(step), step.inputs, strict=True))
        )
        writes = tuple(
            Operand(argument, tensor, variant.output, self._operand(step, "written", tensor, variant.output))
            for argument, tensor in zip(_WRITTEN, step.outputs, strict=False)
        )
        posts, attributes, summed = self._post_ops(step, variant)
        descriptor, slots = MAKERS[step.kind](self, step, variant, reads, writes[0], attributes)
        return Described(descriptor, reads + posts, writes, slots, summed)

    def _operand(self, step: Step, key: str, tensor: str, layout: str) -> Handle:
        """Descriptor of an activation, or of the view of it that a product takes."""
        if key not in step.settings:
            return self.activation(tensor, layout)
        axes = step.sizes(key)
        rank = len(axes) // 2
        return self.dnnl.strided(axes[:rank], axes[rank:])

    @staticmethod
    def _source_arguments(step: Step) -> Sequence[int]:
        if step.kind == "concat":
            places = range(len(step.inputs) + len(step.weights))
            return [constants.ARG_MULTIPLE_SRC + place for place in places if f"part_{place}" not in step.weights]
        if step.kind in ("matmul", "mix"):
            return [argument for role, argument in PRODUCT_SIDES.items() if role not in weighted_sides(step)]
        return range(constants.ARG_SRC, constants.ARG_SRC + len(step.inputs))

    def _post_ops(self, step: Step, variant: Variant) -> tuple[tuple[Operand, ...], Handle, str]:
        if not step.post_ops and step.kind != "scale":
            return (), self.dnnl.attributes(masks=self.masks(step)), ""
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
                same = self.shapes[post.tensor] == self.shapes[step.outputs[0]]
                descriptor = self._operand(step, "written" if same else "", post.tensor, variant.output)
                argument = constants.ARG_POST_OP * (position + 1) | constants.ARG_SRC_1
                dnnl.append(ops, "binary", constants.BINARY[post.algorithm], descriptor.value)
                operands.append(Operand(argument, post.tensor, variant.output, descriptor))
        return tuple(operands), dnnl.attributes(ops, self.masks(step)), summed
