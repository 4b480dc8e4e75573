"""A first inference within a budget: two threads make kernels, a reader brings weights, one thread executes the steps.

Nothing is in memory at first. The computing thread executes the steps in order, each once its kernel is made and its weights
are there, and makes some of the kernels in between; another thread makes the others meanwhile. Loads begin in order, each when
the step has ended whose memory it takes (`planning.memory.simulate`), so a placement of weights and tensors decides when, and
no moment holds more than its height.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from edgeplan.planning.memory import simulate
from edgeplan.planning.memory.workload import Placement, Reader, Workload

#: Stands for the kernel of a step that needs none.
NO_KERNEL = -1


@dataclass(frozen=True)
class FirstInference:
    """A first inference to plan.

    Attributes:
        workload: its steps, as long as their first execution takes.
        reader: what weights are read with.
        kernel_of: of each step, the number of its kernel; `NO_KERNEL`.
        making_ms: of each kernel, how long a thread makes it.
        beside: whether another thread makes kernels, too.
    """

    workload: Workload
    reader: Reader
    kernel_of: tuple[int, ...]
    making_ms: tuple[float, ...]
    beside: bool = True

    @cached_property
    def first_use(self) -> dict[int, int]:
        """Return the first step that needs each kernel, in the order of the steps."""
        found: dict[int, int] = {}
        for step, kernel in enumerate(self.kernel_of):
            if kernel != NO_KERNEL:
                found.setdefault(kernel, step)
        return found


@dataclass(frozen=True)
class Making:
    """A making says which thread makes each kernel, and when.

    Attributes:
        own: kernels that the computing thread makes, each with the step before which it does, by these steps.
        beside: kernels that the other thread makes, in order.
    """

    own: tuple[tuple[int, int], ...]
    beside: tuple[int, ...]


def timeline(problem: FirstInference, placement: Placement, making: Making) -> simulate.Timeline:
    """Simulate a first inference whose weights and tensors have their places.

    Args:
        problem: its steps and kernels.
        placement: where weights and tensors lie.
        making: of all kernels that steps need.
    """
    before = [0.0] * problem.workload.steps
    for kernel, step in making.own:
        before[step] += problem.making_ms[kernel]
    now, made = 0.0, dict[int, float]()
    for kernel in making.beside:
        made[kernel] = now = now + problem.making_ms[kernel]
    ready = [made.get(kernel, 0.0) for kernel in problem.kernel_of]
    return simulate.run(problem.workload, problem.reader, placement, filled=False, before_ms=before, ready_ms=ready)
