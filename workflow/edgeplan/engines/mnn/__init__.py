"""This package starts MNN cold as a stock engine."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

ENGINE = Description(
    "mnn",
    "pip install 'edgeplan[baselines]'",
    settings=MappingProxyType({"mnn": Setting("edgeplan.engines.mnn.cold:Mnn", "MNN", "MNN")}),
)
