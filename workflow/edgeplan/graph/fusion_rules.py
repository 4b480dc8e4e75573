"""Fusion rules as a document: the paper's form, extended by what real engines need.

The paper's rules say for two kinds whether they fuse ("conv_relu": true) and which in- or outbound of several does. Two things
are added, both found by timing alone: a rule may depend on a *context* (engines hold tensors in layouts that only some channel
counts allow, and fuse more there), and on the last operator already fused ("conv+relu_add": an addition behind conv++relu).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgeplan.graph.ir import Graph
from edgeplan.graph.operators.elementwise import ACTIVATIONS
from edgeplan.support.files import read_json, write_json

#: A rule: the same in every context, or by context (`"16"`; with several inputs `"16|1"`: the kernel's own, the other inputs').
Rule = bool | dict[str, bool]

#: Kinds whose output has the context of their inputs whatever the number of channels.
_TRANSPARENT = ACTIVATIONS | {"bn", "add", "mul"}
_CONVOLUTIONS = ("conv", "dwconv")


class Alignments(BaseModel):
    """Alignments class channel counts by the largest alignment that divides them, and apart below `small`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alignments: tuple[Annotated[int, Field(ge=1)], ...] = (16, 4, 1)
    small: Annotated[int, Field(ge=0)] = 16

    @model_validator(mode="after")
    def _check(self) -> Alignments:
        if list(self.alignments) != sorted(set(self.alignments), reverse=True) or self.alignments[-1:] != (1,):
            raise ValueError("alignments must fall strictly and end with 1")
        return self

    def name(self, channels: int) -> str:
        """Class of a channel count: "16", "4", "1", or "<4", "<1" for fewer than `small` channels."""
        alignment = next(a for a in self.alignments if channels % a == 0)
        return f"<{alignment}" if channels < self.small else str(alignment)

    def names(self) -> tuple[str, ...]:
        """Return the classes that occur, the best aligned first."""
        large = [str(a) for a in self.alignments]
        return (*large, *(f"<{a}" for a in self.alignments if a < self.small))


class Contexts(BaseModel):
    """Contexts tell which channel classes behave alike, by the label of their group.

    Attributes:
        classes: how channel counts are classed.
        conv, dwconv: class of the channels a convolution reads -> context of its output.
        carried: class of a tensor's channels -> best context that pooling, concatenation and the like can pass on.
        order: labels, from the context that fuses most to the one that fuses least.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    classes: Alignments = Alignments()
    conv: dict[str, str] = {}
    dwconv: dict[str, str] = {}
    carried: dict[str, str] = {}
    order: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Contexts:
        for field in ("conv", "dwconv", "carried"):
            table: dict[str, str] = getattr(self, field)
            if self.order and set(table) != set(self.classes.names()):
                raise ValueError(f"{field} must name the classes {', '.join(self.classes.names())}")
            unknown = set(table.values()) - set(self.order)
            if unknown:
                raise ValueError(f"{field} has labels that order lacks: {', '.join(sorted(unknown))}")
        return self


class Provenance(BaseModel):
    """Where rules come from; `prior` names those that stand where timing decided nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = ""
    engine: str = ""
    version: str = ""
    alpha: float | None = None
    date: str = ""
    measurements: str = ""
    cases: int = 0
    prior: str = ""


class FusionRules(BaseModel):
    """Fusion rules say which pairs of kinds a device fuses.

    Attributes:
        pairs: rule of an ordered pair of kinds, `"<first>_<next>"`; what is not named does not fuse.
            `"<first>+<last>_<next>"` holds for kernels of several operators, by their first and last; without one, the first
            decides (Algorithm 1, line 5).
        inbound: rules that replace those of `pairs` where the next operator has several inputs.
        multi_inbound: of several inputs, 0: none fuses, 1: the left-most that can, 2: the right-most.
        multi_outbound: an operator read more than once 0: does not fuse, 1: with its left-most reader, 2: with its right-most.
        sharing: with `multi_outbound` 0, kinds of first operators whose kernels nevertheless take in the one reader that fuses.
        sums_overwrite: a sum joins a convolution only where it may overwrite its other operands: where nothing else reads them
            but what the convolution depends on.
        merges_duplicates: operators that repeat another on the same inputs are not run.
        patterns: chains of kinds that run as one although their pairs do not.
        contexts: see `Contexts`.
        undecided: rules that no measurement settled; they stand as they lean, see `detect` of the chapter.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    format_version: Literal[1] = 1
    provenance: Provenance = Provenance()
    pairs: dict[str, Rule]
    inbound: dict[str, Rule] = {}
    multi_inbound: Annotated[int, Field(ge=0, le=2, alias="multi-inbound")] = 0
    multi_outbound: Annotated[int, Field(ge=0, le=2, alias="multi-outbound")] = 0
    sharing: tuple[str, ...] = ()
    sums_overwrite: bool = False
    merges_duplicates: bool = False
    patterns: tuple[tuple[str, ...], ...] = ()
    contexts: Contexts = Contexts()
    undecided: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> FusionRules:
        for key in (*self.pairs, *self.inbound):
            if key.count("_") != 1 or key.startswith("_") or key.endswith("_"):
                raise ValueError(f"rule {key!r} is not named <first>_<next>")
        if any(len(pattern) < 2 for pattern in self.patterns):  # one kind is no chain
            raise ValueError("a pattern has at least two kinds")
        return self

    def fuses(self, head: str, tail: str, successor: str, context: str = "", other: str | None = None) -> bool:
        """Tell whether a kernel from `head` to `tail` takes in `successor`.

        `context` is that of the kernel's output; `other` that of the successor's further inputs (None: it has none).
        """
        chain = None if head == tail else self._rule(f"{head}+{tail}_{successor}", context, other)
        return bool(self._rule(f"{head}_{successor}", context, other) if chain is None else chain)

    def forbids(self, head: str, tail: str, successor: str, context: str = "", other: str | None = None) -> bool:
        """Tell whether there is a rule for the chain, and it says no."""
        return self._rule(f"{head}+{tail}_{successor}", context, other) is False

    def _rule(self, name: str, context: str, other: str | None) -> bool | None:
        for table in (self.inbound, self.pairs) if other is not None else (self.pairs,):
            if name in table:
                rule = table[name]
                return rule if isinstance(rule, bool) else rule.get(f"{context}|{other}", rule.get(context, False))
        return None

    def worst(self, labels: Sequence[str]) -> str:
        """Return the label that fuses least; for no labels, the least of all (a graph input is held as it came)."""
        order = self.contexts.order
        if not order:
            return ""
        return max(labels, key=order.index) if labels else order[-1]

    def labels(self, graph: Graph, kinds: Sequence[str]) -> Sequence[str]:
        """Return the context of each operator's output, by walking the graph once."""
        contexts = self.contexts
        if not contexts.order:
            return [""] * len(kinds)
        rank = {label: i for i, label in enumerate(contexts.order)}
        worst = contexts.order[-1]
        convolutions = {"conv": contexts.conv, "dwconv": contexts.dwconv}
        found: dict[str, str] = {}
        labels = []
        for op, what in zip(graph.operators, kinds, strict=True):
            if what in _CONVOLUTIONS:
                label = convolutions[what][contexts.classes.name(graph.shape(op.inputs[0])[1])]
            else:
                seen = [found.get(name, worst) for name in op.inputs]
                if what not in _TRANSPARENT:
                    shape = graph.shape(op.outputs[0])
                    seen.append(contexts.carried[contexts.classes.name(shape[1])] if len(shape) == 4 else worst)
                label = max(seen, key=rank.__getitem__)
            labels.append(label)
            for output in op.outputs:
                found[output] = label
        return labels

    def write(self, path: Path) -> None:
        """Write the rules as JSON, atomically."""
        document = self.model_dump(mode="json", by_alias=True)
        if not self.provenance.prior:
            del document["provenance"]["prior"]
        write_json(path, document)


def read_rules(path: Path) -> FusionRules:
    """Read rules that `FusionRules.write` wrote."""
    return read_json(path, FusionRules, "fusion rules")
