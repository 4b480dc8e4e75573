"""Starts LiteRT cold, from models that `lowering.py` writes."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

_START, _COLD = "edgeplan.engines.litert.start", "edgeplan.engines.litert.cold"
ENGINE = Description(
    "litert",
    "pip install 'edgeplan[baselines]'",
    settings=MappingProxyType(
        {
            "litert": Setting(_START, "ai-edge-litert", "LiteRT", f"{_COLD}:converted"),
            "litert-cached": Setting(
                _START, "ai-edge-litert", "LiteRT, weight cache", f"{_COLD}:cached", stores_work=True, starts_once=True
            ),
        }
    ),
    protocols={"cold": "cold-litert/2"},
    earlier={"cold": ("38a27a1e51f5f6ab",)},
)
