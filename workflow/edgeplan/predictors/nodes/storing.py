"""Keeps a device's predictor of nodes in a folder: card.json, the numbers of its kinds and trees, and what was measured.

What was measured is predicted by nothing better: beside the predictor lie the nodes that it was trained on; what users measure
besides is kept in the state folder.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgeplan.errors import FormatError
from edgeplan.graph.nodes import NodeConfig
from edgeplan.predictors.nodes.features import SIZES, TERMS
from edgeplan.predictors.nodes.kernels import TREE_FEATURES, Kernels, KindModel, Process
from edgeplan.predictors.nodes.predictor import NodePredictor, Relation, Strict, Trust
from edgeplan.predictors.walking import Forest
from edgeplan.support.files import read_json, read_whole, state_folder, write_atomically, write_text
from edgeplan.support.lazy import lazily
from edgeplan.workspace import KERNELS

# Predictions need neither: only what trains and adapts reads tables.
pandas, frames = lazily("pandas"), lazily("edgeplan.support.frames")

CARD, ARRAYS, PRIOR = "card.json", "arrays.npz", "prior"
_AGAIN = "train the predictors again, or restore the folder from git or the DVC cache"
_WIDTH = len(TERMS) + 1  # the prior's time is the last term
MEASURED = "measured.npz"
#: A measured node: what it is, the context of the model around it in bytes, us.
Kernel = tuple[NodeConfig, int, float]
_COLUMNS = ("config", "context_bytes", "us")
#: What a predictor and its card both say.
_TOLD = ("relation", "trust", "device", "engine", "engine_version", "measured_at", "speed")
_PROCESS = tuple(field.name for field in fields(Process))


class KindCard(Strict):
    """Describes one kind; attributes as in `KindModel`, rows and features of the process of each key: none without one."""

    kind: str
    keys: tuple[str, ...]
    processes: tuple[tuple[int, int] | None, ...]
    trees: bool
    spread: float = Field(gt=0)
    stretch: float = Field(gt=0)


class Card(Strict):
    """Describes a device's predictor of nodes.

    Attributes:
        terms, sizes: what it learnt from, in order.
        prior: whether the folder holds another device's predictor, whose time is a term.
    """

    format_version: Literal[2] = 2
    device: str
    engine: str
    engine_version: str
    measured_at: str = ""
    speed: float = Field(default=1.0, gt=0)
    cache_bytes: float = Field(gt=0)
    terms: tuple[str, ...]
    sizes: tuple[str, ...]
    kinds: tuple[KindCard, ...]
    fallback_spread: float = Field(gt=0)
    relation: Relation
    trust: Trust
    arrays: str
    prior: bool = False


def save_predictor(predictor: NodePredictor, folder: Path) -> None:
    """Write a predictor, and that of its prior; the card comes last, since it tells the arrays."""
    kernels = predictor.kernels
    if kernels.prior:
        save_predictor(NodePredictor(kernels.prior, Relation(call_us=0.0), Trust()), folder / PRIOR)
    content = io.BytesIO()
    np.savez_compressed(content, **_packed(kernels))  # type: ignore[arg-type]
    write_atomically(folder / ARRAYS, lambda temporary: temporary.write_bytes(content.getvalue()))
    card = Card(
        **{name: getattr(predictor, name) for name in _TOLD},
        cache_bytes=kernels.cache_bytes,
        terms=TERMS,
        sizes=SIZES,
        kinds=tuple(_card_of(kind, model) for kind, model in kernels.kinds.items()),
        fallback_spread=kernels.fallback_spread,
        arrays=hashlib.sha256(content.getvalue()).hexdigest(),
        prior=kernels.prior is not None,
    )
    write_text(folder / CARD, card.model_dump_json(indent=1) + "\n")


def load_predictor(folder: Path) -> NodePredictor:
    """Read a predictor that `save_predictor` wrote."""
    path, card = folder / ARRAYS, read_json(folder / CARD, Card, "the card of the predictors of nodes")
    if (card.terms, card.sizes) != (TERMS, SIZES):
        raise FormatError("the predictors learnt from other sizes of nodes", where=str(folder / CARD), next_step=_AGAIN)
    try:
        content = read_whole(path)
        _require(hashlib.sha256(content).hexdigest() == card.arrays, "they are not those that the card beside them tells of")
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        forest, kinds = Forest.from_arrays(arrays, TREE_FEATURES), _unpacked(card, arrays)
        _require(len(forest.tree_start) - 1 == sum(kind.trees for kind in card.kinds), "there are trees of other kinds")
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(f"the predictors' numbers cannot be read: {error}", where=str(path), next_step=_AGAIN) from error
    prior = load_predictor(folder / PRIOR).kernels if card.prior else None
    kernels = Kernels(kinds, forest, arrays["work"][-1], card.fallback_spread, card.cache_bytes, prior)
    return NodePredictor(kernels, **{name: getattr(card, name) for name in _TOLD})


def _card_of(kind: str, model: KindModel) -> KindCard:
    shapes = tuple(model.processes[key].points.shape if key in model.processes else None for key in model.keys)
    return KindCard(kind=kind, keys=model.keys, processes=shapes, trees=model.trees, spread=model.spread, stretch=model.stretch)


def _packed(kernels: Kernels) -> dict[str, npt.NDArray[Any]]:
    """Return few arrays of all kinds: to read many takes longer than a prediction."""
    models = list(kernels.kinds.values())
    processes = [model.processes[key] for model in models for key in model.keys if key in model.processes]
    flat = {name: [np.zeros(0, np.int64 if name == "columns" else np.float64)] for name in _PROCESS}
    for process in processes:
        for name in _PROCESS:
            flat[name].append(getattr(process, name).ravel())
    result = {f"of_{name}": np.concatenate(parts) for name, parts in flat.items()}
    return {
        **kernels.forest.arrays(),
        **result,
        "of_points": result["of_points"].astype(np.float32),
        "work": np.vstack([*(part for model in models for part in (model.work, model.key_work)), kernels.fallback]),
        "levels": np.concatenate([np.zeros(0), *(model.levels for model in models)]),
        "rows": np.concatenate([np.zeros(0, np.int64), *(model.rows for model in models)]),
    }


def _unpacked(card: Card, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, KindModel]:
    shapes = [shape for kind in card.kinds for shape in kind.processes if shape]
    rows, features = np.array(shapes, np.int64).reshape(len(shapes), 2).T
    lengths = {"points": rows * features, "ratios": rows, "numbers": np.full(len(shapes), 3)}
    parts = {}
    for name in _PROCESS:
        array, length = arrays[f"of_{name}"], lengths.get(name, features)
        _require(length.sum() == len(array) and bool((length > 0).all()), "the processes do not belong together")
        parts[name] = np.split(array, np.cumsum(length)[:-1])
    columns = arrays["of_columns"]
    _require(not len(columns) or 0 <= columns.min() <= columns.max() <= len(SIZES), "a process sees what there is not")
    _require(bool((arrays["of_numbers"] > 0).all()), "a process has no variance")
    parts["points"] = [part.astype(np.float64).reshape(shape) for part, shape in zip(parts["points"], shapes, strict=False)]
    processes = (Process(*(parts[name][place] for name in _PROCESS)) for place in range(len(shapes)))
    count = sum(len(kind.keys) for kind in card.kinds)
    _require(arrays["work"].shape == (count + len(card.kinds) + 1, _WIDTH), "there are kinds that the card does not tell of")
    _require(arrays["levels"].shape == arrays["rows"].shape == (count,), "there are keys that the card does not tell of")
    kinds, first, at = {}, 0, 0
    for one in card.kinds:
        of, size = slice(at, at + len(one.keys)), len(one.keys)
        known = {key: next(processes) for key, shape in zip(one.keys, one.processes, strict=True) if shape}
        work, key_work = arrays["work"][first], arrays["work"][first + 1 : first + 1 + size]
        numbers = arrays["levels"][of], arrays["rows"][of]
        kinds[one.kind] = KindModel(work, one.keys, key_work, *numbers, known, one.trees, one.spread, one.stretch)
        first, at = first + 1 + size, at + size
    return kinds


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def write_measured(folder: Path, known: Mapping[str, float]) -> None:
    """Write times (us) by `NodeConfig.key`, the same bytes for the same times."""
    keys, content = sorted(known), io.BytesIO()
    us = np.array([known[key] for key in keys], np.float32)
    np.savez_compressed(content, keys=np.array(keys, "S20"), us=us)
    write_atomically(folder / MEASURED, lambda temporary: temporary.write_bytes(content.getvalue()))


def read_measured(folder: Path) -> dict[str, float]:
    """Read what `write_measured` wrote; nothing where there is no such file."""
    path, again = folder / MEASURED, "remove the file: they are then measured again"
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            keys, us = stored["keys"], stored["us"]
        fits = keys.dtype.kind == "S" and us.dtype.kind == "f" and keys.shape == us.shape and bool((us > 0).all())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(f"measured kernels cannot be read: {error}", where=str(path), next_step=again) from error
    if not fits:
        raise FormatError("it holds no times by key", where=str(path), next_step=again)
    return dict(zip((key.decode() for key in keys.tolist()), us.tolist(), strict=True))


def write_kernels(folder: Path, kernels: Iterable[Kernel]) -> None:
    """Write the nodes that a predictor is trained on."""
    rows = [(config.to_json(), context, us) for config, context, us in kernels]
    frames.write_parquet(pandas.DataFrame(rows, columns=list(_COLUMNS)), folder / KERNELS)


def read_kernels(folder: Path) -> list[Kernel]:
    """Read the nodes that a predictor is trained on."""
    rows = frames.read_parquet(folder / KERNELS, *_COLUMNS)
    return [
        (NodeConfig.from_json(text), int(context), float(us))
        for text, context, us in zip(*(rows[name] for name in _COLUMNS), strict=True)
    ]


def own_folder(device: str, engine: str, version: str) -> Path:
    """Return the folder of what users measured of nodes on a device, with one version of its engine."""
    return state_folder() / "measured" / f"{device}-{engine}-{version}".replace("/", "_")
