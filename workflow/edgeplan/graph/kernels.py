"""Kernels: the operators a device runs as one unit, and graphs cut into them (nn-Meter, Algorithm 1).

A kernel's type joins the kinds of its operators as nn-Meter does (`conv++bn++relu`); its `kind` is that of its anchor, the
operator that does the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kinds import ELEMENTWISE, kind
from edgeplan.graph.operators.registry import RANKS
from edgeplan.support.topology import topological


@dataclass(frozen=True, slots=True)
class Kernel:
    """Operators that an engine runs as one, by the name of the anchor.

    Attributes:
        kind, type: of the anchor, and kinds of all operators, joined by `++`.
        members: operators in topological order.
        inputs: activations it reads from outside, the anchor's first.
        outputs: activations it writes that something outside reads, or that are graph outputs.
    """

    name: str
    kind: str
    type: str
    members: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def make_kernel(graph: Graph, members: Iterable[str]) -> Kernel:
    """Return the kernel made of the named operators (in topological order) of a graph."""
    ops = [graph.by_name[name] for name in members]
    kinds = [kind(graph, op) for op in ops]
    anchor = min(range(len(ops)), key=lambda i: (RANKS[kinds[i]], i))
    written = {o for op in ops for o in op.outputs}
    reads = [i for op in (ops[anchor], *ops) for i in op.inputs if i not in written]
    names = tuple(op.name for op in ops)
    inputs = tuple(dict.fromkeys(reads))
    return Kernel(ops[anchor].name, kinds[anchor], "++".join(kinds), names, inputs, member_outputs(graph, names))


def member_outputs(graph: Graph, members: Sequence[str]) -> tuple[str, ...]:
    """Return the activations of members that something outside reads, that are graph outputs, or that nothing reads."""
    written = [output for name in members for output in graph.by_name[name].outputs]
    readers = {o: [c.name for c in graph.consumers.get(o, ())] for o in written}
    return tuple(o for o in written if o in graph.outputs or not readers[o] or not set(members).issuperset(readers[o]))


_CONVOLUTIONS = frozenset({"conv", "dwconv"})


def split_kernels(graph: Graph, rules: FusionRules) -> tuple[Kernel, ...]:
    """Return the kernels of a graph, in topological order; together they hold each operator once.

    Operators are visited in topological order and join the kernel of a producer where the rules allow it: the outcome of
    Algorithm 1's recursive traversal, without its recursion. The type of a fused kernel is that of its first operator
    (line 5), which for every rule set that treats (first, next) and (last, next) alike makes the order of visits immaterial.
    """
    found = []
    for members, duplicates in split_members(graph, rules):
        kernel = make_kernel(graph, members)
        if duplicates:  # they cost nothing: the type is that of the operators that run
            repeated = {output for name in duplicates for output in graph.by_name[name].outputs}
            inputs, whole = tuple(i for i in kernel.inputs if i not in repeated), (*members, *duplicates)
            kernel = replace(kernel, members=whole, inputs=inputs, outputs=member_outputs(graph, whole))
        found.append(kernel)
    return tuple(found)


def split_members(graph: Graph, rules: FusionRules) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Return names of the operators of each kernel, in topological order, and of the duplicates that it spares."""
    state = _Splitting(graph, rules)
    for index in range(len(graph.operators)):
        state.visit(index)
    return state.result()


class _Splitting:
    """A traversal that knows operators by their index in the graph, kernels by the index of their first operator."""

    def __init__(self, graph: Graph, rules: FusionRules) -> None:
        self.graph, self.rules = graph, rules
        ops = graph.operators
        self.kinds = [kind(graph, op) for op in ops]
        self.labels = rules.labels(graph, self.kinds)
        index_of = {output: i for i, op in enumerate(ops) for output in op.outputs}
        self.twin = list(range(len(ops)))
        if rules.merges_duplicates:
            _find_twins(graph, self.twin)
        final = set(graph.outputs)
        self.producers: list[list[int]] = []
        self.consumers: list[list[int]] = [[] for _ in ops]
        self.kept = [bool(final.intersection(op.outputs)) for op in ops]
        for i, op in enumerate(ops):
            before = list(dict.fromkeys(self.twin[index_of[name]] for name in op.inputs if name in index_of))
            self.producers.append(before)
            if self.twin[i] == i:
                for p in before:
                    self.consumers[p].append(i)
            elif self.kept[i]:
                self.kept[self.twin[i]] = True
        self.several_outputs = rules.multi_outbound != 0 or bool(rules.sharing)
        self.kernel = list(range(len(ops)))
        self.members: dict[int, list[int]] = {}
        self.duplicates: dict[int, list[int]] = {}
        self.forced = self._match_patterns() if rules.patterns else {}
        self.before = set(self.forced.values())
        self.starts = self.before - self.forced.keys()

    def visit(self, i: int) -> None:
        """Put an operator into the kernel of a producer, or start a kernel with it."""
        if self.twin[i] != i:
            self.kernel[i] = self.kernel[self.twin[i]]
            self.duplicates.setdefault(self.twin[i], []).append(i)
            return
        chosen = self.forced.get(i)
        if chosen is None and i not in self.starts:
            several = len(self.graph.operators[i].inputs) > 1
            candidates = self.producers[i]
            if several:
                candidates = {0: [], 1: candidates, 2: candidates[::-1]}[self.rules.multi_inbound]
                # what follows a convolution is put into it before anything else is: stable, so left and right stay in order
                candidates = sorted(candidates, key=lambda p: self.kinds[self.kernel[p]] not in _CONVOLUTIONS)
            chosen = next((p for p in candidates if self._joins(p, i, several=several)), None)
        if chosen is None:
            self.members[i] = [i]
        else:
            self.kernel[i] = self.kernel[chosen]
            self.members[self.kernel[i]].append(i)

    def result(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        ops = self.graph.operators
        groups = []
        for first in self._order():
            members = self.members[first]
            twins = sorted(t for m in members for t in self.duplicates.get(m, ()))
            groups.append((tuple(ops[m].name for m in members), tuple(ops[t].name for t in twins)))
        return tuple(groups)

    def _joins(self, p: int, i: int, *, several: bool) -> bool:
        first = self.kernel[p]
        if self.members[first][-1] != p or p in self.before:
            return False
        readers = self.consumers[p]
        if self.kept[p] or (len(readers) > 1 and not self._shares(p, i)):
            return False
        other = None
        if several:
            ops = self.graph.operators
            if self.kinds[i] in ELEMENTWISE and self.graph.shape(ops[p].outputs[0]) != self.graph.shape(ops[i].outputs[0]):
                return False  # a smaller operand is broadcast: it must be complete before the larger loop begins
            if self.rules.sums_overwrite and self.kinds[first] in _CONVOLUTIONS and not self._overwrites(p, i):
                return False
            other = self.rules.worst([self.labels[q] for q in self.producers[i] if q != p])
        if not self._fuses(first, p, i, other):
            return False
        # with one reader for each member but the last, no path leaves the kernel and returns
        return not self.several_outputs or not self._closes_cycle(first, i)

    def _fuses(self, first: int, p: int, i: int, other: str | None) -> bool:
        """Apply the rules to a kernel from operator `first` to `p` and operator `i`."""
        chain = (self.kinds[p], self.kinds[i], self.labels[p], other)
        if not self.rules.fuses(self.kinds[first], *chain):
            return False
        # engines settle what may follow a sum behind a convolution before they know whether the sum joins the convolution
        before = {self.kinds[self.kernel[q]] for q in self.producers[first]} if self.kinds[first] == "add" else set()
        return not any(self.rules.forbids(head, *chain) for head in before & _CONVOLUTIONS)

    def _shares(self, p: int, i: int) -> bool:
        """Tell whether operator `i` may join that of `p`, which has other readers."""
        readers = self.consumers[p]
        if self.rules.multi_outbound == 0:
            head = self.kinds[self.kernel[p]]
            fusable = (
                r
                for r in readers
                if len(self.producers[r]) == 1 and self.rules.fuses(head, self.kinds[p], self.kinds[r], self.labels[p], None)
            )
            return head in self.rules.sharing and next(fusable, None) == i
        return i == (readers[0] if self.rules.multi_outbound == 1 else readers[-1])

    def _overwrites(self, p: int, i: int) -> bool:
        """Tell whether all readers of the other operands of sum `i` run before `p`."""
        others = {r for q in self.producers[i] if q != p for r in self.consumers[q]} - {i}
        stack, seen = [p], {p}
        while stack and not others <= seen:
            for q in self.producers[stack.pop()]:
                if q not in seen:
                    seen.add(q)
                    stack.append(q)
        return others <= seen

    def _closes_cycle(self, first: int, i: int) -> bool:
        """Tell whether another input of operator `i` depends on the kernel that it would join."""
        stack = [q for q in self.producers[i] if self.kernel[q] != first]
        seen = set(stack)
        while stack:
            kernel = self.kernel[stack.pop()]
            for member in self.members.get(kernel, ()):
                for q in self.producers[member]:
                    if self.kernel[q] == first:
                        return True
                    if self.kernel[q] != kernel and q not in seen:
                        seen.add(q)
                        stack.append(q)
        return False

    def _order(self) -> list[int]:
        """Return kernels in topological order, those that could run first at their earliest operator's place."""
        if not self.several_outputs:  # only the last operator's output leaves a kernel
            return sorted(self.members, key=lambda first: self.members[first][-1])
        firsts = sorted(self.members)
        place = {first: i for i, first in enumerate(firsts)}
        before = [
            {place[self.kernel[q]] for m in self.members[k] for q in self.producers[m] if self.kernel[q] != k} for k in firsts
        ]
        return [firsts[i] for i in topological(before)]

    def _match_patterns(self) -> dict[int, int]:
        """Operator -> the operator before it in a matched pattern."""
        forced: dict[int, int] = {}
        taken: set[int] = set()
        for start in range(len(self.kinds)):
            for pattern in self.rules.patterns:
                chain = self._chain(start, pattern)
                if chain and taken.isdisjoint(chain):
                    taken.update(chain)
                    forced.update(zip(chain[1:], chain, strict=False))
                    break
        return forced

    def _chain(self, start: int, pattern: tuple[str, ...]) -> list[int]:
        chain = [start] if self.kinds[start] == pattern[0] and self.twin[start] == start else []
        while chain and len(chain) < len(pattern):
            after = self.consumers[chain[-1]]
            fits = len(after) == 1 and not self.kept[chain[-1]] and self.kinds[after[0]] == pattern[len(chain)]
            if not fits or len(self.producers[after[0]]) != 1:
                return []
            chain.append(after[0])
        return chain


def _find_twins(graph: Graph, twin: list[int]) -> None:
    """Point each operator without weights that repeats an earlier one at that one."""
    ops = graph.operators
    seen: dict[object, int] = {}
    origin: dict[str, str] = {}
    for i, op in enumerate(ops):
        if op.weights:
            continue
        inputs = tuple(origin.get(name, name) for name in op.inputs)
        first = seen.setdefault(graph.value_key(op, inputs), i)
        if first != i:
            twin[i] = twin[first]
            origin.update(zip(op.outputs, ops[first].outputs, strict=True))
