"""Stores the packed trees beside the text models (packed.npz), which makes loading a device's predictors fast."""

from __future__ import annotations

import hashlib
import io
import logging
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgeplan.errors import FormatError
from edgeplan.predictors.card import Card
from edgeplan.predictors.features import WORK_VERSION, known_features
from edgeplan.predictors.latency import EXTRA_FEATURES
from edgeplan.predictors.launches import LAUNCH_VERSION, checked_numbers
from edgeplan.predictors.trees import Forest, parse_ensemble
from edgeplan.support.files import write_atomically

log = logging.getLogger(__name__)


def width_of(card: Card) -> int:
    """Return the number of columns that the trees of a card see."""
    return len(card.features) + len(EXTRA_FEATURES)


def check_features(card: Card, where: str, next_step: str) -> None:
    """Refuse predictors that learnt from other features than those that are computed here."""
    launched, what = bool(card.dispatch_numbers), ""
    if card.launch_version != LAUNCH_VERSION * launched:
        what = f"launches of version {card.launch_version}, and {LAUNCH_VERSION * launched} is computed here"
    elif not 0 <= card.work_version <= WORK_VERSION:
        what = f"work counted by version {card.work_version}, and {WORK_VERSION} is the last one here"
    elif (card.features, card.work_terms) != known_features(launched=launched):
        what = "other features"
    elif launched:
        try:
            checked_numbers(card.dispatch_numbers)
        except ValueError as error:
            what = f"launches of another dispatcher: {error}"
    if what:
        raise FormatError(f"the predictors were trained on {what}", where=where, next_step=next_step)


def write_pack(path: Path, forest: Forest, digest: str) -> None:
    """Write the trees with the digest of the texts they come from."""
    content = io.BytesIO()
    np.savez(content, digest=np.array(digest), **forest.arrays())  # type: ignore[arg-type]
    write_atomically(path, lambda temporary: temporary.write_bytes(content.getvalue()))


def digest_of(card: Card, texts: Mapping[str, str]) -> str:
    """Return the digest of all text models, in the order of `card.files()`."""
    digest = hashlib.sha256()
    for name in card.files():
        digest.update(f"{name}:{len(texts[name])}:".encode())
        digest.update(texts[name].encode())
    return digest.hexdigest()


def pack(card: Card, texts: Mapping[str, str], where: str) -> Forest:
    """Pack the trees of all text models, in the order of `card.files()`; `where` is named in errors."""
    return Forest.pack([parse_ensemble(texts[name], f"{where}, {name}") for name in card.files()])


def read_pack(path: Path, digest: str, width: int) -> Forest | None:
    """Read the packed trees, which see so many columns, or return None if they are missing or belong to other texts."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["digest"]) == digest:
                return Forest.from_arrays(stored, width)
        log.warning("%s does not belong to the text models beside it; packing them again (slower)", path)
    except FileNotFoundError:
        log.warning("%s is missing; packing the text models (slower)", path)
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.warning("%s is damaged (%s); packing the text models again (slower)", path, error)
    return None
