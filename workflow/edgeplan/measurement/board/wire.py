"""Defines the lines between a host and a worker: one JSON document each, of the types below, and nothing else.

Both sides decode strictly and refuse what they do not know. Bounds of sizes hold for lines, texts and lists. Graphs
travel, weights do not: they are seeded. Another meaning of a message takes another `WIRE_VERSION`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from edgeplan.devices.config import DeviceFile
from edgeplan.engines.base import EngineNode
from edgeplan.errors import FormatError, ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.nodes import NodeConfig
from edgeplan.measurement.records import COLUMNS, AnySubject, Batch, FileSubject, Measurement, NodeSubject, Subject
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.measurement.settings import MeasurementSettings

WIRE_VERSION = 3  # since 2 nodes are asked for, too; since 3 graphs and nodes travel as they are kept here
#: Bytes of a line: a batch of a thousand large graphs, a row of a model with thousands of nodes.
MAX_REQUEST_BYTES, MAX_ANSWER_BYTES = 64 << 20, 8 << 20
_MAX_TEXT = 2000

Text = Annotated[str, Meta(max_length=_MAX_TEXT)]
Name = Annotated[str, Meta(max_length=1000)]
Key = Annotated[str, Meta(pattern="^[0-9a-f]{12}$")]
#: Id of a subject in a store: digest, what is measured, and by which protocol nodes are mapped.
StoredName = Annotated[str, Meta(pattern="^[0-9a-f]{20}(-nodes-[A-Za-z0-9/_-]{1,64})?$")]
BatchId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Core = Annotated[int, Meta(ge=0, le=100_000)]
Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Moment = Annotated[float, Meta(ge=0, le=1e11)]
Microseconds = Annotated[float, Meta(gt=0, le=1e11)]
Floats = Annotated[tuple[float, ...], Meta(max_length=200_000)]


class _Message(msgspec.Struct, forbid_unknown_fields=True, tag_field="is", kw_only=True):
    """A message is a line of its own."""


class _Part(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """Encodes a part of a line, written as a list."""


# what a host asks


class AskedSubject(_Part, tag="graph"):
    """Describes a subject, with the digest of its graph as the host computed it."""

    name: StoredName
    id: Annotated[str, Meta(pattern="^[0-9a-f]{20}(-nodes)?$")]
    profiled: bool
    graph: Graph


class AskedNode(_Part, tag="node"):
    """Describes copies of an executed node, with their digest as the host computed it."""

    name: StoredName
    id: Annotated[str, Meta(pattern="^[0-9a-f]{20}$")]
    copies: Annotated[int, Meta(ge=1, le=1000)]
    config: NodeConfig


class OpenDevice(_Message, tag="open"):
    """The host names the device, itself and the time; it comes first.

    Attributes:
        wire: version of the lines.
        version: version of the host's package.
        device: fields of the device file that the board needs.
        client: who asks, for those who wait.
        now: the host's clock, which dates rows whatever the board's clock says.
    """

    wire: int
    version: Annotated[str, Meta(max_length=64)]
    device: dict[str, Any]
    client: Annotated[str, Meta(max_length=200)]
    now: Moment


class TimeReferences(_Message, tag="nominal"):
    """The host asks for the reference loads' times."""

    runs: Annotated[int, Meta(ge=1, le=1000)]
    seconds: Annotated[float, Meta(ge=0, le=600)] | None = None


class AskedBatch(_Message, tag="measure"):
    """The host asks for a batch; the same batch asked for again gets what was measured of it, and the rest.

    Attributes:
        batch: a number drawn for it.
        key: key of the rows.
        sample: number of the repetition.
        settings: settings of measuring.
        compute_us, bandwidth_us: nominal times of the references.
        subjects: subjects to time.
        wait_s: how long to wait for another process that is measuring there.
    """

    batch: BatchId
    key: Key
    sample: Count
    settings: dict[str, Any]
    compute_us: Microseconds
    bandwidth_us: Microseconds
    subjects: Annotated[tuple[AskedSubject | AskedNode, ...], Meta(max_length=1000)]
    wait_s: Seconds


class AskedNames(_Message, tag="kept"):
    """The host asks what the journal holds of some subjects, from any batch.

    Attributes:
        key: key of the rows.
        sample: number of the repetition.
        names: names of the subjects in the store.
    """

    key: Key
    sample: Count
    names: Annotated[tuple[StoredName, ...], Meta(max_length=1_000_000)]


class AskedNodes(_Message, tag="executed"):
    """The host asks which nodes the engine executes."""

    graphs: Annotated[tuple[Graph, ...], Meta(max_length=1000)]


class AskedCheck(_Message, tag="check"):
    """The host asks how steady the board is."""

    seconds: Annotated[float, Meta(ge=0.1, le=600)]


Request = OpenDevice | TimeReferences | AskedBatch | AskedNames | AskedNodes | AskedCheck


# what a worker answers


class Hello(_Message, tag="hello"):
    """The worker says this first."""

    wire: int
    version: Annotated[str, Meta(max_length=64)]
    python: Annotated[str, Meta(max_length=64)]
    architecture: Annotated[str, Meta(max_length=64)]


class BoardEnvironment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Describes the state of a board, as `edgeplan.support.machine.environment` tells it."""

    cpu: Annotated[str, Meta(max_length=200)]
    cpu_family_model: Annotated[str, Meta(max_length=64)]
    isa: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=500)]
    cores: Annotated[int, Meta(ge=1, le=100_000)]
    affinity: Annotated[tuple[Core, ...], Meta(max_length=100_000)]
    caches: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=64)]
    memory_gib: Annotated[float, Meta(ge=0, le=1e9)]
    governor: Annotated[str, Meta(max_length=64)]
    max_frequency_khz: Annotated[str, Meta(max_length=64)]
    virtualised: bool
    load_1min: Annotated[float, Meta(ge=0, le=1e6)]
    kernel: Annotated[str, Meta(max_length=64)]
    python: Annotated[str, Meta(max_length=64)]
    fingerprint: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    emulated: bool = False


class OpenedDevice(_Message, tag="opened"):
    """The worker says that the device is there.

    Attributes:
        engine_version: of the device's engine.
        sources: digest of the sources that measure, as they are there.
        environment: state of the board, with its fingerprint.
        clock: time by the board's own clock.
    """

    engine_version: Annotated[str, Meta(max_length=200, pattern=r"^[\x21-\x7e][\x20-\x7e]*$")]
    sources: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    environment: BoardEnvironment
    clock: float


class ReferencesTimed(_Message, tag="references"):
    """Reports the nominal times of the references."""

    compute_us: Microseconds
    bandwidth_us: Microseconds


class MeasuredRow(_Message, tag="row"):
    """A row holds what was measured of a subject (see `records.Measurement`), and is in the board's journal."""

    name: StoredName
    sample: Count
    least_us: Floats
    median_us: Floats
    compute_us: Floats
    bandwidth_us: Floats
    measured_at: Floats
    nodes: Annotated[tuple[EngineNode, ...], Meta(max_length=100_000)]
    node_us: Floats
    seconds: Seconds


class ExecutedNodeMembers(_Message, tag="nodes"):
    """Lists the members of the nodes of one graph."""

    members: Annotated[tuple[tuple[Name, ...], ...], Meta(max_length=100_000)]


class CheckedBoard(_Message, tag="checked"):
    """The worker tells how steady the board was."""

    compute_us: Annotated[tuple[Microseconds, ...], Meta(min_length=1, max_length=100_000)]
    bandwidth_us: Annotated[tuple[Microseconds, ...], Meta(min_length=1, max_length=100_000)]
    shared: Annotated[float, Meta(ge=0, le=1)]
    load_1min: Annotated[float, Meta(ge=0, le=1e6)]
    problems: Annotated[tuple[Text, ...], Meta(max_length=20)]


class Note(_Message, tag="note"):
    """Carries a word for people, or a sign of life if it is empty."""

    text: Text = ""


class Done(_Message, tag="done"):
    """A request is answered, in these conditions."""

    affinity: Annotated[tuple[Core, ...], Meta(max_length=100_000)] = ()
    load_1min: Annotated[float, Meta(ge=0, le=1e6)] = 0.0


class Refused(_Message, tag="refused"):
    """A request cannot be answered; `error` names a class of `edgeplan.errors`."""

    error: Annotated[str, Meta(max_length=64)]
    what: Text
    where: Text = ""
    next_step: Text = ""


Answer = Hello | OpenedDevice | ReferencesTimed | MeasuredRow | ExecutedNodeMembers | CheckedBoard | Note | Done | Refused
_REQUESTS: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_ENCODER = msgspec.json.Encoder(enc_hook=dict)  # of mappings that are no dict


def schema() -> dict[str, Any]:
    """Make the JSON schema of all lines: `requests` and `answers`."""
    (requests, answers), definitions = msgspec.json.schema_components((Request, Answer), ref_template="#/$defs/{name}")
    return {"wire": WIRE_VERSION, "requests": requests, "answers": answers, "$defs": definitions}


def line_of(message: Request | Answer) -> bytes:
    """Write a message as a line."""
    line = _ENCODER.encode(message) + b"\n"
    if len(line) > MAX_REQUEST_BYTES:
        raise FormatError(
            f"a message of {len(line) >> 20} MiB is longer than the {MAX_REQUEST_BYTES >> 20} MiB that a line may have",
            where="lines to a board",
            next_step="measure fewer subjects at once: measurement.batch_size",
        )
    return line


def request_of(line: bytes) -> Request:
    """Read what a host asks."""
    found: Request = _read(line, _REQUESTS, "a request")
    return found


def answer_of(line: bytes) -> Answer:
    """Read what a worker answers."""
    found: Answer = _read(line, _ANSWERS, "an answer of a worker")
    return found


def _read(line: bytes, decoder: msgspec.json.Decoder[Any], what: str) -> Any:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        begin = line[:120].decode(errors="backslashreplace").strip()
        raise FormatError(
            f"a line is not {what}: {error}",
            where=f"the line that begins with {begin!r}",
            next_step="look what else writes to the worker's output: nothing may, not even a greeting of the shell",
        ) from error


# graphs, batches and rows as parts of lines


def require_sendable(graph: Graph) -> Graph:
    """Return a graph, or refuse one with a number that JSON has no word for."""
    for op in graph.operators:
        _require_finite(op.attributes.items(), op.name)
    return graph


def _require_finite(attributes: Iterable[tuple[str, Any]], name: str) -> None:
    for attribute, value in attributes:
        values = value if isinstance(value, tuple) else (value,)
        if any(isinstance(v, float) and not math.isfinite(v) for v in values):
            raise ModelError(f"attribute {attribute} is not finite", where=f"operator {name!r}", next_step="measure it locally")


def asked_batch(batch: Batch, number: str, wait_s: float) -> AskedBatch:
    """Write a batch under a number drawn for it."""
    return AskedBatch(
        batch=number,
        key=batch.key,
        sample=batch.sample,
        settings=batch.settings.model_dump(mode="json"),
        compute_us=batch.nominal.compute_us,
        bandwidth_us=batch.nominal.bandwidth_us,
        subjects=tuple(map(_asked, batch.names, batch.subjects)),
        wait_s=wait_s,
    )


def _asked(name: str, subject: AnySubject) -> AskedSubject | AskedNode:
    if isinstance(subject, Subject):
        return AskedSubject(name, subject.id, subject.profiled, require_sendable(subject.graph))
    if isinstance(subject, FileSubject):
        raise TypeError("files are measured on this machine alone")
    _require_finite(subject.config.attributes, subject.config.op)
    return AskedNode(name, subject.id, subject.copies, subject.config)


def batch_of(asked: AskedBatch) -> Batch:
    """Read a batch that was asked for."""
    subjects = tuple(
        NodeSubject(one.config, copies=one.copies) if isinstance(one, AskedNode) else Subject(one.graph, one.profiled)
        for one in asked.subjects
    )
    for one, subject in zip(asked.subjects, subjects, strict=True):
        if subject.id != one.id:
            raise FormatError(
                f"the subject {one.name} has the digest {subject.id} here",
                where="lines to a board",
                next_step="bring the same edgeplan to both machines: edgeplan device deploy",
            )
    try:
        settings = MeasurementSettings.model_validate(asked.settings)
    except ValueError as error:
        raise FormatError(
            f"settings do not fit: {error}", where="lines to a board", next_step="edgeplan device deploy"
        ) from error
    nominal = ReferenceTimes(asked.compute_us, asked.bandwidth_us)
    return Batch(asked.key, subjects, tuple(one.name for one in asked.subjects), asked.sample, settings, nominal)


def row_message(measured: Measurement) -> MeasuredRow:
    """Write a measurement as a row."""
    columns = {name: tuple(getattr(measured, name).ravel().tolist()) for name in (*COLUMNS, "node_us")}
    return MeasuredRow(name=measured.subject, sample=measured.sample, nodes=measured.nodes, seconds=measured.seconds, **columns)


#: Fields of a device file that a board needs.
_ON_BOARD = {"format_version", "name", "engine", "threads", "cores", "spare_cores", "options", "gate"}


def device_fields(device: DeviceFile) -> Mapping[str, Any]:
    """Give the fields of a device file that a board needs."""
    return {**json.loads(device.model_dump_json(include=_ON_BOARD)), "format_version": 2}
