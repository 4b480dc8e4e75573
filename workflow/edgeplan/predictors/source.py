"""Finds the predictors that answer for a device, and the machine that they were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from edgeplan.devices.config import load_device
from edgeplan.engines.registry import ENGINES, engine_class
from edgeplan.errors import DeviceError, FormatError, StoreError
from edgeplan.graph.fusion_rules import FusionRules, read_rules
from edgeplan.predictors.nodes.predictor import NodePredictor
from edgeplan.predictors.nodes.storing import load_predictor, own_folder, read_measured
from edgeplan.support.files import read_json
from edgeplan.support.machine import fingerprint
from edgeplan.workspace import DEVICE_NAME, SHIPPED, is_path, workspace

_CARD = "card.json"


class _Device(BaseModel):
    """Holds the options of a device, as far as `environment.json` is read."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    options: dict[str, str] = {}


class _Machine(BaseModel):
    """Describes the machine of a measurement, as far as `environment.json` is read."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    cpu: str = ""
    fingerprint: str = ""
    engine_version: str = ""
    nominal_compute_us: float = 0.0
    nominal_bandwidth_us: float = 0.0
    device: _Device = _Device()

    @property
    def nominal_us(self) -> tuple[float, float] | None:
        """Return what the references take there, if it is told."""
        found = (self.nominal_compute_us, self.nominal_bandwidth_us)
        return found if min(found) > 0 else None

    def processor_of(self, device: str, engine: str) -> str:
        """Return what computes on a device: the processor of the machine, or a GPU or a slice of one."""
        if engine not in ENGINES or not ENGINES[engine].gpu:
            return self.cpu
        name = " ".join(self.engine_version.split("+")[2:]).replace("_", " ") or f"the GPU of {device}"
        part = self.device.options.get("multiprocessors")
        return f"{name}, {part} multiprocessors" if part else name


class _Of(BaseModel):
    """Names the engine of a device, as far as `card.json` is read."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    engine: str = ""


@dataclass(frozen=True)
class Source:
    """Holds the predictors that answer for a device, and where they come from.

    Attributes:
        known: us of nodes that were measured there, by `NodeConfig.key`.
        processor: the CPU or the GPU that they were measured on; "" if nobody has noted it.
        nominal_us: what the references of the clock and of the memory take there; none where nobody has noted it.
    """

    device: str
    predictor: NodePredictor
    known: Mapping[str, float]
    rules: FusionRules
    shipped: bool
    processor: str
    here: bool
    nominal_us: tuple[float, float] | None = None
    scale: float = 1.0
    folder: Path = Path()

    def about(self) -> str:
        """Tell whose machine a prediction is for, as a line of text; "" where it is this one's, or nobody has noted whose."""
        if self.here or not (self.shipped or self.processor):
            return ""
        if self.scale != 1.0:
            return f"predicted for this machine: {self.scale:.2f} times that of {self.processor or 'another'}, by references"
        rows = f"rows of {self.predictor.measured_at}, {'shipped' if self.shipped else 'of this workspace'}"
        return f"predicted for {self.processor or 'another processor'} ({rows}), not for this machine"


def find_predictors(name_or_path: str, results: Path | None = None, *, engine: str = "") -> Source:
    """Find the predictors of a device: those of the workspace, else the shipped ones.

    `results` is a folder to look in, and nowhere else; a refusal names devices of one `engine` alone.
    """
    found = workspace()
    folder = results or found.results
    device = name_or_path
    if is_path(name_or_path) or not (DEVICE_NAME.fullmatch(device) and (folder / device).is_dir()):
        device = load_device(name_or_path).name  # says so where there is no such device at all
    own = folder / device
    if (own / "predictors" / _CARD).is_file():
        rules, environment = own / "fusion" / "rules.json", own / "evaluation" / "environment.json"
        return _source(device, own / "predictors", rules, environment, shipped=False)
    kept = SHIPPED / device
    if results is None and (kept / _CARD).is_file():
        return _source(device, kept, kept / "rules.json", kept / "environment.json", shipped=True)
    adapt = f"edgeplan device adapt {name_or_path}" + (f" --results {results}" if results else "")
    ways = [f"{adapt} (a minute),"] if _adaptable(name_or_path) else []
    raise _no_predictors(device, folder, engine, ways, checkout=(found.root / "Makefile").is_file())


def devices_with_predictors(results: Path, engine: str = "") -> list[str]:
    """List devices with predictors, those of a folder of results before shipped ones, of one engine or, without, of any."""
    cards = [(path.parent.parent.name, path) for path in sorted(results.glob(f"*/predictors/{_CARD}"))]
    cards += [(path.parent.name, path) for path in sorted(SHIPPED.glob(f"*/{_CARD}"))]
    return list(dict.fromkeys(name for name, path in cards if not engine or _engine(path) == engine))


def _engine(card: Path) -> str:
    """Return the engine that predictors are of; "" where their card does not say."""
    try:
        return read_json(card, _Of, "the card of the predictors").engine
    except FormatError:
        return ""


def _source(device: str, folder: Path, rules: Path, environment: Path, *, shipped: bool) -> Source:
    machine = read_json(environment, _Machine, "the environment of the rows") if environment.is_file() else _Machine()
    predictor = load_predictor(folder)
    own: Mapping[str, float] = {}
    try:
        here = machine.fingerprint == fingerprint()
        own = read_measured(own_folder(device, predictor.engine, predictor.engine_version))  # on the device that is asked for
    except StoreError:  # a machine without an id, and nowhere to keep one
        here = False
    processor = machine.processor_of(device, predictor.engine)
    known = {**read_measured(folder), **own}
    return Source(device, predictor, known, read_rules(rules), shipped, processor, here, machine.nominal_us, folder=folder)


def _adaptable(name_or_path: str) -> bool:
    """Tell whether `edgeplan device adapt` takes a device: one of this machine, whose engine is here and times its nodes."""
    try:
        device = load_device(name_or_path)
        return device.board is None and engine_class(device.engine).reports_nodes
    except DeviceError:
        return False


def _no_predictors(device: str, folder: Path, engine: str, ways: list[str], *, checkout: bool) -> FormatError:
    known = sorted(devices_with_predictors(folder, engine))
    measured = (folder / device / "measurements").is_dir()  # rows that came with a clone suffice: the predictors are in no git
    make = f"dvc repro training@{device}" if measured else f"make reproduce DEVICE={device}"
    ways = [
        *([] if measured else ways),
        make if checkout else f"{make}, in a checkout of edgeplan,",
        *([f"use one of: {', '.join(known)}"] if known else []),
    ]
    return FormatError(
        f"no predictors of device {device!r}",
        where=str(folder / device / "predictors"),
        next_step=" or ".join(ways).rstrip(","),
    )
