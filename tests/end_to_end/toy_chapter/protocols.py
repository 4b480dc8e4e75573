"""Names of the chapter's measuring protocols."""

from __future__ import annotations

from collections.abc import Mapping

from edgeplan.support.protocols import Protocol

PROTOCOLS: Mapping[str, Protocol] = {"toy": Protocol("toy/1", ("chapters/toy/stages/toy.py",))}
