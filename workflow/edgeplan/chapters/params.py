"""Declares the schema of params.yaml: every setting, with its bounds.

A misspelt key or a value out of range is named in the error.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, create_model

from edgeplan.chapters.base import ChapterParams
from edgeplan.chapters.registry import CHAPTERS
from edgeplan.devices.config import load_device
from edgeplan.errors import ParamsError
from edgeplan.support.files import read_yaml, validate

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
        merged[section] = known | values if isinstance(known, dict) else values
    return validate(merged, Params, ParamsError, "what params.yaml is on this device", str(device))
