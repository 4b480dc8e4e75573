"""A device's measurements are kept in one folder, from whichever machine: `data/transfer/<device>`.

The folder has all that the ladder of budgets needs: labelled kernels with the seconds that each carrier took, whole models,
fusion rules, and what engine and processor they are of. It is read like any other file of a user: columns and values are
checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import FusionRules, read_rules
from edgeplan.graph.ir import Graph
from edgeplan.graph.simplify import simplify
from edgeplan.graph.splitting import split
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels, kernel_table
from edgeplan.support.files import read_json
from edgeplan.support.frames import read_parquet
from edgeplan.zoo import VariantSpec, build_variant
from edgeplan.zoo.unseen import UNSEEN

KERNELS, CARRIERS, MODELS, ABOUT, RULES = "kernels.parquet", "carriers.parquet", "models.parquet", "about.json", "rules.json"
#: What a whole model is measured for.
CALIBRATING, VARIANT, UNSEEN_MODEL = "calibrating", "variant", "unseen"
_KERNEL_COLUMNS = (
    *("subject", "sampler", "kind", "config", "implementation", "input_state", "input_layout", "output_layout"),
    *("latency_us", "noise"),
)
_MODEL_COLUMNS = ("model_id", "family", "use", "spec", "measured_ms", "seconds")


class About(BaseModel):
    """Records the origin of a device's rows: engine, processor, and constants of its counters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1]
    device: str
    engine: str
    engine_version: str
    threads: Annotated[int, Field(ge=1, le=1024)]
    cpu: str
    cpu_family_model: str
    fingerprint: str
    measured_at: str
    call_us: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    plain_layouts: dict[str, str]


@dataclass(frozen=True)
class KeptDevice:
    """Holds the measurements of a device.

    Attributes:
        about: the origin of the rows.
        kernels: labelled kernels, a row each.
        carriers: seconds that each measured carrier took, by its subject.
        models: whole models, a row each.
        rules: fusion rules of the engine.
    """

    about: About
    kernels: pd.DataFrame
    carriers: pd.Series
    models: pd.DataFrame
    rules: FusionRules

    @staticmethod
    def read(folder: Path) -> KeptDevice:
        """Read the folder of one device, and check it.

        Raises:
            FormatError: a file is missing or damaged, or holds values that no measurement gives.
        """
        about = read_json(folder / ABOUT, About, "the origin of a device's rows")
        kernels = read_parquet(folder / KERNELS, *_KERNEL_COLUMNS)
        carriers = read_parquet(folder / CARRIERS, "subject", "seconds")
        models = read_parquet(folder / MODELS, *_MODEL_COLUMNS)
        seconds = carriers.set_index("subject")["seconds"].astype(float)
        for values, path in (
            (kernels["latency_us"], KERNELS),
            (seconds, CARRIERS),
            (models["measured_ms"], MODELS),
            (models["seconds"], MODELS),
        ):
            if not len(values) or not (np.isfinite(values) & (values > 0)).all():
                raise FormatError(
                    "a time is missing, not finite or not above zero", where=str(folder / path), next_step=_again(about.device)
                )
        if set(kernels["subject"]) - set(seconds.index) or seconds.index.has_duplicates:
            raise FormatError(
                "kernels and carriers do not belong together", where=str(folder / CARRIERS), next_step=_again(about.device)
            )
        unknown = sorted(set(models.loc[models["use"] == UNSEEN_MODEL, "model_id"]) - set(UNSEEN))
        if unknown or set(models["use"]) - {CALIBRATING, VARIANT, UNSEEN_MODEL}:
            what = f"no architecture {unknown[0]!r} is known" if unknown else "a model is measured for an unknown use"
            raise FormatError(what, where=str(folder / MODELS), next_step=_again(about.device))
        return KeptDevice(about, kernels, seconds.loc[kernels["subject"].unique()], models, read_rules(folder / RULES))

    def of(self, use: str) -> pd.DataFrame:
        """Return the whole models that are measured for a use."""
        return self.models[self.models["use"] == use].reset_index(drop=True)

    @cached_property
    def calibrating(self) -> pd.DataFrame:
        """Return whole models that factors and intervals may be taken from."""
        return self.of(CALIBRATING)


def model_kernels(models: pd.DataFrame, rules: FusionRules) -> list[ModelKernels]:
    """Return the kernels of whole models (`use`, `model_id`, `spec`), split by rules."""
    found = []
    for use, model_id, spec in zip(models["use"], models["model_id"], models["spec"], strict=True):
        graph = simplify(UNSEEN[model_id](model_id) if use == UNSEEN_MODEL else build_variant(VariantSpec.from_json(spec)))
        named = Graph(model_id, graph.operators, graph.inputs, graph.outputs, graph.tensors)
        found.append(kernel_table(named, split(named, rules)))
    return found


def tables_of(kernels: list[ModelKernels], chosen: npt.NDArray[np.int64] | None = None) -> KernelTables:
    """Return the kernel tables of some models; all without a choice."""
    return KernelTables.of(kernels if chosen is None else [kernels[i] for i in chosen])


def kept_devices(folder: Path) -> list[KeptDevice]:
    """Read every device in a folder of devices, by name.

    Raises:
        FormatError: a file does not fit, or two folders are of one device on one machine.
    """
    found: dict[tuple[str, str], KeptDevice] = {}
    for path in sorted(folder.glob(f"*/{ABOUT}")):
        device = KeptDevice.read(path.parent)
        if device.about.device != path.parent.name:
            raise FormatError(
                f"the rows are of device {device.about.device}",
                where=str(path.parent),
                next_step="name the folder as the device",
            )
        key = (device.about.device, device.about.fingerprint)
        found[key] = device
    return list(found.values())


def _again(device: str) -> str:
    return f"edgeplan stage adaptation_rows --device {device}, or copy the folder again from where it was measured"
