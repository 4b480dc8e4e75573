"""Stage `ladder`: predict a new device from so many seconds of measuring, cut out of kept rows."""

from __future__ import annotations

from pathlib import Path

from edgeplan.chapters.adaptation.kept import kept_devices
from edgeplan.chapters.adaptation.ladder import in_processes
from edgeplan.chapters.adaptation.settings import AdaptationParams
from edgeplan.errors import FormatError
from edgeplan.measurement.lock import after_measurements
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.scratch import ScratchFolder


def compute_ladder(params: AdaptationParams, *, kept: Path, ladder: Path, environment: Path) -> None:
    """Compute every rung of every kept device.

    Args:
        params: seed, adaptation.
        kept: folder of the devices.
        ladder: a row for each judged model, predictor, budget and draw.
        environment: processors of the devices.

    Raises:
        FormatError: a file does not fit, or fewer than two devices are kept.
    """
    devices = [device.about for device in kept_devices(kept)]
    if len(devices) < 2:
        raise FormatError(
            f"{len(devices)} device is kept, a ladder needs two",
            where=str(kept),
            next_step="name devices in adaptation.devices, or copy folders of devices that were measured elsewhere",
        )
    after_measurements()
    with ScratchFolder("ladder") as folder:
        found = in_processes(kept, [about.device for about in devices], params.adaptation, Path(folder))
    write_parquet(found, ladder)
    told = {about.device: about.model_dump(mode="json", exclude={"format_version", "plain_layouts"}) for about in devices}
    write_json(
        environment,
        {
            "devices": told,
            "cpu": "; ".join(sorted({about.cpu for about in devices})),
            "measured_at": max(a.measured_at for a in devices),
        },
    )
