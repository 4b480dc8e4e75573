"""Names in stored rows, and a limit, that what measures, what shows and EOP's part have in common."""

from __future__ import annotations

#: Lanes 0 and 1 in stored rows, predictors and cost documents, whatever the pair file calls its processors.
SIDES = ("cpu", "gpu")
#: A way to run a layer or a model: oneDNN alone on all cores of the pair.
ALL_CORES = "cpu, all cores"
#: A way to run a model: as the planner says, on both processors.
PLANNED = "planned"
#: Who can gain less than this over the best of CPU, GPU and all cores is told not to split.
WORTH_SPLITTING = 1.05
#: A way that takes so many times as long as another counts as slower.
SLOWER = 1.02
#: Makespans of one plan differ by less than this share, whatever the order of their sums.
SAME_PLAN = 1e-6
