"""Declares the schema of params.yaml: every setting, with its bounds.

A misspelt key or a value out of range is named in the error.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError, create_model

from edgeplan.chapters.base import ChapterParams
from edgeplan.chapters.registry import CHAPTERS
from edgeplan.devices.config import load_device
from edgeplan.errors import ParamsError
from edgeplan.support.files import read_yaml

#: The schema: each chapter's settings are a part of it, so that what was read is what each chapter's functions take.
Params: type[ChapterParams] = create_model("Params", __base__=tuple(chapter.settings for chapter in CHAPTERS.values()))


def load_params(path: Path) -> ChapterParams:
    """Read params.yaml, and validate every value of it."""
    params = read_yaml(path, Params, ParamsError, "params file")
    for name, section in params:
        # settings have defaults for those who use the package without the file; the file says everything
        left_out = type(section).model_fields.keys() - section.model_fields_set if isinstance(section, BaseModel) else ()
        if left_out:
            what = f"params file: {name}.{min(left_out)}: Field required"
            raise ParamsError(what, where=str(path), next_step="correct the named fields")
    return params


def params_on(params: ChapterParams, device: Path) -> ChapterParams:
    """Return the params with the values that a device's file has of its own (`DeviceFile.settings`)."""
    own = load_device(device).settings
    if not own:
        return params
    merged = params.model_dump()
    for section, values in own.items():
        known = merged.get(section)
        if not isinstance(known, dict) or (unknown := sorted(values.keys() - known.keys())):
            what = f"settings.{section}" if not isinstance(known, dict) else f"settings.{section}.{unknown[0]}"
            raise ParamsError(f"{what} is nothing that params.yaml has", where=str(device), next_step="name what it has")
        merged[section] = known | values
    try:
        return Params.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        what = f"settings.{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ParamsError(what, where=str(device), next_step="correct the named field") from error
