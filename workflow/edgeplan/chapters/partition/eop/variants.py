"""The models of figures 9 and 10: EOP's recurrent layers and BERT with one setting changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from edgeplan.workloads.recurrent import unrolled_language_model
from edgeplan.workloads.registry import Workload
from edgeplan.workloads.transformers import bert

#: Values by figure, setting and model. Figure 10 varies 12 to 192 "layers" of BERT, which change its time by under 1 %: these
#: can only be heads, which leave the width as it is. Heads and layers are varied apart, heads at two layers to save time.
VARIED: Mapping[tuple[str, str, str], tuple[int, ...]] = MappingProxyType(
    {
        **{("figure_09", "batch", cell): (8, 16, 32, 64, 128) for cell in ("LSTM", "GRU")},
        **{("figure_09", "input", cell): (40, 80, 120, 160, 200) for cell in ("LSTM", "GRU")},
        **{("figure_09", "layers", cell): (2, 4, 6, 8) for cell in ("LSTM", "GRU")},
        ("figure_10", "heads", "BERT"): (12, 48, 192),
        ("figure_10", "layers", "BERT"): (1, 2, 4),
    }
)
#: The figure whose models are recurrent.
RECURRENT_FIGURE = "figure_09"
_BATCH, _VOCABULARY = 16, 32000
_SETTINGS = {"batch": "batch", "input": "embedding", "layers": "layers", "heads": "heads"}


def variant(model: str, setting: str, value: int) -> tuple[str, Callable[[], Workload]]:
    """Name and builder of a model with a setting of a value, all else as in the paper's table 3."""
    name = f"{model} {setting} {value}"
    sizes = {"batch": _BATCH, "layers": 2, _SETTINGS[setting]: value}
    if model == "BERT":
        return name, partial(bert, name, tokens=1, vocabulary=_VOCABULARY, **sizes)
    return name, partial(unrolled_language_model, name, "LSTM" if model == "LSTM" else "GRU", **sizes)


def recurrent() -> Mapping[str, Callable[[], Workload]]:
    """Return the recurrent variants of figure 9 by name."""
    named = [(model, setting, values) for (figure, setting, model), values in VARIED.items() if figure == RECURRENT_FIGURE]
    return dict(variant(model, setting, value) for model, setting, values in named for value in values)
