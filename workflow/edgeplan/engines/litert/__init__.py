"""Starts LiteRT cold, from models that `lowering.py` writes."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

_COLD = "edgeplan.engines.litert.cold"
ENGINE = Description(
    "litert",
    "pip install 'edgeplan[baselines]'",
    settings=MappingProxyType(
        {
            "litert": Setting(f"{_COLD}:LiteRt", "ai-edge-litert", "LiteRT"),
            "litert-cached": Setting(f"{_COLD}:LiteRtCached", "ai-edge-litert", "LiteRT, weight cache", stores_work=True),
        }
    ),
)
