"""Keeps a device's predictor of nodes in a folder: card.json, and the numbers of its trees and processes in arrays.npz."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.errors import FormatError
from edgeplan.predictors.nodes.features import SIZES, TERMS
from edgeplan.predictors.nodes.gaussian import Process
from edgeplan.predictors.nodes.kernels import TREE_FEATURES, Kernels, KindModel
from edgeplan.predictors.nodes.predictor import NodePredictor
from edgeplan.predictors.nodes.whole import Relation, Trust
from edgeplan.predictors.trees import Forest
from edgeplan.support.files import read_json, read_whole, write_atomically, write_text

CARD, ARRAYS, PRIOR = "card.json", "arrays.npz", "prior"
_AGAIN = "train the predictors again, or restore the folder from git or the DVC cache"
#: Of each process: arrays of its features, and of its rows.
_FEATURE_ARRAYS, _ROW_ARRAYS = ("mean", "deviation", "columns"), ("ratios",)
Work = Annotated[tuple[float, ...], Field(min_length=len(TERMS) + 1, max_length=len(TERMS) + 1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class KeyCard(_Strict):
    """Describes one key: us per unit of each term, its level, its rows, and the rows and features of its process."""

    key: str
    work: Work
    level: float
    rows: int = Field(ge=1)
    process: tuple[int, int] | None = None


class KindCard(_Strict):
    """Describes one kind; attributes as in `KindModel`."""

    kind: str
    work: Work
    keys: tuple[KeyCard, ...]
    trees: bool
    spread: float = Field(gt=0)
    stretch: float = Field(gt=0)


class Card(_Strict):
    """Describes a device's predictor of nodes.

    Attributes:
        format_version: version of this document.
        device, engine, engine_version: what was measured.
        cache_bytes: of its last cache.
        terms, sizes: what it learnt from, in order.
        kinds: what was learnt of each.
        fallback, fallback_spread: of kinds that were not measured.
        relation, trust: of whole models.
        arrays: digest of the file beside it.
        prior: whether the folder holds another device's predictor, whose time is a term.
    """

    format_version: Literal[1] = 1
    device: str
    engine: str
    engine_version: str
    cache_bytes: float = Field(gt=0)
    terms: tuple[str, ...]
    sizes: tuple[str, ...]
    kinds: tuple[KindCard, ...]
    fallback: Work
    fallback_spread: float = Field(gt=0)
    relation: Relation
    trust: Trust
    arrays: str
    prior: bool = False


def save(predictor: NodePredictor, folder: Path) -> None:
    """Write a predictor, and that of its prior; the same bytes for the same one. A card is written last: it tells the arrays."""
    kernels = predictor.kernels
    if kernels.prior:
        save(NodePredictor(kernels.prior, Relation(call_us=0.0), Trust()), folder / PRIOR)
    processes = [model.processes[key] for model in kernels.kinds.values() for key in model.keys if key in model.processes]
    content = io.BytesIO()
    np.savez(content, **kernels.forest.arrays(), **_packed(processes))  # type: ignore[arg-type]
    write_atomically(folder / ARRAYS, lambda temporary: temporary.write_bytes(content.getvalue()))
    card = Card(
        device=predictor.device,
        engine=predictor.engine,
        engine_version=predictor.engine_version,
        cache_bytes=kernels.cache_bytes,
        terms=TERMS,
        sizes=SIZES,
        kinds=tuple(_card_of(kind, model) for kind, model in kernels.kinds.items()),
        fallback=tuple(kernels.fallback.tolist()),
        fallback_spread=kernels.fallback_spread,
        relation=predictor.relation,
        trust=predictor.trust,
        arrays=hashlib.sha256(content.getvalue()).hexdigest(),
        prior=kernels.prior is not None,
    )
    write_text(folder / CARD, card.model_dump_json(indent=1) + "\n")


def load(folder: Path) -> NodePredictor:
    """Read a predictor that `save` wrote.

    Raises:
        FormatError: the folder is damaged, or of another version.
    """
    path, card = folder / ARRAYS, read_json(folder / CARD, Card, "the card of the predictors of nodes")
    if (card.terms, card.sizes) != (TERMS, SIZES):
        raise FormatError("the predictors learnt from other sizes of nodes", where=str(folder / CARD), next_step=_AGAIN)
    try:
        content = read_whole(path)
        if hashlib.sha256(content).hexdigest() != card.arrays:
            raise ValueError("they are not those that the card beside them tells of")
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        forest = Forest.from_arrays(arrays, TREE_FEATURES)
        if len(forest.tree_start) - 1 != sum(kind.trees for kind in card.kinds):
            raise ValueError("there are trees of other kinds")
        shapes = [key.process for kind in card.kinds for key in kind.keys if key.process]
        processes = iter(_unpacked(arrays, shapes))
        kinds = {one.kind: _model_of(one, [next(processes) if key.process else None for key in one.keys]) for one in card.kinds}
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(
            f"the numbers of the predictors cannot be read: {error}", where=str(path), next_step=_AGAIN
        ) from error
    prior = load(folder / PRIOR).kernels if card.prior else None
    kernels = Kernels(kinds, forest, np.array(card.fallback), card.fallback_spread, card.cache_bytes, prior)
    return NodePredictor(kernels, card.relation, card.trust, card.device, card.engine, card.engine_version)


def _card_of(kind: str, model: KindModel) -> KindCard:
    keys = [
        KeyCard(
            key=key,
            work=tuple(model.key_work[place].tolist()),
            level=float(model.levels[place]),
            rows=int(model.rows[place]),
            process=model.processes[key].points.shape if key in model.processes else None,
        )
        for place, key in enumerate(model.keys)
    ]
    work = tuple(model.work.tolist())
    return KindCard(kind=kind, work=work, keys=tuple(keys), trees=model.trees, spread=model.spread, stretch=model.stretch)


def _model_of(card: KindCard, processes: list[Process | None]) -> KindModel:
    keys = tuple(one.key for one in card.keys)
    known = {key: process for key, process in zip(keys, processes, strict=True) if process}
    work = np.array([one.work for one in card.keys]).reshape(len(keys), len(TERMS) + 1)
    levels, rows = np.array([one.level for one in card.keys]), np.array([one.rows for one in card.keys], np.int64)
    return KindModel(np.array(card.work), keys, work, levels, rows, known, card.trees, card.spread, card.stretch)


def _packed(processes: list[Process]) -> dict[str, npt.NDArray[Any]]:
    """Return few arrays of all processes: reading many costs more than a prediction."""
    flat = {name: [getattr(one, name) for one in processes] for name in (*_FEATURE_ARRAYS, *_ROW_ARRAYS)}
    flat["points"] = [one.points.astype(np.float32).ravel() for one in processes]
    empty = {"columns": np.zeros(0, np.int64), "points": np.zeros(0, np.float32)}
    result = {f"of_{name}": np.concatenate(parts or [empty.get(name, np.zeros(0))]) for name, parts in flat.items()}
    return {**result, "of_numbers": np.array([one.numbers for one in processes]).reshape(len(processes), 3)}


def _unpacked(arrays: Mapping[str, npt.NDArray[Any]], shapes: list[tuple[int, int]]) -> list[Process]:
    rows, features = (np.array([shape[place] for shape in shapes], np.int64) for place in (0, 1))
    lengths = {**dict.fromkeys(_FEATURE_ARRAYS, features), **dict.fromkeys(_ROW_ARRAYS, rows), "points": rows * features}
    parts = {}
    for name, length in lengths.items():
        if length.sum() != len(arrays[f"of_{name}"]) or (length < 0).any():
            raise ValueError("the processes do not belong together")
        parts[name] = np.split(arrays[f"of_{name}"], np.cumsum(length)[:-1])
    numbers = arrays["of_numbers"]
    if numbers.shape != (len(shapes), 3) or not (numbers > 0).all() or not np.isin(arrays["of_columns"], _COLUMNS).all():
        raise ValueError("the processes do not belong together")
    return [
        Process(
            *(parts[name][place] for name in _FEATURE_ARRAYS),
            parts["points"][place].astype(np.float64).reshape(shape),
            parts["ratios"][place],
            numbers[place],
        )
        for place, shape in enumerate(shapes)
    ]


_COLUMNS = np.arange(len(SIZES) + 1)
