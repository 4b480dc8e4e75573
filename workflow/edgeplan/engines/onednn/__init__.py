"""Runs models by oneDNN, through the package's own runtime: measured by node, and started cold by plans."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

_START, _COLD, _ONEDNN = "edgeplan.engines.onednn.start", "edgeplan.engines.onednn.cold:prepare", "onednn-cpu-gomp"


def _own(title: str, *, fixed: bool = False, continuous: bool = False) -> Setting:
    how = {"fixed": fixed, "continuous": continuous}
    return Setting(_START, _ONEDNN, title, _COLD, {"how": how}, stores_work=True, stock=False)


ENGINE = Description(
    "onednn",
    "pip install 'edgeplan[runtime]'",
    "edgeplan.engines.onednn.session:Onednn",
    MappingProxyType(
        {
            "edgeplan": _own("edgeplan"),
            "edgeplan-evicted": _own("edgeplan, planned for the disk"),
            # every core does what the plan says, whatever slows it (Figure 11)
            "edgeplan-fixed": _own("edgeplan, no stealing", fixed=True),
            # idle cores prepare the kernels of later runs (section 3.5, Figure 14)
            "edgeplan-continuous": _own("edgeplan, continuous mode", continuous=True),
            "edgeplan-mapped": Setting(
                "edgeplan.engines.onednn.start_mapped",
                _ONEDNN,
                "edgeplan's kernels, mapped",
                "edgeplan.engines.onednn.mapped:prepare",
                stores_work=True,
                stock=False,
            ),
        }
    ),
    processor="edgeplan.engines.onednn.processor:OnednnProcessor",
    wheels=("onednn-cpu-gomp", "scipy"),
    architectures=("x86_64",),
    # since measure 3 Python calls no step; since cold 3 our sessions are native, with nothing to set up
    protocols={"measure": "onednn/3", "mapping": "0e25a4e4", "cold": "cold-onednn/3"},
    earlier={"measure": ("47e305f54f670757",), "cold": ("21273a43a0c6e429",)},
)
