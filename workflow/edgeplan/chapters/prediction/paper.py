"""Holds the numbers that nn-Meter (MobiSys 2021) reports, each with its table, figure or section.

Shares are in percent, as printed.

Its tables lie in `printed/`, with the columns that they have beside ours; "nan" stands where the paper has no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from edgeplan.support.frames import read_csv

#: Devices of Table 7, in the order of every table.
DEVICES = ("CPU", "GPU", "VPU")
MINUTES_PER_DAY = 24 * 60

#: Section 7.2.1 on Fig. 9: +-10 % accuracy on unseen families, mean over five families and three devices.
FIGURE_9: Mapping[str, float] = MappingProxyType({"ours": 89.2, "flops": 22.1, "flops_mac": 17.1})

#: Section 7.3 on Fig. 11: +-10 % accuracy of the operator-level sum, on the CPU.
FIGURE_11_OPERATOR = 91.3

#: Section 6: latency in ms of (HW 56, K 3, S 1, Cin 32, Cout 32) on the GPU by fused type.
CONV_FUSED_MS: Mapping[str, float] = MappingProxyType({"conv": 0.404, "conv++bn": 0.404, "conv++bn++relu": 0.405})


@cache
def printed(table: str, index: str | None = None) -> pd.DataFrame:
    """Read a table of the paper, such as "table_08"; families and kernels are called as here.

    The last row of Tables 8 and 11 is of sections 7.2.2 and 7.2.3, "AlexNets" of Table 10 of section 7.3. Squeeze-and-excite is
    one kernel in the paper, several here; its channel shuffle is the transpose here, its average pooling of Table 4 the global
    one.
    """
    frame = read_csv(Path(__file__).parent / f"printed/{table}.csv", keep_default_na=False, na_values=["nan"])
    return frame if index is None else frame.set_index(index)


#: Kernels of the paper by the type of an executed node; convolutions are told apart by their key.
_KERNELS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("Gemm", "FusedGemm", "MatMul"), "fc"),
        "MaxPool": "maxpool",
        **dict.fromkeys(("AveragePool", "GlobalAveragePool"), "avgpool"),
        "HardSwish": "hswish",
        "Transpose": "transpose",
        "BatchNormalization": "bn",
        "Add": "add",
        "Concat": "concat",
    }
)


def paper_kernel(key: str) -> str:
    """Return the paper's kernel that nodes of a key are, else the type of the node."""
    name = key.partition("/")[2].partition("@")[0].rpartition(":")[2]  # behind @ is how an engine does it
    if key.startswith("convolution/"):
        return "dwconv" if "-depthwise" in name else "conv"
    return _KERNELS.get(name.partition("-")[0], name.partition("-")[0].lower())


def family_key(name: str) -> str:
    """Return this project's name of a family, whatever the spelling: `MobileNet_V2`, `MobileNetv2s` -> `mobilenetv2`."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    known = printed("table_02", "family").index
    return plain[:-1] if plain not in known and plain.endswith("s") and plain[:-1] in known else plain
