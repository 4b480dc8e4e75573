"""OpenVINO with its weights mapped: its own format of models, f32, whose file of weights stays pages of the page cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeplan.engines.cold import Artefact
from edgeplan.engines.openvino.cold import OpenVinoBaseline


class OpenVinoMapped(OpenVinoBaseline):
    """This setting opens a model in OpenVINO's own format, which it maps, and still packs what its kernels want packed."""

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        del inputs, threads
        found, weights = folder / "mapped.xml", folder / "mapped.bin"
        self._ov.save_model(self._core.read_model(str(model)), str(found), compress_to_fp16=False)
        return Artefact(main=found, files=(found, weights), companions={"weights": weights})

    def _config(self, threads: int) -> dict[str, Any]:
        return super()._config(threads) | {"ENABLE_MMAP": True}
