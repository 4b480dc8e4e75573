"""Runs models by oneDNN, through the package's own runtime: measured by node, and started cold by plans."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

_COLD, _ONEDNN = "edgeplan.engines.onednn.cold", "onednn-cpu-gomp"
ENGINE = Description(
    "onednn",
    "pip install 'edgeplan[runtime]'",
    "edgeplan.engines.onednn.session:Onednn",
    MappingProxyType(
        {
            "edgeplan": Setting(f"{_COLD}:Edgeplan", _ONEDNN, "edgeplan", stores_work=True, stock=False),
            "edgeplan-evicted": Setting(
                f"{_COLD}:Edgeplan", _ONEDNN, "edgeplan, planned for the disk", stores_work=True, stock=False
            ),
            "edgeplan-fixed": Setting(
                f"{_COLD}:EdgeplanFixed", _ONEDNN, "edgeplan, no stealing", stores_work=True, stock=False
            ),
            "edgeplan-continuous": Setting(
                f"{_COLD}:EdgeplanContinuous", _ONEDNN, "edgeplan, continuous mode", stores_work=True, stock=False
            ),
            "edgeplan-mapped": Setting(
                "edgeplan.engines.onednn.mapped:EdgeplanMapped",
                _ONEDNN,
                "edgeplan's kernels, mapped",
                stores_work=True,
                stock=False,
            ),
        }
    ),
    processor="edgeplan.processors.onednn:OnednnProcessor",
    wheels=("onednn-cpu-gomp", "llvmlite", "numba", "scipy"),
    architectures=("x86_64",),
)
