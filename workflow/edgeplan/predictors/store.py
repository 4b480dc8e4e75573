"""Keeps what single nodes were measured to take on a device: what was measured is predicted by nothing better.

Beside the predictor lie the nodes that it was trained on; what users measure besides is kept in the state folder.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from edgeplan.errors import FormatError
from edgeplan.graph.nodes import NodeConfig
from edgeplan.support.files import state_folder, write_atomically
from edgeplan.support.lazy import lazily
from edgeplan.workspace import KERNELS

# Predictions need neither: only what trains and adapts reads tables.
pandas, frames = lazily("pandas"), lazily("edgeplan.support.frames")

MEASURED = "measured.npz"
#: A measured node: what it is, the context of the model around it in bytes, us.
Kernel = tuple[NodeConfig, int, float]
_COLUMNS = ("config", "context_bytes", "us")


def write_measured(folder: Path, known: Mapping[str, float]) -> None:
    """Write times (us) by `NodeConfig.key`, the same bytes for the same times."""
    keys = sorted(known)
    arrays = {"keys": np.array(keys, "S20"), "us": np.array([known[key] for key in keys], np.float32)}

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, keys=arrays["keys"], us=arrays["us"])

    write_atomically(folder / MEASURED, write)


def read_measured(folder: Path) -> dict[str, float]:
    """Read what `write_measured` wrote; nothing where there is no such file.

    Raises:
        FormatError: it cannot be read.
    """
    path = folder / MEASURED
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            keys, us = stored["keys"], stored["us"]
        fits = keys.dtype.kind == "S" and us.dtype.kind == "f" and keys.shape == us.shape and bool((us > 0).all())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        what = f"measured kernels cannot be read: {error}"
        raise FormatError(what, where=str(path), next_step="remove the file: they are then measured again") from error
    if not fits:
        raise FormatError(
            "it holds no times by key", where=str(path), next_step="remove the file: they are then measured again"
        )
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
