"""The row store of profiles: what was measured of a candidate, once for ever, for every model that has such a step.

A row is keyed by everything that decides it (library, instruction set, machine, cores, settings, measuring protocol) and by the
signature of the step and the candidate. The rows of one model and home layout are one part, written when it is measured: first
to a journal outside the workspace, then to the workspace, so an interrupted run loses at most one layout.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.devices.machine import fingerprint
from edgeplan.errors import FormatError
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.profiling.settings import Cores, ProfileSettings
from edgeplan.runtime.library import LibraryInfo
from edgeplan.support.files import read_json, state_folder, write_atomically, write_json
from edgeplan.support.protocols import protocol

FORMAT_VERSION = 1
_SCHEMA = pa.schema(
    [
        ("signature", pa.string()),
        ("implementation", pa.string()),
        ("position", pa.int32()),
        ("raw_bytes", pa.int64()),
        ("weight_bytes", pa.int64()),
        ("scratch_bytes", pa.int64()),
        ("samples_ms", pa.map_(pa.string(), pa.list_(pa.float32()))),
        ("measured_at", pa.float64()),
    ],
    metadata={"edgeplan_cold_rows": str(FORMAT_VERSION)},
)
_MAX_ROWS_PER_FILE = 2000
_NEXT_TO_NONE = 0.02
#: A stage of rows that is no time: the share of the other stages that have disturbed samples only; absent where none has.
NOISE = "noise"
#: Another one: the share of the processors' time that others had while the row was measured; absent where it was next to none.
OTHERS = "others"


class Constants(BaseModel):
    """Constants are measured once for a machine.

    Attributes:
        nominal_compute_us, nominal_bandwidth_us: usual times of the references; rows are normalised by them (`cold.clock`).
        touch_ms_per_page: first write to a page of a session's region.
        page_bytes: size of such a page.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    nominal_compute_us: Annotated[float, Field(gt=0)]
    nominal_bandwidth_us: Annotated[float, Field(gt=0)]
    touch_ms_per_page: Annotated[float, Field(ge=0)]
    page_bytes: Annotated[int, Field(gt=0)]

    @property
    def nominal(self) -> ReferenceTimes:
        """The references' times at nominal speed."""
        return ReferenceTimes(self.nominal_compute_us, self.nominal_bandwidth_us)

    @property
    def touch_ms_per_byte(self) -> float:
        """Return the cost in ms of the first touch of a byte, where many follow each other."""
        return self.touch_ms_per_page / self.page_bytes


class _Identity(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    format_version: Literal[1]
    constants: Constants


@dataclass(frozen=True, slots=True)
class Row:
    """A row holds the measured costs of one candidate of one step.

    Attributes:
        signature: of the step and its equals.
        implementation: the candidate's name.
        position: of the candidate among those offered.
        raw_bytes, weight_bytes, scratch_bytes: see `Sizes`.
        samples_ms: stage -> normalised times in ms. Stages: `read`, `create`, `transform` (from the model file), `cached_read`,
            `cached_mmap`, `create_again` and `transform_again` (of an equal step), each by core class as in `read:big`; `first`
            and `warm` executions by width, as in `first:1`. `start` and factors are of whole programs
            (`fresh_process_factors.py`, `contention.py`), `once` of kernels (`first_call_costs.py`), `NOISE` and `OTHERS` are
            no times.
        measured_at: seconds since the epoch.
    """

    signature: str
    implementation: str
    position: int
    raw_bytes: int
    weight_bytes: int
    scratch_bytes: int
    samples_ms: Mapping[str, Sequence[float]]
    measured_at: float

    @property
    def noise(self) -> float:
        """Share of what was measured that stayed disturbed, 0 to 1."""
        return max(self.samples_ms.get(NOISE, (0.0,)))

    @property
    def others(self) -> float:
        """Share of the processors' time that others had meanwhile, 0 to 1."""
        return max(self.samples_ms.get(OTHERS, (0.0,)))

    def beside(self, share: float) -> Row:
        """The same row, measured while others had a share of the processors' time."""
        if share <= _NEXT_TO_NONE:
            return self
        return replace(self, samples_ms={**self.samples_ms, OTHERS: (float(np.float32(share)),)})  # as rows are stored


def identity(info: LibraryInfo, settings: ProfileSettings, cores: Cores) -> dict[str, Any]:
    """Return the facts that decide a row besides its step and candidate."""
    return {
        "library": "onednn",
        "library_version": info.version,
        "library_commit": info.commit,
        "cpu_runtime": info.cpu_runtime,
        "isa": info.isa,
        "fingerprint": fingerprint(),
        "big_cores": list(cores.big),
        "measured_classes": cores.classes,
        "settings": settings.key_fields(),
        "sources": protocol("profile").name,
    }


def key_of(what: Mapping[str, Any]) -> str:
    """Compute the key of an identity."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def alternatives(folders: Iterable[Path], what: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Identities of stored rows that differ from one in the settings of the profile only, those of most blocks first.

    Raises:
        FormatError: a document does not fit.
    """

    def rest(identity: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in identity.items() if name != "settings"}

    paths = [path for folder in folders for path in sorted(folder.glob("*.json")) if len(path.stem) == len(key_of(what))]
    stored = [read_json(path, _Identity, "the identity of profile rows").model_extra or {} for path in paths]
    found = {key_of(one): dict(one) for one in stored if rest(one) == rest(what)}
    return tuple(sorted(found.values(), key=lambda one: (-one["settings"].get("blocks", 0), key_of(one))))


class ProfileStore:
    """A store holds the rows of one key.

    Args:
        folder: `data/rows/<device>/cold`; None keeps rows in memory only.
        what: the identity.
        shared: another folder whose rows of this key are read, e.g. those that the pipeline measured; nothing is written there.

    Raises:
        FormatError: a file of rows is damaged or foreign.
    """

    def __init__(self, folder: Path | None, what: Mapping[str, Any], shared: Path | None = None) -> None:
        self.folder, self.identity, self.key = folder, dict(what), key_of(what)
        self.measured = 0  # rows added by this process
        self._rows: dict[str, dict[str, Row]] = {}
        self._aside: dict[str, dict[str, Row]] = {}
        self._constants: Constants | None = None
        self._journal = None if folder is None else state_folder() / "journal" / f"{folder.parent.name}-cold"
        for place in self._places():
            for path in sorted(place.glob(f"{self.key}-*.parquet")):
                self._take(read_rows(path))
        self._own = set(self._rows)
        if shared is not None and (found := self._constants_in(shared)) and found == (self.constants() or found):
            # Rows normalised to another nominal speed do not mix: then the shared ones are left alone.
            self._constants = found
            for path in sorted(shared.glob(f"{self.key}-*.parquet")):
                self._take(row for row in read_rows(path) if row.signature not in self._own)

    def _places(self) -> list[Path]:
        return [place for place in (self.folder, self._journal) if place is not None]

    def _take(self, rows: Iterable[Row]) -> None:
        """Keep the less disturbed of two rows of one candidate, of equals the first."""
        for row in rows:
            known = self._rows.setdefault(row.signature, {})
            if row.implementation not in known or row.others < known[row.implementation].others:
                known[row.implementation] = row

    def set_aside(self, signatures: Iterable[str]) -> None:
        """Take steps as unknown, so that they are measured again.

        Their rows count where the new ones are more disturbed, and again from `merge` on where there are no new ones.
        """
        for signature in signatures:
            self._aside[signature] = self._rows.pop(signature, {})

    def known(self, signature: str) -> bool:
        """Tell whether a step was profiled, with all its candidates."""
        return signature in self._rows

    def rows(self, signature: str) -> tuple[Row, ...]:
        """The candidates of a step, in the library's order."""
        return tuple(sorted(self._rows[signature].values(), key=lambda row: row.position))

    def all_rows(self) -> tuple[Row, ...]:
        """Return every row of the store."""
        return tuple(row for signature in sorted(self._rows) for row in self.rows(signature))

    def constants(self) -> Constants | None:
        """Return the constants measured for all rows of this key; None without any.

        Raises:
            FormatError: the file does not fit.
        """
        found = (self._constants_in(place) for place in self._places())
        return next(filter(None, found), self._constants)

    def _constants_in(self, place: Path) -> Constants | None:
        path = place / f"{self.key}.json"
        return read_json(path, _Identity, "the identity of profile rows").constants if path.is_file() else None

    def keep_constants(self, constants: Constants) -> None:
        """Store what all rows of this key have in common.

        Raises:
            StoreError: it could not be written.
        """
        self._constants = constants
        for place in self._places():
            document = {"format_version": FORMAT_VERSION, **self.identity, "constants": constants.model_dump()}
            write_json(place / f"{self.key}.json", document)

    def add(self, rows: Sequence[Row]) -> None:
        """Store the rows of whole steps.

        Raises:
            StoreError: they could not be written.
        """
        if self._constants is not None and not any(self._constants_in(place) for place in self._places()):
            self.keep_constants(self._constants)  # they were another folder's: without them rows could not be read again
        self._own |= {row.signature for row in rows}
        name = hashlib.sha256("".join(sorted({row.signature for row in rows})).encode()).hexdigest()[:12]
        for place in reversed(self._places()):
            _write_rows(place / f"{self.key}-{name}.parquet", rows)
        self._take(rows)
        for signature in {row.signature for row in rows}:
            self._take(self._aside.pop(signature, {}).values())
        self.measured += len(rows)

    def merge(self) -> None:
        """Merge the parts in the workspace into few files; one that is full is never written again but for a better row."""
        for signature in [*self._aside]:
            self._take(self._aside.pop(signature).values())
        rows = tuple(row for row in self.all_rows() if row.signature in self._own)
        if self.folder is None or not rows:
            return
        old = set(self.folder.glob(f"{self.key}-*.parquet"))
        counts = {path: pq.read_metadata(path).num_rows for path in old}
        merged = [self.folder / f"{self.key}-rows-{i:03d}.parquet" for i in range(-(-len(rows) // _MAX_ROWS_PER_FILE))]
        if old == set(merged) and sum(counts.values()) == len(rows):
            return
        current = {(row.signature, row.implementation, row.measured_at) for row in rows}
        stored = set[tuple[str, str, float]]()
        full = []
        for path in merged:
            if counts.get(path) == _MAX_ROWS_PER_FILE:
                inside = {(row.signature, row.implementation, row.measured_at) for row in read_rows(path)}
                if inside <= current:  # none was measured again since
                    full.append(path)
                    stored |= inside
        rest = [row for row in rows if (row.signature, row.implementation, row.measured_at) not in stored]
        open_files = [path for path in merged if path not in full]
        for i, path in enumerate(open_files):
            _write_rows(path, rest[i * _MAX_ROWS_PER_FILE : (i + 1) * _MAX_ROWS_PER_FILE])
        for path in old - set(merged):
            path.unlink()


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    records = [asdict(row) | {"samples_ms": list(row.samples_ms.items())} for row in rows]
    table = pa.Table.from_pylist(records, schema=_SCHEMA)
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def read_rows(path: Path) -> list[Row]:
    """Rows of one Parquet file.

    Raises:
        FormatError: not Parquet, truncated, or of another format.
    """
    again = "delete the file: its rows are measured again"
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise FormatError(f"not a readable file of profile rows: {error}", where=str(path), next_step=again) from error
    version = (table.schema.metadata or {}).get(b"edgeplan_cold_rows", b"none").decode()
    if version != str(FORMAT_VERSION) or table.schema.names != _SCHEMA.names:
        what = f"profile rows of format version {version}, expected {FORMAT_VERSION}"
        raise FormatError(what, where=str(path), next_step=again)
    return [Row(**{**record, "samples_ms": dict(record["samples_ms"])}) for record in table.to_pylist()]
