"""The predictors of a pair: one for each implementation of a kind on each processor, in a folder with a card."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import scipy
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.chapters.partition.layers import LayerShape
from edgeplan.chapters.partition.settings import SIDES
from edgeplan.devices.pairs import PairFile
from edgeplan.errors import FormatError
from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.predictors.walking import Forest, Walk
from edgeplan.runtime.processor import Dispatcher
from edgeplan.support.files import read_json, write_json, write_text

Floats = npt.NDArray[np.float64]
#: Of the shape alone, the configuration and what follows from it.
SHAPE = (
    *("height", "width", "inputs", "outputs", "window", "window_width", "stride"),
    *("flops", "input_elements", "output_elements", "weight_elements"),
)
#: Place of the work, which times grow with.
WORK = SHAPE.index("flops")


def shape_matrix(layers: Sequence[LayerShape]) -> Floats:
    """Features of shapes (layers, features)."""
    rows = np.array([(v.height, v.width, v.inputs, v.outputs, *v.kernel, v.stride, *v.out_size) for v in layers], np.float64)
    rows = rows.reshape(len(layers), 9)
    height, width, inputs, outputs, tall, broad, _, high, wide = rows.T
    weights = inputs * outputs * tall * broad
    more = (2 * high * wide * weights, height * width * inputs, high * wide * outputs, weights)
    return np.column_stack([rows[:, :7], *more])


def dispatch_matrix(found: Sequence[Mapping[str, float]], features: Sequence[str]) -> Floats:
    """Features of dispatches, by name (layers, features)."""
    return np.array([[one[name] for name in features] for one in found], np.float64).reshape(len(found), len(features))


def augmented_names(features: Sequence[str]) -> tuple[str, ...]:
    """Names of all features with those of a dispatch, as tables of importance have them."""
    return (*SHAPE, *(f"dispatch.{name}" for name in features))


_FLOAT_BYTES = 4
#: Factors of a fit: microseconds a call, a byte moved, a multiply-add or comparison.
TERMS = ("call", "bytes", "work")
#: With fewer samples a family has the fit of all together.
FEW = 6
ALL = "all"


def family(step: Step) -> str:
    """Steps of one family have one fit: their kind, and of a window or an operation which."""
    if step.kind == "conv":
        return "conv.grouped"
    algorithm = step.settings.get("algorithm", "")
    return f"{step.kind}.{algorithm}" if algorithm else step.kind


def step_amounts(step: Step, shapes: Mapping[str, Shape]) -> tuple[float, float, float]:
    """Return the amounts that the factors of `TERMS` are of."""
    tensors = (*step.reads, *step.outputs, *step.weights.values())
    moved = _FLOAT_BYTES * sum(math.prod(shapes[name]) for name in tensors)
    window = step.settings.get("kernel")  # of a compiled step it is a name
    each = math.prod(step.sizes("kernel")) if isinstance(window, tuple) else 1
    if step.kind == "conv":
        each *= shapes[step.inputs[0]][1] // step.integer("groups")
    return 1.0, float(moved), float(each * math.prod(shapes[step.outputs[0]]))


def fit(rows: Floats, latency_us: Floats) -> tuple[float, ...]:
    """Return the non-negative factors of the least relative squared error: rows (samples, terms) times these are latencies."""
    scale = np.maximum(rows.max(axis=0), 1.0)
    factors = scipy.optimize.nnls(rows / scale / latency_us[:, None], np.ones(len(latency_us)))[0] / scale
    return tuple(float(f) for f in factors)


#: Variants of the predictors of lane 1: with dispatch features and a model for each implementation, or on shapes alone.
OURS, PLAIN = "ours", "plain"
_POOLED = ""
_CARD = "card.json"
_NAME = "layer"
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_AGAIN = "measure the pair: dvc repro partition@PAIR"


@dataclass(frozen=True)
class Trees:
    """Trees on log(latency / FLOPs): the scale, which they could not extrapolate, is taken out."""

    text: str
    walk: Walk

    @classmethod
    def of(cls, text: str, features: int, where: str) -> Trees:
        """Trees of a text, which is not trusted."""
        try:
            walk = Walk.of(Forest.parse([[text]], where), 0, features)
        except ValueError as error:
            raise FormatError(f"damaged trees: {error}", where=where, next_step="measure the pair again") from error
        if walk is None:
            raise FormatError("too many nodes", where=where, next_step="measure the pair again")
        return cls(text, walk)

    def predict(self, matrix: Floats) -> Floats:
        """Latency in us of rows of features (rows,)."""
        return np.asarray(np.exp(self.walk.raw(matrix)) * matrix[:, WORK], np.float64)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Part):
    """A model is one text of trees."""

    side: Literal["cpu", "gpu"]
    variant: Literal["ours", "plain"]
    kind: Literal["linear", "conv"]
    implementation: str
    file: Annotated[str, Field(pattern=r"^[a-z0-9_.-]+\.txt$")]


class PartitionCard(_Part):
    """A card says what the predictors are of.

    Attributes:
        versions: of both processors' libraries, by lane.
        numbers: of the processor of lane 1 (`Processor.numbers`), that dispatch is computed for.
        cpu_implementations: by kind, window and stride ("conv 3x3/2"), the one that most samples had.
        others: factors of `others.TERMS` by side and family.
        errors: mean relative error on held-out samples, by side, kind and variant ("gpu conv ours").
        handshake_us: of a step of nothing, by synchronisation.
        anchors_us: median time of each of `sampling.ANCHORS`, by side: what "as fast as usual" is.
        beside: by how much layers take longer that both processors compute at once, by kind, on training samples.
        gain_errors: by how much, as a share of the better processor's time, half of all predicted gains of splits are off at
            most, by kind, on training samples.
        fixed_share: the share of lane 0 of all layers that is best on the training samples, by kind.
    """

    format_version: Literal[1] = 1
    pair: str
    fingerprint: str
    versions: tuple[str, str]
    numbers: dict[str, int]
    models: tuple[Model, ...]
    cpu_implementations: dict[str, str]
    others: dict[Literal["cpu", "gpu"], dict[str, tuple[_Number, _Number, _Number]]]
    errors: dict[str, _Number]
    handshake_us: dict[str, _Number]
    anchors_us: dict[Literal["cpu", "gpu"], tuple[_Number, ...]] = {}
    beside: dict[str, _Number] = {}
    gain_errors: dict[str, _Number] = {}
    fixed_share: dict[str, _Number] = {}


@dataclass(frozen=True)
class PairPredictors:
    """Predictors of latency on both processors of a pair."""

    card: PartitionCard
    trees: Mapping[tuple[str, str, str, str], Trees] = field(repr=False)
    dispatcher: Dispatcher = field(repr=False)

    def us(self, lane: int, layers: Sequence[LayerShape], variant: str = OURS) -> Floats:
        """Latency of layers of one kind on a lane, in us (layers,).

        The host's library tells no kernel before it is asked for one: there layers have the implementation that most samples of
        their class had. The variant is of lane 1 alone.
        """
        if not layers:
            return np.zeros(0)
        if lane == 0:
            names, matrix = [self.card.cpu_implementations.get(shape_class(v), _POOLED) for v in layers], shape_matrix(layers)
        elif variant == PLAIN:
            names, matrix = [_POOLED] * len(layers), shape_matrix(layers)
        else:
            names, matrix = augmented(layers, self.dispatcher)
        return self._predicted(lane, layers[0].kind, names, matrix, variant)

    def _predicted(self, lane: int, kind: str, names: Sequence[str], matrix: Floats, variant: str) -> Floats:
        """Predictions of rows of features, each by the trees of its implementation."""
        side, variant = SIDES[lane], variant if lane else OURS
        found = np.zeros(len(names))
        chosen = np.array([name if (side, variant, kind, name) in self.trees else _POOLED for name in names])
        for name in dict.fromkeys(chosen.tolist()):
            rows = chosen == name
            found[rows] = self.trees[side, variant, kind, name].predict(matrix[rows])
        return found

    def other_us(self, lane: int, step: Step, shapes: Mapping[str, Shape]) -> float:
        """Latency of a step that is no layer, in us."""
        fits = self.card.others[SIDES[lane]]  # type: ignore[index]
        factors = fits.get(family(step), fits[ALL])
        return sum(factor * term for factor, term in zip(factors, step_amounts(step, shapes), strict=True))

    def margin(self, kind: str) -> float:
        """Return the least gain of a split that is taken, as a share of the better processor's time: the error of such gains.

        Where no split of a training sample was measured it is the larger error of both processors on held-out samples.
        """
        errors = (self.card.errors[f"{side} {kind} {OURS}"] for side in SIDES)
        return min(self.card.gain_errors.get(kind, max(errors)), 1.0)


def augmented(layers: Sequence[LayerShape], dispatcher: Dispatcher) -> tuple[list[str], Floats]:
    """Implementations of layers by a dispatcher, and features of their shapes and dispatches (layers, features)."""
    names, found = [], []
    for layer in layers:
        dispatched = dispatcher.dispatch(_step(layer.part(1)), layer.shapes(_NAME), layer.layouts(_NAME))
        names.append(dispatched.implementation)
        found.append(dispatched.features())
    return names, np.column_stack([shape_matrix(layers), dispatch_matrix(found, dispatcher.features)])


@lru_cache(maxsize=256)
def _step(layer: LayerShape) -> Step:
    """The step of a layer, which all of its parts share: it does not say how many outputs there are."""
    return layer.step(_NAME)


def refused(layer: LayerShape, dispatcher: Dispatcher) -> str:
    """Why there is no kernel for a layer, "" if there is one."""
    return dispatcher.refusal(layer.step(_NAME), layer.shapes(_NAME), layer.layouts(_NAME))


def shape_class(layer: LayerShape) -> str:
    """Layers of one class have one implementation on the host.

    OneDNN's pointwise kernels take strides that divide the image, and leave others to a kernel that is several times slower.
    """
    high, wide = layer.kernel
    odd = layer.height % layer.stride or layer.width % layer.stride
    return f"{layer.kind} {high}x{wide}/{layer.stride}{' odd' if odd else ''}{' image' if layer.inputs < 8 else ''}"  # a block


def file_name(side: str, variant: str, kind: str, implementation: str) -> str:
    """Return the name of a text model's file."""
    parts = [side, kind, *([variant] if variant == PLAIN else []), *filter(None, (implementation,))]
    return re.sub(r"[^a-z0-9_.-]", "_", "-".join(parts).lower()) + ".txt"


def save_pair_predictors(predictors: PairPredictors, folder: Path) -> None:
    """Write the card and the texts."""
    for model in predictors.card.models:
        write_text(folder / model.file, predictors.trees[model.side, model.variant, model.kind, model.implementation].text)
    write_json(folder / _CARD, json.loads(predictors.card.model_dump_json()))


def load_pair_predictors(folder: Path, pair: PairFile) -> PairPredictors:
    """Read the predictors of a pair."""
    if not (folder / _CARD).is_file():
        raise FormatError(
            f"no predictors of pair {pair.name!r}; the package ships none, "
            "as those of a pair hold for its machine and driver alone",
            where=str(folder),
            next_step=f"measure the pair here, in a checkout of edgeplan: dvc repro partition@{pair.name}",
        )
    card = read_json(folder / _CARD, PartitionCard, "the predictors of the pair")
    try:
        dispatcher = pair.dispatcher(card.numbers)
    except (TypeError, ValueError) as error:
        what = f"the numbers of processor {pair.processors[1].name} do not fit: {error}"
        raise FormatError(what, where=str(folder / _CARD), next_step=_AGAIN) from error
    widths = {OURS: len(augmented_names(dispatcher.features)), PLAIN: len(SHAPE)}
    trees: dict[tuple[str, str, str, str], Trees] = {}
    for model in card.models:
        path = folder / model.file
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"cannot read a predictor: {error}", where=str(path), next_step=_AGAIN) from error
        width = widths[model.variant if model.side == SIDES[1] else PLAIN]
        trees[model.side, model.variant, model.kind, model.implementation] = Trees.of(text, width, str(path))
    return PairPredictors(card, MappingProxyType(trees), dispatcher)
