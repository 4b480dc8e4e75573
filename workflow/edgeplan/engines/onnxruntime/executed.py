"""Tells what ONNX Runtime runs of a file: nodes of its optimised model, and by one run which of them, how often and on what.

The file is the user's own but for three things: its nodes get names, its open axes sizes, and its large weights are a hole in a
file, all of them the same one, so that what is read of them is as large as the largest. Weights are zero then: where branches,
or the number of boxes found, depend on them, what is told is that of zeros.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from edgeplan.engines.base import Array
from edgeplan.errors import ModelError
from edgeplan.graph.model_file import messages_of, read_message
from edgeplan.graph.nodes import MOST_VALUES, AttributeValue, ExecutedModel, ExecutedNode, NodeConfig, Operand
from edgeplan.graph.onnx.compare import session_options
from edgeplan.graph.onnx.constants import constant_tensor, constant_values, is_known_type
from edgeplan.graph.onnx.contents import contents_of
from edgeplan.graph.onnx.prepare import Preparation, give_inputs
from edgeplan.support.scratch import ScratchFolder

_REORDERS = ("ReorderInput", "ReorderOutput")
#: Blocked nodes are named after what the last operator fused before blocking writes, others after an operator.
_BLOCKED = re.compile(r"(.+?)(_bn)?_nchwc(_token_\d+)?")
_FUSED = re.compile(r"(.+?)(/\w*Fusion/?|_new_reshape|_token_\d+)+")
_INPUTS_WITH_SUM = 4
#: What ONNX Runtime calls tensors inside a function that it writes out.
_INSIDE = "_inlfunc_"


def operators_of(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], constants: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the names of the operators of a file that each node of the optimised model holds.

    They are those between what it writes and what other nodes write; none where neither tensors nor its name tell.
    """
    given = [node for graph in messages_of(model, onnx.GraphProto) for node in graph.node]
    named, order = {node.name: node for node in given}, {node.name: place for place, node in enumerate(given)}
    writer = {name: node for node in given for name in node.output if name}
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in given:
        for name in node.input:
            readers[name].append(node)
    folded = {tensor.name for graph in messages_of(model, onnx.GraphProto) for tensor in graph.initializer} | set(constants)
    for node in given:  # shapes are known: what follows from them is, too
        steady = node.op_type in ("Constant", "Shape", "Size") or (node.input and folded.issuperset(filter(None, node.input)))
        if steady and node.op_type != "DequantizeLinear":
            folded.update(node.output)
    carried = {node.input[0]: node.output[0] for node in nodes if node.op_type == "ReorderOutput"}
    ends = [[] if node.op_type in _REORDERS else _ends(node, carried, writer, readers, named) for node in nodes]
    bounds = {name for its in ends for name in its} | folded
    found, taken = list[tuple[str, ...]](), set[str]()
    for executed, its in zip(nodes, ends, strict=True):
        held, waiting = list[str](), list(its)
        same = named.get(executed.name)
        while waiting:
            name = waiting.pop()
            node = same if same and name in same.output else writer.get(name)  # branches may write the same name
            if node is not None and node.name not in taken and (name in its or name not in bounds):
                taken.add(node.name)
                held.append(node.name)
                waiting += node.input
        found.append(tuple(sorted(held, key=order.__getitem__)))
    holder = {name: place for place, node in enumerate(nodes) for name in node.input if name}
    for place, node in reversed([*enumerate(nodes)]):  # parts of a function belong to its call
        if not found[place] and (inside := next((name for name in node.output if _INSIDE in name), "")) in holder:
            found[place] = found[holder[inside]]
    return found


def _ends(
    node: onnx.NodeProto,
    carried: Mapping[str, str],
    writer: Mapping[str, onnx.NodeProto],
    readers: Mapping[str, Sequence[onnx.NodeProto]],
    named: Mapping[str, onnx.NodeProto],
) -> list[str]:
    """Return the tensors of a file that a node of the optimised model writes, as far as names tell."""
    if known := [name for one in node.output if (name := carried.get(one, one)) in writer]:
        return known
    if (blocked := _BLOCKED.fullmatch(node.name)) and blocked[1] in writer:
        end = blocked[1]
    else:
        fused = _FUSED.fullmatch(node.name)
        stem = fused[1] if fused and node.name not in named else node.name
        if stem not in named or len(named[stem].output) != 1:
            return list(named[stem].output) if stem in named else []
        end = named[stem].output[0]
    sums: tuple[str, ...] = ()
    if node.op_type.endswith("Conv") and len(node.input) >= _INPUTS_WITH_SUM:
        sums = ("Add", "Sum")
    elif node.op_type.endswith("Gemm") and writer[end].op_type == "MatMul":
        sums = ("Add",)
    activation = tuple(one.s.decode() for one in node.attribute if one.name == "activation")
    for types in (sums, activation):  # fused after the node was named
        after = readers[end]
        if writer[end].op_type not in types and len(after) == 1 and after[0].op_type in types:
            end = after[0].output[0]
    return [end]


_FATAL_ONLY = 4
_HOLE, _NOWHERE, _LEAST_HOLE_BYTES = "hole", "nowhere", 1 << 16
#: With these entries weights that are laid out anew are not written into the optimised model; all others are then read once,
#: which takes seconds for large ones.
_WRITTEN = MappingProxyType(
    {
        "session.optimized_model_external_initializers_file_name": _NOWHERE,
        "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    }
)
_MOST_WRITTEN_BYTES = 1 << 28
#: Constants of these types are weights; others are indices and masks, which say what is fused.
_WEIGHTS = frozenset({"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT8"})
_MASK_RANK = 4
EVENT_SUFFIX = "_kernel_time"
_DTYPES = MappingProxyType({"float": "float32", "double": "float64", "string": "str", "object": "str"})
#: Their integers of 32 bits are biases, which steer nothing.
_BIASED = re.compile("QLinear.*|QGemm|.*Integer.*|DequantizeLinear")


class _Ran(NamedTuple):
    """Holds one run of a node, by its place among all of the optimised model: type and shape of what it read and wrote."""

    place: int
    name: str
    read: Sequence[Mapping[str, Sequence[int]]]
    wrote: Sequence[Mapping[str, Sequence[int]]]


class _Event(NamedTuple):
    """An event of the profile tells what a node, called `name` by the engine, read and wrote."""

    place: int
    name: str
    told: Mapping[str, Any]


def executed_model(
    path: Path,
    options: Mapping[str, str] = MappingProxyType({}),
    wanted: Preparation | None = None,
    *,
    threads: int = 1,
    fused: bool = True,
) -> ExecutedModel:
    """Return the nodes that ONNX Runtime runs of a file on the CPU; those of branches and bodies stand before If and Loop.

    Args:
        path: the file; large weights beside it need not be there.
        options: entries of the session's configuration.
        wanted: what the file leaves open; inputs without values are drawn as `random_inputs` does.
        threads: that an operator runs on.
        fused: whether operators are fused, as usual; without, each is a node.

    Raises:
        ModelError: the file cannot be read or contradicts itself, an axis stays open, or ONNX Runtime cannot run it.
    """
    source, model = str(path), read_message(path)
    name = contents_of(model, source, of_engine=True).name
    _require_known(model, source)
    given = give_inputs(model, wanted or Preparation(), source)
    _give_names(model)
    with ScratchFolder("executed") as folder:
        stood_in = _stand_in(model, path, Path(folder))
        entries = options if stood_in > _MOST_WRITTEN_BYTES else {**options, **_WRITTEN}
        try:
            optimised, events = _profiled(model, Path(folder), entries, threads, given, fused=fused)
        except Exception as error:  # the types that ONNX Runtime raises derive from nothing else
            raise cannot_run(error, source, f"{folder}/") from error
    graphs = [list(graph.node) for graph in messages_of(optimised, onnx.GraphProto)]
    nodes = [node for graph in graphs for node in graph]
    constants = {tensor.name: tensor for graph in messages_of(optimised, onnx.GraphProto) for tensor in graph.initializer}
    versions = {_domain(one): one.version for one in optimised.opset_import}
    operators, ran = operators_of(model, nodes, constants), _ran(events, graphs)
    found: dict[tuple[int, NodeConfig], ExecutedNode] = {}
    for one, config in zip(ran, _configs(nodes, ran, constants, versions), strict=True):
        before = found.get((one.place, config))
        times = before.times + 1 if before else 1
        found[one.place, config] = ExecutedNode(one.name, config, operators[one.place], times)
    weight_bytes = sum(_operand(tensor).bytes for tensor in constants.values())
    return ExecutedModel.of(name, tuple(found.values()), weight_bytes, f"onnxruntime {ort.__version__}")


def cannot_run(error: Exception, source: str, folder: str = "") -> ModelError:
    """Say that ONNX Runtime cannot run a file, without the scratch folder's name."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    next_step = "see whether onnxruntime runs it at all; inputs that steer it get values by --set NAME=VALUE"
    reason = reason.replace(folder, "") if folder else reason
    return ModelError(f"ONNX Runtime cannot run the model: {reason}", where=source, next_step=next_step)


def wanted_inputs(path: Path, wanted: Preparation, most: int) -> dict[str, Array]:
    """Return values of all inputs of a file, of the sizes that are wanted; integers that are drawn lie below `most`.

    ModelError: the file cannot be read, or an axis stays open.
    """
    model = read_message(path)
    contents_of(model, str(path), of_engine=True)
    given = give_inputs(model, wanted, str(path))
    held = {tensor.name for tensor in model.graph.initializer}
    asked = [
        (
            one.name,
            tuple(dim.dim_value for dim in one.type.tensor_type.shape.dim),
            helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type).name
            if one.type.tensor_type.elem_type != TensorProto.STRING
            else "string",
        )
        for one in model.graph.input
        if one.name not in held
    ]
    return {**_drawn(asked, most), **given}


def _domain(node: onnx.NodeProto | onnx.OperatorSetIdProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


@cache
def schemas() -> Mapping[tuple[str, str], Sequence[Any]]:
    """Return what ONNX Runtime knows of operators, by domain and type: each from the version on that it says."""
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for schema in sorted(get_all_operator_schema(), key=lambda one: one.since_version):
        found[schema.domain, schema.name].append(schema)
    return found


@cache
def _defaults(domain: str, op: str, version: int) -> Mapping[str, AttributeProto]:
    """Return attributes that an operator has where it is given none."""
    schema = [one for one in schemas().get((domain, op), ()) if one.since_version <= version][-1:]
    texts = {name: one._default_value for each in schema for name, one in each.attributes.items()}  # noqa: SLF001  nothing else says it
    return {name: AttributeProto.FromString(text) for name, text in texts.items() if text}


def _require_known(model: onnx.ModelProto, source: str) -> None:
    """Refuse operators that neither ONNX Runtime nor the file itself defines."""
    known = {*schemas()} | {(function.domain, function.name) for function in model.functions}
    for node in messages_of(model, onnx.NodeProto):
        if (_domain(node), node.op_type) not in known:
            raise ModelError(
                f"ONNX Runtime {ort.__version__} has no operator {node.domain + '::' if node.domain else ''}{node.op_type}",
                where=f"{source}, node {node.name or next(iter(node.output), '')!r}",
                next_step="export the model without operators of a library's own, or install a newer onnxruntime",
            )


def _give_names(model: onnx.ModelProto) -> None:
    """Give nodes names of their own, those of `contents_of` where they have none."""
    used: set[str] = set()
    for graph in messages_of(model, onnx.GraphProto):
        for index, node in enumerate(graph.node):
            node.name = node.name or f"{node.op_type.lower()}_{index}"
            while node.name in used:
                node.name += f"_{index}"
            used.add(node.name)


def _stand_in(model: onnx.ModelProto, path: Path, folder: Path) -> int:
    """Have all large weights lie in a file with nothing in it, others in the message; return the bytes of the large ones."""
    sizes, source = [0], str(path)
    for tensor in messages_of(model, TensorProto):
        weights = TensorProto.DataType.Name(tensor.data_type) in _WEIGHTS
        mask = len(tensor.dims) == _MASK_RANK and tuple(tensor.dims[:2]) == (1, 1)
        size = constant_tensor(tensor.name, tensor, source).size_bytes if is_known_type(tensor) else 0
        if size > _LEAST_HOLE_BYTES and weights and not mask:
            entries = (("location", _HOLE), ("offset", "0"), ("length", str(size)))
            hole = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
            hole.data_location = TensorProto.EXTERNAL
            hole.external_data.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in entries)
            tensor.CopyFrom(hole)
            sizes.append(size)
        elif tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(constant_values(tensor.name, tensor, path, source), tensor.name))
    with (folder / _HOLE).open("wb") as file:
        file.truncate(max(sizes))
    return sum(sizes)


def _profiled(
    model: onnx.ModelProto, folder: Path, options: Mapping[str, str], threads: int, given: Mapping[str, Array], *, fused: bool
) -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """Return the optimised model, and the events of one run of it."""
    file, optimised = folder / "model.onnx", folder / "optimised.onnx"
    file.write_bytes(model.SerializeToString())
    entries = {**options, "session.disable_prepacking": "1"}  # packing would copy the hole
    wanted = session_options(threads, entries, severity=_FATAL_ONLY, optimised=fused)
    wanted.enable_profiling, wanted.profile_file_prefix = True, str(folder / "profile")
    wanted.optimized_model_filepath = str(optimised)
    (folder / _NOWHERE).symlink_to(os.devnull)
    session = ort.InferenceSession(str(file), wanted, providers=["CPUExecutionProvider"])
    asked = [(one.name, one.shape, one.type.removeprefix("tensor(").removesuffix(")")) for one in session.get_inputs()]
    try:
        session.run(None, {**_drawn(asked, 2), **given})
    except Exception:  # noqa: BLE001  of an axis of one there is no place 1
        session.run(None, {**_drawn(asked, 1), **given})
    events = json.loads(Path(session.end_profiling()).read_text())
    began = max(event["ts"] for event in events if event["name"] == "model_run")
    return onnx.load(optimised, load_external_data=False), [event for event in events if event["ts"] >= began]


def _drawn(inputs: Iterable[tuple[str, Sequence[int], str]], most: int) -> dict[str, Array]:
    """Draw inputs of a name, shape and type as `random_inputs` does, integers below `most`."""
    rng = np.random.default_rng(0)

    def values(shape: Sequence[int], kind: str) -> Array:
        if kind == "string":
            return np.full(shape, "a", object)
        if kind.startswith(("float", "double")):
            return np.asarray(rng.random(shape, dtype=np.float32) * 0.95 + 0.05, _DTYPES.get(kind, kind))
        return rng.integers(0, most, shape).astype(kind)

    return {name: values(shape, kind) for name, shape, kind in inputs}


def _ran(events: Sequence[Mapping[str, Any]], graphs: Sequence[Sequence[onnx.NodeProto]]) -> list[_Ran]:
    """Return nodes in the order in which they ended; at the end of a graph all of its nodes have."""
    starts = np.cumsum([0, *map(len, graphs)]).tolist()
    waiting: list[_Event] = []
    found: list[tuple[int, _Ran]] = []
    for index, event in enumerate(events):
        if event["name"].endswith(EVENT_SUFFIX):
            waiting.append(_Event(index, event["name"].removesuffix(EVENT_SUFFIX), event["args"]))
        elif event["name"] == "SequentialExecutor::Execute":
            fitting = [(which, _fitting(waiting, nodes)) for which, nodes in enumerate(graphs)]
            which, ended = max(
                ((i, its) for i, its in fitting if its is not None), key=lambda one: len(one[1]), default=(0, None)
            )
            if ended is None:
                what = "its profile tells other nodes than its optimised model"
                raise ModelError(what, where=f"onnxruntime {ort.__version__}", next_step="pip install another version of it")
            for place, (at, name, told) in enumerate(ended, starts[which]):
                found.append((at, _Ran(place, name, told["input_type_shape"], told["output_type_shape"])))
            del waiting[len(waiting) - len(ended) :]
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _fitting(events: Sequence[_Event], nodes: Sequence[onnx.NodeProto]) -> list[_Event] | None:
    """Return the last events if they are of these nodes, in their order: files are written in that of runs, or of indices.

    Events of nodes without a name are called `<type>_<index>`.
    """
    last = [*events[len(events) - len(nodes) :]] if len(nodes) <= len(events) else []
    for ended in (last, sorted(last, key=lambda one: int(one.told["node_index"]))):
        both = [*zip(ended, nodes, strict=False)]
        if len(both) == len(nodes) and all(e.told["op_name"] == n.op_type and n.name in ("", e.name) for e, n in both):
            return ended
    return None


def _configs(
    nodes: Sequence[onnx.NodeProto], ran: Sequence[_Ran], constants: Mapping[str, TensorProto], versions: Mapping[str, int]
) -> Iterator[NodeConfig]:
    """Yield what decides the time of each run of a node."""
    known = {name: _operand(tensor) for name, tensor in constants.items()}
    steady = known.copy()
    plain = [_attributes(node, versions) for node in nodes]
    for one in ran:
        node = nodes[one.place]
        for names, told in ((node.input, one.read), (node.output, one.wrote)):
            present = [name for name in names if name]
            if len(present) == len(told):  # else some are no tensors, of which nothing is told
                types = [next(iter(each.items())) for each in told]
                known |= {n: Operand(_DTYPES.get(t, t), tuple(s)) for n, (t, s) in zip(present, types, strict=True)}
        known |= steady
        inputs = [known.get(name) for name in node.input]
        for place, name in enumerate(node.input):
            if name in constants and (values := _steering(node, place, constants[name])):
                inputs[place] = msgspec.structs.replace(steady[name], values=values)
        attributes, body = plain[one.place]
        outputs = [known.get(name) for name in node.output]
        yield NodeConfig(node.op_type, _domain(node), attributes, _without_end(inputs), _without_end(outputs), body)


def _without_end(operands: Sequence[Operand | None]) -> tuple[Operand | None, ...]:
    """Return operands without those left out at the end, which need not be named."""
    return tuple(operands[: 1 + max((place for place, one in enumerate(operands) if one), default=-1)])


def _operand(tensor: TensorProto) -> Operand:
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type).name
    return Operand(_DTYPES.get(dtype, dtype), tuple(tensor.dims), constant=True)


def _steering(node: onnx.NodeProto, place: int, tensor: TensorProto) -> tuple[int, ...] | None:
    """Return a constant's values where they decide what a node does: integers that are no biases, and exponents."""
    exponent = node.op_type == "Pow" and place == 1
    biases = tensor.data_type == TensorProto.INT32 and _BIASED.fullmatch(node.op_type)
    integers = tensor.data_type in (TensorProto.INT64, TensorProto.INT32) and not biases
    if np.prod(tensor.dims) > MOST_VALUES or not (integers or exponent):
        return None
    values = np.ravel(numpy_helper.to_array(tensor)).tolist()
    return tuple(map(int, values)) if all(value == int(value) for value in values) else None


def _attributes(node: onnx.NodeProto, versions: Mapping[str, int]) -> tuple[tuple[tuple[str, AttributeValue], ...], str]:
    """Return attributes by name, defaults too, and others than numbers and texts as a body; graphs are nodes of their own."""
    domain = _domain(node)
    given = {**_defaults(domain, node.op_type, versions.get(domain, 1)), **{one.name: one for one in node.attribute}}
    plain, rest = list[tuple[str, AttributeValue]](), onnx.NodeProto()
    for _, attribute in sorted(given.items()):
        if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            continue
        value = helper.get_attribute_value(attribute)
        several = isinstance(value, list)
        values = [found for one in (value if several else [value]) if (found := _plain(one)) is not None]
        if len(values) < (len(value) if several else 1):
            kept = rest.attribute.add()
            kept.CopyFrom(attribute)
            kept.doc_string = ""
            for tensor in messages_of(kept, TensorProto):
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)))
        else:
            plain.append((attribute.name, tuple(values) if several else values[0]))
    return tuple(plain), base64.b64encode(rest.SerializeToString(deterministic=True)).decode()


def _plain(value: Any) -> int | float | str | None:
    """Return a number or text as it was written, None for what JSON has no form of."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, float):
        return float(str(np.float32(value))) if np.isfinite(value) else None
    return value if isinstance(value, int) else None
