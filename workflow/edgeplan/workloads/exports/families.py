"""Lists the families that models are drawn from, and writes these in the element types that people export."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static

from edgeplan.workloads.exported import Exported
from edgeplan.workloads.exports import attention, convolutions, rows
from edgeplan.workloads.exports.net import Net

Draw = Callable[[Net], dict[str, str]]
_OPSETS = (13, 14, 15, 16, 17, 17, 17, 18, 18)
#: What a model may have at most, so that it takes some 30 ms on a core; others are drawn again.
_MOST_MACS, _MOST_ELEMENTS, _MOST_BYTES = 1_000_000_000, 30_000_000, 120_000_000
#: What is quantised with calibration may have at most: every tensor of it is looked at.
_MOST_CALIBRATED = 0.3
_FLOAT, _DYNAMIC, _QDQ = "float32", "dynamic", "qdq"
_WORDS, _IMAGES, _ALL = (_FLOAT, _DYNAMIC), (_FLOAT, _QDQ), (_FLOAT, _DYNAMIC, _FLOAT, _QDQ)

#: What draws the models of each family, and the element types that these take by turns.
FAMILIES: Mapping[str, tuple[Draw, tuple[str, ...]]] = MappingProxyType(
    {
        "encoder": (attention.encoder, _ALL),
        "decoder": (attention.decoder, _WORDS),
        "encoder_decoder": (attention.encoder_decoder, _WORDS),
        "vision_transformer": (attention.vision_transformer, _ALL),
        "tagger": (rows.tagger, _WORDS),
        "recurrent": (rows.recurrent, _WORDS),
        "text_cnn": (rows.text_cnn, _WORDS),
        "table": (rows.table, _ALL),
        "wide_product": (rows.wide_product, _WORDS),
        "audio": (convolutions.audio, _IMAGES),
        "vocoder": (convolutions.vocoder, (_FLOAT,)),
        "detector": (convolutions.detector, _IMAGES),
        "segmentation": (convolutions.segmentation, _IMAGES),
        "mobile_cnn": (convolutions.mobile_cnn, _IMAGES),
        "cnn": (convolutions.cnn, _IMAGES),
        "autoencoder": (convolutions.autoencoder, _IMAGES),
    }
)


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """An exported model is drawn; its weights are when it is written.

    Attributes:
        name: `<family>_<number>_<elements>`.
        family: name of its family.
        elements: `float32`; `dynamic`, eight bits whose scales are found in each run; or `qdq`, eight bits by calibration.
        exported: the model in float32.
        seed: seed of its weights, and of how it is quantised.
    """

    name: str
    family: str
    elements: str
    exported: Exported
    seed: int

    def write(self, path: Path) -> Path:
        """Write the model as ONNX: the same bytes each time."""
        seeded = self.exported.seeded(self.seed)
        if self.elements == _FLOAT:
            return seeded.save(path, sync=False)
        model = seeded.whole()
        helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})  # else it advises to
        rng = np.random.default_rng(self.seed)
        channelwise, wide = bool(rng.random() < 0.4), bool(rng.random() < 0.5)
        kind = QuantType.QInt8 if wide and not _convolves(model) else QuantType.QUInt8
        with tempfile.TemporaryDirectory() as folder:
            given = Path(folder) / "float.onnx"
            onnx.save(model, given)
            if self.elements == _DYNAMIC:  # ONNX Runtime has ConvInteger for unsigned weights alone
                quantize_dynamic(given, path, per_channel=channelwise, weight_type=kind)
            else:
                quantize_static(
                    given, path, _Once(model), per_channel=channelwise, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8
                )
        return path


class _Once(CalibrationDataReader):
    """Calibrates by one set of random inputs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._left = [random_inputs(model)]

    def get_next(self) -> dict[str, npt.NDArray[np.generic]] | None:  # type: ignore[override]
        return self._left.pop() if self._left else None


def random_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, npt.NDArray[np.generic]]:
    """Return inputs that a drawn model accepts: normal values, and ids of 0 and 1."""
    rng, found = np.random.default_rng(seed), dict[str, npt.NDArray[np.generic]]()
    for one in model.graph.input:
        shape = tuple(dim.dim_value for dim in one.type.tensor_type.shape.dim)
        ids = one.type.tensor_type.elem_type == TensorProto.INT64
        found[one.name] = rng.integers(0, 2, shape) if ids else rng.standard_normal(shape, np.float32)
    return found


def export_models(seed: int, per_family: int) -> Iterator[ExportedModel]:
    """Draw so many models of each family; those of another seed have other sizes."""
    for family, (draw, kinds) in FAMILIES.items():
        for number in range(per_family):
            elements = kinds[number % len(kinds)]
            name = f"{family}_{number}_{elements}"
            entropy = (seed, zlib.crc32(family.encode()), number)
            exported = _drawn(name, draw, entropy, _MOST_CALIBRATED if elements == _QDQ else 1.0)
            yield ExportedModel(name, family, elements, exported, zlib.crc32(repr(entropy).encode()))


def _drawn(name: str, draw: Draw, entropy: tuple[int, ...], share: float) -> Exported:
    """Draw a model again and again until it is within this share of the bounds."""
    for attempt in count():
        rng = np.random.default_rng((*entropy, attempt))
        net = Net(name, rng, _OPSETS[int(rng.integers(len(_OPSETS)))])
        outputs = draw(net)
        if net.macs <= share * _MOST_MACS and net.elements <= share * _MOST_ELEMENTS and net.weight_bytes <= share * _MOST_BYTES:
            return net.build(outputs)
    raise AssertionError("unreachable")


def _convolves(model: onnx.ModelProto) -> bool:
    return any(node.op_type == "Conv" for node in model.graph.node)
