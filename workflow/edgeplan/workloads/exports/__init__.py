"""Draws models as people export them: what predictors learn from, by category and in sizes that are in use.

They are written in the element types that people export.
"""

from __future__ import annotations

import logging
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from edgeplan.workloads.exported import Exported
from edgeplan.workloads.exports import convolutions, sequences
from edgeplan.workloads.exports.net import Net, TooLargeError

Draw = Callable[[Net], dict[str, str]]
_BATCHES = (1, 1, 1, 1, 1, 1, 2, 4, 8, 10, 16)
_OPSETS = (13, 14, 15, 16, 17, 17, 17, 18, 18)
_ATTEMPTS = 60
_FLOAT, _DYNAMIC, _QDQ = "float32", "dynamic", "qdq"
#: The share of the largest sizes that is left to what is quantised, which takes long: calibration looks at every tensor.
_SHARES = {_FLOAT: 1.0, _DYNAMIC: 0.6, _QDQ: 0.3}
#: Quantised by channel are weights of at most so many bytes: ONNX Runtime's tool takes some 0.1 ms a channel.
_MOST_BY_CHANNEL = 20_000_000
_WORDS, _IMAGES, _ALL = (_FLOAT, _DYNAMIC), (_FLOAT, _QDQ), (_FLOAT, _DYNAMIC, _FLOAT, _QDQ)
_KINDS = ("plain", "plain", "residual", "split", "dense", "shuffled")
_SMALL = ("HardSwish", "HardSwish", "Relu6", "Relu", "Silu", "PRelu")

#: What draws the models of each family, and the element types that these take by turns.
FAMILIES: Mapping[str, tuple[Draw, tuple[str, ...]]] = {
    "encoder": (sequences.encoder, _ALL),
    "decoder": (sequences.decoder, _WORDS),
    "encoder_decoder": (sequences.encoder_decoder, _WORDS),
    "vision_transformer": (sequences.vision_transformer, (_FLOAT, _QDQ, _FLOAT, _DYNAMIC)),
    "tagger": (sequences.tagger, _WORDS),
    "recurrent": (sequences.recurrent, _WORDS),
    "text_cnn": (sequences.text_cnn, _WORDS),
    "table": (sequences.tabular, _ALL),
    "wide_product": (sequences.wide_product, _WORDS),
    "audio": (convolutions.audio, _IMAGES),
    "vocoder": (convolutions.vocoder, (_FLOAT,)),
    "enhancer": (convolutions.enhancer, _IMAGES),
    "detector": (convolutions.detector, _IMAGES),
    "segmentation": (convolutions.segmentation, _IMAGES),
    "mobile_cnn": (partial(convolutions.classifier, kinds=("inverted", "inverted", "apart"), acts=_SMALL), _IMAGES),
    "cnn": (partial(convolutions.classifier, kinds=_KINDS, acts=("Relu", "Relu", "LeakyRelu", "Elu")), _IMAGES),
    "autoencoder": (convolutions.autoencoder, _IMAGES),
}


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """An exported model, `<family>_<number>_<elements>`, is drawn; its weights are when it is written.

    `elements` are `float32`; `dynamic`, eight bits whose scales are found in each run; or `qdq`, eight bits by calibration. The
    seed is that of its weights, and of how it is quantised.
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
        model, rng = seeded.whole(), np.random.default_rng(self.seed)
        by_channel = bool(rng.random() < 0.5) and 4 * self.exported.parameters < _MOST_BY_CHANNEL
        signed = QuantType.QInt8 if rng.random() < 0.5 else QuantType.QUInt8
        with tempfile.TemporaryDirectory() as folder:
            given = Path(folder) / "float.onnx"
            onnx.save(model, given)
            # the tool advises to prepare what people do not, and tells of each weight of a norm
            logging.disable(logging.WARNING)
            try:
                if self.elements == _DYNAMIC:  # ONNX Runtime has ConvInteger for unsigned weights alone
                    convolves = any(node.op_type == "Conv" for node in model.graph.node)
                    kind = QuantType.QUInt8 if convolves else signed
                    quantize_dynamic(given, path, per_channel=by_channel, weight_type=kind)
                else:
                    prepared = given.with_name("prepared.onnx")
                    kinds = {"activation_type": signed, "weight_type": QuantType.QInt8}
                    quant_pre_process(given, prepared, skip_symbolic_shape=True)
                    quantize_static(prepared, path, _Once(model), per_channel=by_channel, **kinds)
            finally:
                logging.disable(logging.NOTSET)
        return path


class _Once(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, model: onnx.ModelProto) -> None:
        self._left = [random_inputs(model)]

    def get_next(self) -> dict[str, npt.NDArray[np.generic]] | None:
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
            exported = _drawn(name, draw, entropy, _SHARES[elements])
            yield ExportedModel(name, family, elements, exported, zlib.crc32(repr(entropy).encode()))


def _drawn(name: str, draw: Draw, entropy: tuple[int, ...], share: float) -> Exported:
    """Draw a model again and again until it is not too large; after some times at half the batch."""
    batch, attempt = _BATCHES[int(np.random.default_rng(entropy).integers(len(_BATCHES)))], 0
    while True:
        rng = np.random.default_rng((*entropy, attempt))
        net = Net(name, rng, _OPSETS[int(rng.integers(len(_OPSETS)))], max(1, batch >> attempt // _ATTEMPTS), share)
        try:
            return net.build(draw(net))
        except TooLargeError:
            attempt += 1
