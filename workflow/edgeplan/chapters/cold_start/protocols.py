"""Names the chapter's measuring protocols: see `edgeplan.support.protocols`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.support.protocols import Protocol, files_of

_PLANNING = files_of(
    "planning", *("bounds", "document", "dominance", "events", "local_search", "machine", "mixed_integer", "optimal", "profile")
)
#: By what is measured.
PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        "plan": Protocol("d26aa98db46a6227", (*_PLANNING, "chapters/cold_start/planners")),
    }
)
