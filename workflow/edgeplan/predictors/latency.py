"""Evaluates a device's predictors: which implementation a configuration gets, and what it costs. Codes in, numbers out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock

import numpy as np
import numpy.typing as npt

from edgeplan.predictors.card import Card, ImplementationLayouts, KindDispatch
from edgeplan.predictors.configs import ConfigTable, Integers, kind_codes
from edgeplan.predictors.features import FEATURES, LABELLED_TYPES, features, work_terms
from edgeplan.predictors.launches import LAUNCH_FEATURES, launch_features
from edgeplan.predictors.layouts import FIRST_STATES, UNKNOWN, ImplementationChoices
from edgeplan.predictors.trees import Forest
from edgeplan.predictors.walking import Walk, on_all_cores

Floats = npt.NDArray[np.float64]

#: Columns the trees see after the features: code of a layout (of the inputs as produced, for classifiers; as read, for latency)
#: and code of the implementation (for predictors of a whole kind).
EXTRA_FEATURES = ("input_layout", "implementation")
NO_PREDICTOR = -1
MANY_ROWS = 2000  # configurations from which walks are faster, laying them out included
_BLOCK = 10_000  # rows whose features a thread holds at once
_LEAST_US = 1e-3


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the predictors that a card describes, by their trees.

    Classifiers see no launches: these follow from the layout that a kernel reads, which is what they tell.

    Attributes:
        card: the card.
        forest: its text models, packed in the order of `card.files()`.
    """

    card: Card
    forest: Forest
    _walks: dict[int, Walk | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _walks_lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    @cached_property
    def states(self) -> Mapping[str, int]:
        """Return the codes of input states."""
        return {name: code for code, name in enumerate(self.card.states)}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds with a predictor."""
        return tuple(dict.fromkeys(r.kind for r in self.card.regressors))

    @cached_property
    def choices(self) -> tuple[tuple[str, ImplementationLayouts], ...]:
        """Return the choices of a kernel by code: its kind, and a variant; one without names where the engine tells none."""
        told = {d.kind: d.variants for d in self.card.dispatch}
        silent = (ImplementationLayouts(implementation="", input_layout="", output_layout=""),)
        return tuple((kind, variant) for kind in self.kinds for variant in told.get(kind, silent))

    def layouts(self, table: ConfigTable) -> ImplementationChoices:
        """Return implementation and layouts of every configuration in every state; kinds without predictor get -1."""
        plain = {int(rank): self.states[name] for rank, name in self.card.plain_layouts.items()}
        return ImplementationChoices(self._dispatch(table), *self.layout_codes, plain, len(self.states))

    @cached_property
    def layout_codes(self) -> tuple[Integers, Integers]:
        """Return the layouts read and written by each choice (choices + 1,); the last entry serves choice -1: unknown."""
        reads = [*(self.states[v.input_layout] for _, v in self.choices), UNKNOWN]
        writes = [*(self.states[v.output_layout] for _, v in self.choices), UNKNOWN]
        return np.array(reads, dtype=np.int64), np.array(writes, dtype=np.int64)

    def _dispatch(self, table: ConfigTable) -> Integers:
        chosen = np.full((len(table), len(self.states)), NO_PREDICTOR, dtype=np.int64)
        kind = self._kind(table)
        told = {d.kind: d for d in self.card.dispatch}
        at_file = {name: i for i, name in enumerate(self.card.files())}
        first = {name: i for i, (name, _) in reversed(list(enumerate(self.choices)))}
        for code, name in enumerate(self.kinds):
            rows = np.flatnonzero(kind == code)
            dispatch = told.get(name)
            if dispatch is None:
                chosen[rows] = first[name]
                continue
            for state, number in self.states.items():
                chosen[rows, number] = first[name] + dispatch.by_state.get(state, dispatch.by_state[""])
            if dispatch.file:
                self._classify(table, rows, dispatch, at_file[dispatch.file], first[name], chosen)
        return chosen

    def _classify(
        self, table: ConfigTable, rows: Integers, dispatch: KindDispatch, number: int, first: int, chosen: Integers
    ) -> None:
        """Fill in what the classifier of a kind says of its rows in every state it has learnt."""
        seen = [self.states[s] for s in dispatch.by_state if s]

        def classify(block: Integers) -> None:
            matrix = np.repeat(self._matrix(table.take(block)), len(seen), axis=0)
            matrix[:, -2] = np.tile(seen, len(block))
            outputs = max(2, len(dispatch.variants))
            scores = self._raw(matrix, number, outputs, large)[:, : len(dispatch.variants)]
            chosen[block[:, None], seen] = first + np.argmax(scores, axis=1).reshape(len(block), len(seen))

        large = len(table) > MANY_ROWS
        _each(classify, _blocks(rows), large)

    def latency(self, table: ConfigTable, implementation: Integers, reads: Integers) -> tuple[Floats, Integers]:
        """Return the latency of kernels: the geometric mean of what the implementation's and the kind's predictors say.

        Where launches are known the implementation's says it alone: its work is counted as it is launched.

        Either may do better in cross-validation by chance, and whole models show the difference: with the better of two taken,
        labels changed in their ninth digit changed the share of models within 5 % from 92 to 85 %.

        Args:
            table: n configurations.
            implementation: code of each one's implementation in `card.implementations`, -1 for none (n,).
            reads: code of the layout it reads (n,).

        Returns:
            Latency in us, NaN without predictor (n,), and the more specific regressor used, -1 for none (n,).
        """
        kind = self._kind(table)
        regressor, general = self._regressor(kind, implementation), self._regressor(kind, np.full_like(implementation, -1))
        result = np.full(len(table), np.nan)
        large = len(table) > MANY_ROWS
        known = np.flatnonzero(regressor >= 0)
        # Many rows: a predictor at a time; few: all predictors in one walk.
        parts = [known]
        if large:
            parts = [_alike(table, known[regressor[known] == number]) for number in np.unique(regressor[known])]

        def predict(rows: Integers) -> None:
            part = table.take(rows)
            matrix = self._matrix(part)
            matrix[:, -2] = reads[rows]
            if self._launched:
                layouts = [self.card.states[code] for code in reads[rows]]
                names = [(*self.card.implementations, "")[code] for code in implementation[rows]]
                first = len(FEATURES)
                launches = launch_features(part, layouts, names, self.card.dispatch_numbers)
                matrix[:, first : first + len(LAUNCH_FEATURES)] = launches
            result[rows] = self._latency(matrix, implementation[rows], regressor[rows], large)
            both = (general[rows] >= 0) & (general[rows] != regressor[rows]) & (not self._launched)
            if both.any():
                mine = rows[both]
                of_kind = self._latency(matrix[both], implementation[mine], general[mine], large)
                result[mine] = together(of_kind, result[mine], launched=False)

        _each(predict, [block for part in parts for block in _blocks(part)], large)
        return result, regressor

    def _latency(self, matrix: Floats, implementation: Integers, regressor: Integers, large: bool) -> Floats:
        matrix[:, -1] = self._codes[regressor, implementation]
        if large:  # all rows have one predictor
            number = int(regressor[0])
            raw = self._raw(matrix, number, 1, large)[:, 0]
        else:
            raw = self.forest.raw(matrix, regressor)[:, 0]
        work = np.einsum("ij,ij->i", work_terms(matrix), self._work[regressor])
        latency = np.where(self._ratio[regressor], work * np.exp(np.minimum(raw, 50.0)), raw)
        return np.asarray(np.maximum(latency, _LEAST_US), dtype=np.float64)

    def _raw(self, matrix: Floats, number: int, outputs: int, large: bool) -> Floats:
        """Return the raw scores of rows by the model of this number in `card.files()`, with so many outputs (n, outputs)."""
        if large:
            walk = self._walk(number, matrix.shape[1])
            if walk is not None:
                return walk.raw(matrix)
        return self.forest.raw(matrix, np.full(len(matrix), number), outputs)

    def _walk(self, number: int, width: int) -> Walk | None:
        with self._walks_lock:
            if number not in self._walks:
                self._walks[number] = Walk.of(self.forest, number, width)
            return self._walks[number]

    def _matrix(self, table: ConfigTable) -> Floats:
        launches = np.zeros((len(table), len(LAUNCH_FEATURES) if self._launched else 0))
        known, extra = features(table, self.card.work_version), np.full((len(table), len(EXTRA_FEATURES)), -1.0)
        return np.concatenate([known, launches, extra], axis=1)

    @property
    def _launched(self) -> bool:
        return bool(self.card.dispatch_numbers)

    def _kind(self, table: ConfigTable) -> Integers:
        """Return the position of each row's kind in `kinds`; -1 without a predictor, as for element types never labelled."""
        labelled = table.mapped("dtype", dict.fromkeys(LABELLED_TYPES, 1.0), 0.0) > 0
        return np.where(labelled, kind_codes(table, self.kinds), NO_PREDICTOR)

    def _regressor(self, kind: Integers, implementation: Integers) -> Integers:
        """Return the position of the implementation's predictor, else of the kind's, else -1, for each row (n,)."""
        lookup = np.full((len(self.kinds) + 1, len(self.card.implementations) + 1), NO_PREDICTOR, dtype=np.int64)
        place = {name: i for i, name in enumerate(self.kinds)}
        codes = {name: i for i, name in enumerate(self.card.implementations)}
        by_kind = defaultdict(list)
        for number, regressor in enumerate(self.card.regressors):
            by_kind[regressor.kind].append((regressor.implementation != "", number))
        for name, numbers in by_kind.items():
            for specific, number in sorted(numbers):
                implementation_code = codes[self.card.regressors[number].implementation] if specific else slice(None)
                lookup[place[name], implementation_code] = number
        return lookup[kind, implementation]

    @cached_property
    def _codes(self) -> Floats:
        """Return each implementation's code in each regressor's trees, -1 if not seen there (regressors, implementations+1)."""
        places = [{name: float(code) for code, name in enumerate(r.codes)} for r in self.card.regressors]
        return np.array([[place.get(name, -1.0) for name in (*self.card.implementations, "")] for place in places])

    @cached_property
    def _work(self) -> Floats:
        return np.array([r.work for r in self.card.regressors], dtype=np.float64)

    @cached_property
    def _ratio(self) -> npt.NDArray[np.bool_]:
        return np.array([r.target == "log_ratio" for r in self.card.regressors])


def together(general: Floats, specific: Floats, *, launched: bool) -> Floats:
    """Return the geometric mean of the kind's and the implementation's predictions; either may be NaN (n,).

    Where launches are known it is the implementation's alone.
    """
    both = specific if launched else np.sqrt(general * specific)
    return np.where(np.isnan(general), specific, np.where(np.isnan(specific), general, both))


def _alike(table: ConfigTable, rows: Integers) -> Integers:
    """Sort rows so that neighbours are alike: they take nearly the same branches in the trees, which a processor predicts."""
    keys = ("out_channels", "in_channels", "in_height", "kernel_h")  # the last one goes first
    return rows[np.lexsort([table.numbers[name][rows] for name in keys])]


def _blocks(rows: Integers) -> list[Integers]:
    return [rows[begin : begin + _BLOCK] for begin in range(0, len(rows), _BLOCK)]


def _each(work: Callable[[Integers], None], blocks: list[Integers], large: bool) -> None:
    """Run the work on blocks of rows, on all cores if they are large enough to pay for the threads."""
    if large:
        on_all_cores(work, blocks)
    else:
        for block in blocks:
            work(block)


def state_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the layout states by code: unknown, mixed, then layouts by name."""
    return FIRST_STATES + tuple(sorted(set(names) - set(FIRST_STATES)))
