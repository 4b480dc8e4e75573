"""Models whose operators were measured one by one stand beside LiPG's Table 3: the operators' sum, and the model end to end."""

from __future__ import annotations

import pandas as pd

from edgeplan.chapters.partition import paper

_PRINTED = ("baseline_ms", "operators_ms", "operators_speedup", "end_to_end_ms", "end_to_end_speedup")


def beside_paper(pair: str, models: pd.DataFrame) -> pd.DataFrame:
    """Return the table, with speedups over the GPU alone as the paper has them, and the paper's rows below.

    Args:
        pair: its name.
        models: by model, ms: baseline (on the GPU alone), operators (their sum as split), end_to_end, and better (the smaller
            sum of all operators on one processor).
    """
    own = pd.DataFrame({"device": pair, "model": models.index, "baseline_ms": models["baseline"].to_numpy()})
    for name in ("operators", "end_to_end"):
        own[f"{name}_ms"] = models[name].to_numpy()
        own[f"{name}_speedup"] = own["baseline_ms"] / own[f"{name}_ms"]
    own["over the better's operators"] = (models["better"] / models["operators"]).to_numpy()
    printed = [
        dict(zip(("device", "model", *_PRINTED), (f"paper: {device}", model, *values, paper.END_TO_END[model][k]), strict=True))
        for k, (device, of_device) in enumerate(paper.OPERATORS.items())
        for model, values in of_device.items()
    ]
    return pd.concat([own, pd.DataFrame(printed)], ignore_index=True).round(3)
