"""How the function of a stage gets what its stage declares: by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from edgeplan.chapters.base import ChapterParams
from edgeplan.errors import ParamsError


def arguments(
    function: Callable[..., Any],
    params: ChapterParams,
    sections: Iterable[str],
    paths: Mapping[str, Any],
    wildcards: Mapping[str, str],
) -> dict[str, Any]:
    """The arguments of a stage's function, each found by its name.

    Args:
        function: of the stage.
        params: params.yaml, given as `params`.
        sections: of params.yaml that the stage depends on; each may be asked for alone.
        paths: what the stage reads and writes.
        wildcards: names of its target, where no path has that name.

    Raises:
        ParamsError: the function asks for something that the stage does not declare.
    """
    known: dict[str, Any] = {"params": params}
    known |= {**wildcards, **{name: getattr(params, name) for name in sections if hasattr(params, name)}}
    known |= {name: Path(path) for name, path in paths.items() if isinstance(path, str)}
    asked = inspect.signature(function).parameters
    missing = [name for name, one in asked.items() if name not in known and one.default is one.empty]
    if missing:
        raise ParamsError(
            f"the stage declares no {missing[0]!r}",
            where=f"{function.__module__}.{function.__qualname__}",
            next_step="name it among the inputs, outputs, paths or params of the stage in chapter.py",
        )
    return {name: known[name] for name in asked if name in known}
