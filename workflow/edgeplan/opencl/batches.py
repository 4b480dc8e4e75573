"""Dispatches steps of several images: one image's kernels are launched for each, rows of images copied out and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

from msgspec import structs

from edgeplan.graph.steps import Step
from edgeplan.opencl.copies import LaunchChain, pasted, split
from edgeplan.opencl.launch import ArenaOffset, Argument, DeviceNumbers, Dispatch, Launch
from edgeplan.opencl.spaces import Layouts, Shapes, activation
from edgeplan.runtime.layouts import size_bytes

_FLOAT_BYTES = 4
_RANK, _ROWS = 4, 2
#: Kinds that compute images each for itself, with no constant that has a value for each.
_OF_IMAGES = frozenset(
    {"conv", "pool", "lrn", "resize", "shuffle", "scale", "eltwise", "concat", "split", "softmax"}
) | frozenset({"binary", "reshape", "transpose", "cut_rows", "paste_rows"})


def images_of(step: Step, shapes: Shapes) -> int:
    """Count the images that a step computes each for itself; 1 where it cannot be launched for one at a time."""
    tensors = [*step.reads, *step.outputs]
    counts = {shapes[t][0] if shapes[t] else 1 for t in tensors}
    images = any(len(shapes[t]) == _RANK for t in tensors)
    mixed = step.settings.get("axis") == 0 or (step.kind == "transpose" and step.sizes("permutation")[0] != 0)
    constant = step.weights.get("operand", "") if step.kind == "binary" else ""
    of_each = constant and len(shapes[constant]) == len(shapes[step.outputs[0]]) and shapes[constant][0] != 1
    able = step.kind in _OF_IMAGES and images and len(counts) == 1 and not mixed and not of_each
    return counts.pop() if able else 1


def one_image(step: Step, shapes: Shapes) -> Shapes:
    """Return the shapes of one image of a step."""
    tensors = dict.fromkeys((*step.reads, *step.outputs))
    return MappingProxyType({**shapes, **{t: (1, *shapes[t][1:]) for t in tensors}})


def of_images(
    step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers, make: Callable[[Shapes], Dispatch]
) -> Dispatch:
    """Return the kernels of one image, for each of several."""
    count = images_of(step, shapes)
    found = make(one_image(step, shapes))
    names = {f"input:{k}": t for k, t in enumerate(step.inputs)} | {f"output:{k}": t for k, t in enumerate(step.outputs)}
    names |= {f"operand:{k}": p.tensor for k, p in enumerate(step.post_ops)} | {"output": step.outputs[0]}
    apart = {role: size_bytes(shapes[t], layouts[t], numbers.block) // _FLOAT_BYTES // count for role, t in names.items() if t}

    def moved(argument: Argument, image: int) -> Argument:
        if not isinstance(argument, ArenaOffset):
            return argument
        return replace(argument, extra=argument.extra + image * apart[argument.role])

    launches: list[Launch] = []
    for image in range(count):
        launches += [replace(one, arguments=tuple(moved(a, image) for a in one.arguments)) for one in found.launches]
    work = replace(found.work, pixels=found.work.pixels * count, padded_pixels=found.work.padded_pixels * count)
    return replace(found, launches=tuple(launches), work=work)


def cut_rows(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Copy rows of an image to a tensor of their own."""
    settings = MappingProxyType({"axis": _ROWS, "start": step.integer("start")})
    return split(structs.replace(step, kind="split", settings=settings), shapes, layouts, numbers)


def paste_rows(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Copy rows to their place in an image."""
    chain = LaunchChain(numbers)
    source, target = activation(step, "input:0", shapes, layouts), activation(step, "output", shapes, layouts)
    chain.in_blocks(target)  # one image
    pasted(chain, source, target, _ROWS, step.integer("start"))
    return chain.done("paste_rows.move")
