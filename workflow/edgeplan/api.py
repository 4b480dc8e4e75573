"""Offers to programs what belongs to no chapter: `edgeplan.export` and `edgeplan.prepare` (docs/api.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Unpack

from edgeplan.errors import ModelError, StoreError
from edgeplan.graph.onnx.compare import largest_difference
from edgeplan.graph.onnx.prepare import OpenParts, Preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.support.files import FilePath
from edgeplan.workloads.registry import named_models

_NEAR = 5  # names that are offered in place of a wrong one


@dataclass(frozen=True)
class Prepared:
    """Describes a model of static shape, as a file.

    Attributes:
        path: the file: the one that was written, or the given one where it was static as it was.
        inputs: shapes by name.
        operators: number of operators.
        difference: largest difference of outputs from the original's, relative to the largest magnitude of each output; None
            unless it was asked for and a file was written.
    """

    path: Path
    inputs: Mapping[str, tuple[int, ...]]
    operators: int
    difference: float | None = None


def export(name: str, output: FilePath | None = None) -> Path:
    """Write a published model with the weights of seed 0 as ONNX.

    Args:
        name: one of `edgeplan.workloads.registry.named_models()`.
        output: file to write; `<name>.onnx` without.

    Raises:
        ModelError: there is no model of that name.
        StoreError: the file cannot be written; one that was there before is kept.
    """
    known = named_models()
    if name not in known:
        near = get_close_matches(name, known, _NEAR)
        raise ModelError(
            f"there is no model {name!r} to export",
            where="edgeplan export",
            next_step=f"edgeplan export --list shows all{'; near: ' + ', '.join(near) if near else ''}",
        )
    path = Path(output or f"{name}.onnx")
    if path.is_dir():
        next_step = f"name a file: -o {path / (name + '.onnx')}"
        raise StoreError("cannot write: this is a folder", where=str(path), next_step=next_step)
    return known[name]().save(path)


def prepare(
    model: FilePath,
    output: FilePath,
    *,
    check: bool = False,
    **given: Unpack[OpenParts],
) -> Prepared:
    """Write a model of static shape that computes the same.

    Args:
        model: ONNX file as it was exported.
        output: ONNX file to write; nothing is written where the model is static as it is.
        check: compare outputs with the original's on ONNX Runtime.
        given: what the file leaves open (`OpenParts`).

    Raises:
        ModelError: the file cannot be read, or what it leaves open is not given.
        CheckError: outputs differ by more than rounding.
        StoreError: the file cannot be written; one that was there before is kept.
    """
    source, target, wanted = Path(model), Path(output), Preparation.given(**given)
    if target.exists() and target.resolve() == source.resolve():
        raise ModelError("a model is not written over itself", where=str(target), next_step="name another file with -o")
    made = prepare_file(source, wanted, target)
    difference = largest_difference(source, made, wanted) if check and made != source else None
    graph = load_onnx(made)
    return Prepared(made, {name: graph.shape(name) for name in graph.inputs}, len(graph.operators), difference)
