"""Measures on a bench what the row store does not hold yet; rows of Parquet files hold each measurement once, for ever.

A row is keyed by everything that decides it (engine and version, device settings, measuring settings, machine fingerprint,
measuring protocol) and by its subject and sample. Of two rows of a subject the newer one counts.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import astuple, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from edgeplan.devices.config import DeviceFile
from edgeplan.engines.base import EngineNode
from edgeplan.engines.registry import engine_protocol
from edgeplan.errors import DeviceError, FormatError, ModelError, NoiseError, StoreError
from edgeplan.measurement.board.client import BoardMeasurer
from edgeplan.measurement.local import Local
from edgeplan.measurement.records import COLUMNS, AnySubject, Batch, Measurement, Measurer
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.measurement.settings import MeasurementSettings, ReferenceExponents, TimeBudget
from edgeplan.progress import BudgetProgress, progress
from edgeplan.support.cpus import calmer
from edgeplan.support.files import read_json, state_folder, write_atomically, write_json
from edgeplan.support.machine import NOT_RECORDED, last_cache_bytes, source_commit
from edgeplan.support.store import (
    FORMAT_VERSION,
    STORED_ROWS_ONLY,
    FileFormat,
    KeyedStore,
    identity_file,
    journal_of,
    key_of,
    stored_rows_only,
)

_FLOATS, _TIMES = pa.list_(pa.float32()), COLUMNS[:-1]
_SCHEMA = pa.schema(
    [
        ("subject", pa.string()),
        ("sample", pa.int32()),
        *((name, _FLOATS) for name in _TIMES),
        ("measured_at", pa.list_(pa.float64())),
        ("nodes", pa.list_(pa.string())),
        ("node_us", _FLOATS),
        ("seconds", pa.float32()),
    ],
    metadata={"edgeplan_rows": str(FORMAT_VERSION)},
)
_MAX_ROWS_PER_FILE = 2000
#: Subject and sample, and what was measured of them.
RowStore = KeyedStore[tuple[str, int], Mapping[str, Any]]


def row_store(folder: Path, key: str, identity: Mapping[str, Any]) -> RowStore:
    """Open the store of the measurements of one set-up, in a folder (`data/rows/<device>/<stage>`) shared with others."""

    def read(path: Path) -> dict[tuple[str, int], Mapping[str, Any]]:
        return {(row["subject"], row["sample"]): row for row in read_rows(path)}

    def write(path: Path, rows: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
        table = pa.Table.from_pylist([dict(row) for row in rows.values()], schema=_SCHEMA)
        write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd", compression_level=9))

    def newer(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
        return new if new["measured_at"][0] > old["measured_at"][0] else old

    return KeyedStore(folder, FileFormat(read, write, newer, _MAX_ROWS_PER_FILE), key, identity, journal_of(folder.name))


def measurement_of(row: Mapping[str, Any], nominal: ReferenceTimes, exponents: ReferenceExponents) -> Measurement:
    """Make a measurement of a stored row, normalised as asked."""
    nodes = tuple(EngineNode(**{**json.loads(n), "members": tuple(json.loads(n)["members"])}) for n in row["nodes"])
    blocks = len(row["least_us"])
    return Measurement(
        subject=row["subject"],
        sample=row["sample"],
        nodes=nodes,
        node_us=np.array(row["node_us"], dtype=np.float64).reshape(blocks, len(nodes)),
        nominal=nominal,
        exponents=exponents,
        seconds=float(row["seconds"]),
        **{name: np.array(row[name], dtype=np.float64) for name in COLUMNS},
    )


def row_of(m: Measurement) -> dict[str, Any]:
    """Make the row of a measurement, rounded as the file rounds: a resumed run computes from the same numbers."""
    nodes = [json.dumps({f: getattr(n, f) for f in EngineNode.__slots__}, separators=(",", ":")) for n in m.nodes]
    return {
        "subject": m.subject,
        "sample": m.sample,
        **{name: getattr(m, name).astype(np.float32) for name in _TIMES},
        "measured_at": m.measured_at,
        "nodes": nodes,
        "node_us": m.node_us.ravel().astype(np.float32),
        "seconds": np.float32(m.seconds),
    }


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of one Parquet file."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise FormatError(
            f"not a readable row file: {error}", where=str(path), next_step="restore it: git checkout or dvc pull"
        ) from error
    version = (table.schema.metadata or {}).get(b"edgeplan_rows", b"none").decode()
    if version != str(FORMAT_VERSION):
        raise FormatError(
            f"rows of format version {version}, expected {FORMAT_VERSION}",
            where=str(path),
            next_step="use the edgeplan that wrote it, or move the file away and measure again",
        )
    return list(table.to_pylist())


#: Time for coming back to noisy subjects, as a share of that of the first look at all.
COMING_BACK = 0.35
#: The share of noisy ones among fewer subjects than these says nothing of the machine.
_FEW = 16


class NoisePolicy:
    """A policy decides, over a stage on a device, which measurements are kept."""

    def __init__(self, settings: MeasurementSettings, device: str) -> None:
        self._settings, self._device = settings, device
        self._seen, self._noisy = 0, dict[str, Measurement]()  # measured in this stage, and noisy still

    def is_noisy(self, subject: str) -> bool:
        """Tell whether a subject, by its id in the store, is noisy still."""
        return subject in self._noisy

    def first(self, measured: Sequence[Measurement]) -> tuple[list[Measurement], set[str]]:
        """Take note of first looks at subjects; gives what is kept of them, and the ids of the noisy ones."""
        loud = {m.subject: m for m in measured if m.noise > self._settings.max_noise}
        self._noisy |= loud
        self._seen += len(measured)
        return [m for m in measured if self._settings.on_noise == "keep" or m.subject not in loud], set(loud)

    def again(self, measured: Sequence[Measurement]) -> list[Measurement]:
        """Take note of further looks at noisy subjects, the less noisy look at each counts; gives what is kept of them."""
        better = []
        for new in measured:
            old = self._noisy[new.subject]
            best = replace(min(new, old, key=lambda m: m.noise), seconds=new.seconds + old.seconds)
            self._noisy[best.subject] = best
            better.append(best)
        quiet = [m for m in better if m.noise <= self._settings.max_noise]
        for m in quiet:
            del self._noisy[m.subject]
        return better if self._settings.on_noise == "keep" else quiet

    @property
    def _share(self) -> float:
        return len(self._noisy) / self._seen

    @property
    def _spread(self) -> str:
        return f"{100 * self._share:.0f} % of {self._seen} subjects spread by more than {100 * self._settings.max_noise:.0f} %"

    def tell(self) -> None:
        """Say once, at a stage's end, how much was kept that stayed noisy."""
        if self._noisy and self._settings.on_noise == "keep":
            log.warning("%s: they are kept with their noise, which weighs them and widens intervals", self._spread)

    def judge(self) -> list[Measurement]:
        """Say how much of what is refused stayed noisy; gives what of that is kept now."""
        if not self._noisy or self._settings.on_noise == "keep":
            return []
        share, limit, spread = self._share, self._settings.max_noisy_share, self._spread
        if self._seen < _FEW:  # chance decides the share of so few
            log.warning("%s: too few to judge by, they are kept", spread)
        elif share > limit:
            raise NoiseError(
                f"the machine is too noisy to measure: {spread} after {self._settings.retries} returns to them",
                where=f"device {self._device!r}",
                next_step=f"{calmer()}, check with: edgeplan device check {self._device}; or keep noisy figures, with "
                "their noise stated: measurement.on_noise=keep",
            )
        return list(self._noisy.values())


log = logging.getLogger(__name__)
#: What the environment of rows says about the time they were measured at. It is no part of their key.
_CONDITIONS = ("affinity", "load_1min")
#: Share by which references of a card may differ from those of the card that rows were begun on.
_ALIKE = 0.1


class _Identity(BaseModel):
    model_config = ConfigDict(extra="allow")

    format_version: Literal[1]
    nominal_compute_us: float
    nominal_bandwidth_us: float
    sources: str = ""


def _recorded(*identities: Path) -> dict[str, Any]:
    """Return the conditions and commits that rows, here and in the journal, were measured under; old ones do not say."""
    told = [json.loads(path.read_text()).get("environment", {}) if path.is_file() else None for path in identities]
    known = told[0] or {}
    commits = {commit for one in told if one is not None for commit in one.get("commits") or [NOT_RECORDED]}
    conditions = {name: NOT_RECORDED if known.get(name) is None else known[name] for name in _CONDITIONS}
    return {**conditions, "commits": sorted(commits)}


def row_key(
    device: DeviceFile, settings: MeasurementSettings, version: str, machine: str, measured_by: str
) -> tuple[str, dict[str, Any]]:
    """Return the key of a device's rows on a machine, by its fingerprint, and what the key is made of."""
    identity: dict[str, Any] = {
        "engine": device.engine,
        "engine_version": version,
        "device": device.model_dump(mode="json", include={"name", "threads", "cores", "options"}),
        "measurement": settings.key_fields(),
        "fingerprint": machine,
        "sources": measured_by,
    }
    return key_of(identity), identity


class Bench:
    """A bench measures subjects on a device, each only once.

    `rows` is the folder of the device's row store; `quiet_seconds` says for how long the references are timed alone, where no
    stored row tells how fast they are.
    """

    def __init__(
        self,
        device: DeviceFile,
        settings: MeasurementSettings,
        rows: Path,
        measurer: Measurer | None = None,
        *,
        quiet_seconds: float | None = None,
    ) -> None:
        self.device, self.settings, self._quiet_seconds = device, settings, quiet_seconds
        self.seconds = 0.0  # wall clock spent measuring, with model building, references and rejected batches
        self.measured = 0
        self.spending: BudgetProgress | None = None  # of a stage that shows its own progress: measuring time is added to it
        self._protocol = engine_protocol("measure", device.engine)
        self._mapping = engine_protocol("mapping", device.engine).name
        self._frozen = stored_rows_only()
        self.measurer: Measurer = measurer or (Local(device) if device.board is None else BoardMeasurer(device))
        self._budget, self._noise = TimeBudget(), NoisePolicy(settings, device.name)
        key, identity = self._shipped(rows) if self._frozen else self._identify()
        self._commit = "" if self._frozen else source_commit()
        self.nominal = self._nominal(rows, key, identity)
        if "machine" in identity.get("environment", {}) and not self._frozen:
            self._require_alike(rows)
        identity |= {"nominal_compute_us": self.nominal.compute_us, "nominal_bandwidth_us": self.nominal.bandwidth_us}
        if not self._frozen:
            write_json(identity_file(state_folder() / "identities", key), {"format_version": FORMAT_VERSION, **identity})
        told = [identity_file(folder, key) for folder in (rows, journal_of(rows.name))]
        self.identity = identity | {"environment": {**identity.get("environment", {}), **_recorded(*told)}}
        self.store = row_store(rows, key, self.identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.measurer.close()
        self._noise.tell()
        if not self._frozen:
            self.store.merge()

    def _identify(self) -> tuple[str, dict[str, Any]]:
        facts = self.measurer.describe()
        key, identity = row_key(self.device, self.settings, facts.engine_version, facts.fingerprint, self._protocol.name)
        return key, {**identity, "environment": dict(facts.environment)}

    def _shipped(self, rows: Path) -> tuple[str, dict[str, Any]]:
        """Return the one key of the store whose rows tables may be built from, whatever machine measured them."""
        found = {p.stem: read_json(p, _Identity, "identity of rows") for p in rows.glob("*.json")}
        usable = {key: identity for key, identity in found.items() if identity.sources in self._protocol.readable}
        if len(usable) != 1:
            others = f" (and {len(found) - len(usable)} by other protocols)" if len(found) > len(usable) else ""
            raise StoreError(
                f"expected the rows of one measuring set-up, found {len(usable)}{others}",
                where=str(rows),
                next_step=f"unset {STORED_ROWS_ONLY} to measure here, or remove all files but those of the shipped rows: "
                f"git stash --include-untracked -- {rows}",
            )
        ((key, identity),) = usable.items()
        return key, identity.model_dump(exclude={"format_version"})

    def _nominal(self, rows: Path, key: str, identity: Mapping[str, Any]) -> ReferenceTimes:
        """Return the times of the references on this machine when it is quiet: stored with rows of this key, else measured now.

        Every stage of a device must divide by the same times, or labels and whole models would not be comparable.
        """
        if "nominal_compute_us" in identity:
            return ReferenceTimes(float(identity["nominal_compute_us"]), float(identity["nominal_bandwidth_us"]))
        stored = [
            identity_file(rows, key),
            *sorted(rows.parent.glob(f"*/{key}.json")),
            identity_file(state_folder() / "identities", key),
        ]
        for path in stored:
            if path.is_file():
                known = read_json(path, _Identity, "identity of rows")
                return ReferenceTimes(known.nominal_compute_us, known.nominal_bandwidth_us)
        return self.measurer.nominal(self.settings.reference_runs, self._quiet_seconds)

    def _require_alike(self, rows: Path) -> None:
        """Refuse to add to rows that another card was measured for, whatever its name."""
        now = self.measurer.nominal(self.settings.reference_runs, self._quiet_seconds)
        for load, known, took in zip(("compute", "bandwidth"), astuple(self.nominal), astuple(now), strict=True):
            if abs(took / known - 1) > _ALIKE:
                raise DeviceError(
                    f"the {load} reference takes {took:.0f} us here and took {known:.0f} us where its rows were begun",
                    where=f"{rows}, device {self.device.name!r}",
                    next_step="leave `fingerprint` out of the device file and measure all rows on this card",
                )

    def has(self, subject: AnySubject) -> bool:
        """Tell whether a subject was measured before."""
        return self.store.has((self._stored_id(subject), 0))

    @property
    def cache_bytes(self) -> int:
        """Return the size of the last cache of the machine that the rows are of."""
        return last_cache_bytes(self.identity["environment"].get("caches", ()))

    def last_measured_at(self) -> float:
        """Return when the newest row of the store was measured, seconds since the epoch; 0 for an empty store."""
        return max((max(row["measured_at"]) for row in self.store.query().values()), default=0.0)

    def measure(self, subjects: Sequence[AnySubject], repeat: int = 0, description: str = "measuring") -> list[Measurement]:
        """Return measurements of the subjects, in order; only missing ones touch the device, duplicates once.

        Noise ends nothing: what is noisy is come back to, and kept as noisy as it stays. Only where
        `settings.on_noise` refuses it, a stage that stays noisy as a whole ends. `repeat` is 0 for the first
        measurement of a subject; k asks for a k-th, measured afresh.
        """
        self._measure(subjects, repeat, description, least=len(subjects))
        if refused := [s for s in subjects if not self.store.has((self._stored_id(s), repeat))]:
            raise ModelError(
                f"{self.device.engine} refuses {len(refused)} of {len(subjects)} nodes",
                where=f"device {self.device.name!r}",
                next_step="see above for why; leave them out",
            )
        return [self._known(s, repeat) for s in subjects]

    def measure_in_time(
        self, subjects: Sequence[AnySubject], repeat: int = 0, description: str = "measuring", *, some: bool = True
    ) -> list[Measurement | None]:
        """Measure as `measure` does, but leave out, as None, what is not reached within `limit`, and nodes that are refused.

        `some`: measure a batch even if the time is over; without, only if nothing was measured before.
        """
        self._measure(subjects, repeat, description, least=1 if some or not self.measured else 0)
        return [self._known(s, repeat) if self.store.has((self._stored_id(s), repeat)) else None for s in subjects]

    def _measure(self, subjects: Sequence[AnySubject], repeat: int, description: str, *, least: int) -> None:
        distinct = {s.id: s for s in subjects}
        missing = [s for s in distinct.values() if not self.store.has((self._stored_id(s), repeat))]
        if self.spending:  # that of stored rows counts, too: it will not be spent again
            stored = [s for s in distinct.values() if s not in missing]
            self.spending.add(sum(self._known(s, repeat).seconds for s in stored))
        if not missing:
            return
        if self._frozen:
            if least < len(subjects) and (repeat or len(missing) < len(distinct)):
                return  # they were left out when the others were measured
            raise StoreError(
                f"{len(missing)} measurements are not in the store",
                where=str(self.store.folder),
                next_step=f"unset {STORED_ROWS_ONLY} to measure them on this machine",
            )
        kept = self.measurer.kept(self._batch(missing, repeat, self.settings))
        if self.settings.on_noise == "refuse":
            kept = [m for m in kept if m.noise <= self.settings.max_noise]
        if kept:
            self._keep(kept)
            self._tell_spent(sum(m.seconds for m in kept))
            missing = [s for s in missing if not self.store.has((self._stored_id(s), repeat))]
            if not missing:
                return
        began = time.monotonic()
        bar = progress(f"{self.device.name}: {description}", len(missing))
        with self.measurer.held(), nullcontext(lambda _: None) if self.spending else bar as advance:  # one bar is enough
            self._measure_missing(missing, repeat, advance, least)
        self.seconds += time.monotonic() - began

    def _known(self, subject: AnySubject, repeat: int) -> Measurement:
        row = self.store.query()[self._stored_id(subject), repeat]
        return measurement_of(row, self.nominal, self.settings.reference_exponents)

    def _measure_missing(self, missing: Sequence[AnySubject], repeat: int, advance: Callable[[int], None], least: int) -> None:
        """Measure subjects batch by batch, at least so many, then come back to the noisy ones while there is time."""
        began, left, noisy = time.monotonic(), len(missing), list[AnySubject]()
        for batch in self._batches(missing):
            if self.late and len(missing) - left >= least:
                log.warning("the time for this stage is over: %d of %d subjects are left out", left, len(missing))
                break
            measured = self._measure_batch(batch, repeat, self._hurried(began, len(missing) - left, left))
            kept, loud = self._noise.first(measured)
            noisy += [s for s in batch if self._stored_id(s) in loud]
            self._keep(kept)
            left -= len(batch)
            self.measured += len(measured)
            self._tell_spent(sum(m.seconds for m in measured))
            advance(len(batch))
        until = began + (1 + COMING_BACK) * (time.monotonic() - began)
        for _ in range(self.settings.retries):
            noisy = self._come_back(noisy, repeat, until)
        if remaining := self._noise.judge():
            self._keep(remaining)

    def _come_back(self, noisy: Sequence[AnySubject], repeat: int, until: float) -> list[AnySubject]:
        """Measure noisy subjects once more, while there is time; the less noisy measurement stays. Return the noisy still."""
        still: list[AnySubject] = []
        for batch in self._batches(noisy):
            if time.monotonic() > until or self.late:
                still += batch
                continue
            measured = self._measure_batch(batch, repeat, self.settings)
            self._tell_spent(sum(m.seconds for m in measured))
            kept = self._noise.again(measured)
            still += [s for s in batch if self._noise.is_noisy(self._stored_id(s))]
            self._keep(kept)
        return still

    def _keep(self, measured: Sequence[Measurement]) -> None:
        self._observe()
        if measured:
            self.store.commit({(m.subject, m.sample): row_of(m) for m in measured})

    def _tell_spent(self, seconds: float) -> None:
        if self.spending:
            self.spending.add(seconds)

    @property
    def late(self) -> bool:
        """Tell whether the time for this stage is over."""
        return self._budget.over

    def limit(self, seconds: float) -> None:
        """Measure for about so many seconds from now by the clock; 0 sets no limit."""
        self._budget = TimeBudget.of(seconds)

    def _hurried(self, began: float, done: int, left: int) -> MeasurementSettings:
        """Return the settings, without further blocks and pauses where the rest would not fit into the time left."""
        each = (time.monotonic() - began) / max(done, 1)
        if each * left < self._budget.left_s:
            return self.settings
        return self.settings.model_copy(update={"extra_blocks": 0, "min_gap_seconds": 0.0})

    def _observe(self) -> None:
        """Note on what cores a batch ran and by which commit; widen the range of the load seen at the end of each.

        Rows stored before commits were noted count as "not recorded".
        """
        before, now = self.identity["environment"], self.measurer.conditions()
        load, seen = now.load_1min, before["load_1min"]
        if not isinstance(seen, Mapping):
            seen = {"least": load, "most": load, "batches": 0}
        seen = {"least": min(load, seen["least"]), "most": max(load, seen["most"]), "batches": seen["batches"] + 1}
        commits = sorted({*before["commits"], self._commit})
        conditions = {"affinity": list(now.affinity), "load_1min": seen, "commits": commits}
        self.identity = self.store.identity = {**self.identity, "environment": {**before, **conditions}}

    def _stored_id(self, subject: AnySubject) -> str:
        """Return the id of a subject in the store: that of a profiled one names the protocol by which its nodes were mapped."""
        return f"{subject.id}-{self._mapping}" if subject.profiled else subject.id

    def _batches(self, subjects: Sequence[AnySubject]) -> Iterator[list[AnySubject]]:
        batch: list[AnySubject] = []
        weight = 0
        for subject in subjects:
            too_heavy = weight + subject.weight_bytes > self.settings.batch_weight_mb * 1_000_000
            if batch and (len(batch) >= self.settings.batch_size or too_heavy):
                yield batch
                batch, weight = [], 0
            batch.append(subject)
            weight += subject.weight_bytes
        if batch:
            yield batch

    def _measure_batch(self, batch: Sequence[AnySubject], sample: int, settings: MeasurementSettings) -> list[Measurement]:
        return self.measurer.measure(self._batch(batch, sample, settings))

    def _batch(self, subjects: Sequence[AnySubject], sample: int, settings: MeasurementSettings) -> Batch:
        names = tuple(map(self._stored_id, subjects))
        return Batch(self.store.key, tuple(subjects), names, sample, settings, self.nominal)
