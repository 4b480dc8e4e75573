"""Stores the rows of profiles: what was measured of a candidate, once for ever, for every model that has such a step.

A row is keyed by everything that decides it (library, instruction set, machine, cores, settings, measuring protocol) and by the
signature of the step and the candidate. The rows of one model and home layout are one part, written when it is measured: first
to a journal outside the workspace, then to the workspace, so an interrupted run loses at most one layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.errors import FormatError
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.profiling.settings import Cores, ProfileSettings
from edgeplan.runtime.library import LibraryInfo
from edgeplan.support.files import read_json, write_atomically
from edgeplan.support.machine import fingerprint
from edgeplan.support.store import FORMAT_VERSION, FileFormat, KeyedStore, Protocol, identity_file, journal_of, key_of

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
#: Since 3 sessions are native, and raw weights are transformed without the interpreter.
PROTOCOL = Protocol("profile/3", ("aeed753171347bb1",))
_MAX_STEPS_PER_FILE = 200
_NEXT_TO_NONE = 0.02
#: A stage of rows that is no time: the share of the other stages that have disturbed samples only; absent where none has.
NOISE = "noise"
#: Another one: the share of the processors' time that others had while the row was measured; absent where it was next to none.
OTHERS = "others"


class Constants(BaseModel):
    """Constants are measured once for a machine.

    Attributes:
        nominal_compute_us, nominal_bandwidth_us: usual times of the references; rows are normalised by them
            (`measurement.process.interference`).
        touch_ms_per_page: first write to a page of a session's region.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    nominal_compute_us: Annotated[float, Field(gt=0)]
    nominal_bandwidth_us: Annotated[float, Field(gt=0)]
    touch_ms_per_page: Annotated[float, Field(ge=0)]
    page_bytes: Annotated[int, Field(gt=0)]

    @property
    def nominal(self) -> ReferenceTimes:
        """Return the references' times at nominal speed."""
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
    """A row holds the samples of one candidate of one step.

    Attributes:
        samples_ms: stage -> normalised times in ms. Stages: `read`, `create`, `transform` (from the model file; the first and
            the last not of weights that are always cached), `cached_read`, `cached_mmap`, `create_again` and `transform_again`
            (of an equal step), each by core class as in `read:big`; `first` and `warm` executions by width, as in `first:1`.
            `start` and factors are of whole programs (`fresh_process_factors.py`, `contention.py`), `once` of kernels
            (`profiles.py`), `NOISE` and `OTHERS` are no times.
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
        """Return the share of what was measured that stayed disturbed, 0 to 1."""
        return max(self.samples_ms.get(NOISE, (0.0,)))

    @property
    def others(self) -> float:
        """Return the share of the processors' time that others had meanwhile, 0 to 1."""
        return max(self.samples_ms.get(OTHERS, (0.0,)))

    def beside(self, share: float) -> Row:
        """Return the same row, measured while others had a share of the processors' time."""
        if share <= _NEXT_TO_NONE:
            return self
        return replace(self, samples_ms={**self.samples_ms, OTHERS: (float(np.float32(share)),)})  # as rows are stored


def identity(info: LibraryInfo, settings: ProfileSettings, cores: Cores) -> dict[str, Any]:
    """Return everything that decides a row besides its step and candidate."""
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
        "sources": PROTOCOL.name,
    }


def alternatives(folders: Iterable[Path], what: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return identities of stored rows that differ from one in the settings of the profile only, those of most blocks first."""

    def rest(identity: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in identity.items() if name != "settings"}

    paths = [path for folder in folders for path in sorted(folder.glob("*.json")) if len(path.stem) == len(key_of(what))]
    stored = [read_json(path, _Identity, "the identity of profile rows").model_extra or {} for path in paths]
    found = {key_of(one): dict(one) for one in stored if rest(one) == rest(what)}
    return tuple(sorted(found.values(), key=lambda one: (-one["settings"].get("blocks", 0), key_of(one))))


class ProfileStore(KeyedStore[str, tuple[Row, ...]]):
    """A store holds the rows of one key by step: a value is the candidates of a step, in the library's order.

    Of two rows of one candidate the less disturbed one counts, of equals the first. Without a folder rows are kept in memory;
    those of this key in a `shared` folder, e.g. that of the pipeline, are read, and nothing is written there.
    """

    def __init__(self, folder: Path | None, what: Mapping[str, Any], shared: Path | None = None) -> None:
        self.measured = 0  # rows added by this process
        self._what, self._aside = dict(what), dict[str, tuple[Row, ...]]()
        self._constants: Constants | None = None
        journal = None if folder is None else journal_of(f"{folder.parent.name}-cold")
        super().__init__(folder, _FORM, key_of(what), journal=journal)
        if constants := self.constants():
            self._set_constants(constants)
        own = {*self.query()}
        if shared is not None and (found := self._constants_in(shared)) and found == (constants or found):
            # Rows normalised to another nominal speed do not mix: then the shared ones are left alone.
            self._set_constants(found)
            self._take({name: rows for name, rows in profile_rows(shared, self.key).items() if name not in own})

    def set_aside(self, signatures: Iterable[str]) -> None:
        """Take steps as unknown, so that they are measured again.

        Their rows count where the new ones are more disturbed, and again from `merge` on where there are no new ones.
        """
        self._aside |= {signature: self._values.pop(signature, ()) for signature in signatures}

    def rows(self, signature: str) -> tuple[Row, ...]:
        """Return the candidates of a step, in the library's order."""
        return self.query()[signature]

    def all_rows(self) -> tuple[Row, ...]:
        """Return every row of the store, by signature."""
        return tuple(row for _, rows in sorted(self.query().items()) for row in rows)

    def constants(self) -> Constants | None:
        """Return what was measured once for all rows of this key; None if nothing was."""
        found = (self._constants_in(place) for place in reversed(self._places))
        return next(filter(None, found), self._constants)

    def _constants_in(self, place: Path) -> Constants | None:
        path = identity_file(place, self.key)
        return read_json(path, _Identity, "the identity of profile rows").constants if path.is_file() else None

    def _set_constants(self, constants: Constants) -> None:
        self._constants, self.identity = constants, {**self._what, "constants": constants.model_dump()}

    def keep_constants(self, constants: Constants) -> None:
        """Store what all rows of this key have in common."""
        self._set_constants(constants)
        self._keep_identity()

    def add(self, rows: Sequence[Row]) -> None:
        """Commit the rows of whole steps."""
        steps = _by_step(rows)
        self.commit(steps)
        self._take({signature: self._aside.pop(signature) for signature in steps if signature in self._aside})
        self.measured += len(rows)

    def merge(self) -> None:
        """Bring the parts in the workspace together in few files."""
        self._take(self._aside)
        self._aside.clear()
        super().merge()


def profile_rows(folder: Path, key: str) -> Mapping[str, tuple[Row, ...]]:
    """Read the rows of a key that lie in a folder, by the signature of their step."""
    return KeyedStore(folder, _FORM, key).query()


def _by_step(rows: Iterable[Row]) -> dict[str, tuple[Row, ...]]:
    steps: dict[str, tuple[Row, ...]] = {}
    for row in rows:
        steps[row.signature] = _less_disturbed(steps.get(row.signature, ()), (row,))
    return steps


def _less_disturbed(old: tuple[Row, ...], new: tuple[Row, ...]) -> tuple[Row, ...]:
    known = {row.implementation: row for row in old}
    better = {r.implementation: r for r in new if r.implementation not in known or r.others < known[r.implementation].others}
    return tuple(sorted((known | better).values(), key=lambda row: row.position)) if better else old


def _write_steps(path: Path, steps: Mapping[str, tuple[Row, ...]]) -> None:
    records = [asdict(row) | {"samples_ms": list(row.samples_ms.items())} for rows in steps.values() for row in rows]
    table = pa.Table.from_pylist(records, schema=_SCHEMA)
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def read_profiled(path: Path) -> list[Row]:
    """Return rows of one Parquet file."""
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


_FORM = FileFormat(lambda path: _by_step(read_profiled(path)), _write_steps, _less_disturbed, _MAX_STEPS_PER_FILE)
