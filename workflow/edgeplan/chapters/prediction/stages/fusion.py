"""Stage `fusion`: detect what a device's engine fuses by timing alone, and verify it by the engine's own report."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.prediction.fusion.detection import STRUCTURES, detect, skipped_pairs
from edgeplan.chapters.prediction.settings import FusionSettings, PredictionParams
from edgeplan.chapters.prediction.whole_models import graphs, read_models
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.engines.base import EngineNode
from edgeplan.engines.registry import engine_class, engine_protocol
from edgeplan.graph.fusion_rules import FusionRules, Provenance, Rule, read_rules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import split_members
from edgeplan.graph.kinds import kind
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurer, Subject, graph_digest
from edgeplan.support.frames import KEPT, read_parquet, write_csv, write_parquet
from edgeplan.support.numerics import nine_digits
from edgeplan.workspace import shipped_rules

_SAME_VERSION, _OTHER_VERSION = 2.0, 1.0  # of the confidence that settings ask for


def find_prior(names: Iterable[str], engine: str) -> FusionRules | None:
    """Return the shipped rules of the first named device with this engine; None where no named device has it."""
    for name in names:
        rules = read_rules(shipped_rules(name, where="fusion.prior"))
        if rules.provenance.engine == engine:
            return rules
    return None


def with_prior(timed: FusionRules, cases: pd.DataFrame, prior: FusionRules, settings: FusionSettings) -> FusionRules:
    """Return the prior's rules, replaced where test cases (`detection.COLUMNS`) timed here clearly contradict them.

    They have the provenance and the undecided cases of `timed`, what timing alone found; `provenance.prior` names the prior.
    """
    ours, theirs = timed.provenance, prior.provenance
    factor = _SAME_VERSION if ours.version == theirs.version else _OTHER_VERSION
    clear = (cases["margin"] - settings.alpha).abs() > factor * settings.confidence * cases["noise"]
    decided = cases[clear & (cases["decision"] != "undecided")]
    context = decided["context"].str.removesuffix("small").str.strip()
    tables: dict[str, dict[str, Rule]] = {"single": dict(prior.pairs), "multi-inbound": dict(prior.inbound)}
    for (pair, connection, label), part in decided.groupby([decided["pair"], decided["connection"], context]):
        rules = tables.get(str(connection), {})
        if pair in rules and label not in STRUCTURES and len(set(part["decision"])) == 1:
            fused = bool(part["decision"].iloc[0] == "fused")
            rules[pair] = _replaced(rules[pair], str(label), prior.contexts.order, fused=fused)
    named = f"{theirs.device}, {theirs.engine} {theirs.version}"
    return prior.model_copy(
        update={
            "provenance": ours.model_copy(update={"prior": named}),
            "pairs": tables["single"],
            "inbound": tables["multi-inbound"],
            "undecided": timed.undecided,
        }
    )


def _replaced(rule: Rule, label: str, order: Sequence[str], *, fused: bool) -> Rule:
    """Return a rule that says `fused` in one context, and in others what it said before."""
    if not label:
        return fused
    known = rule if isinstance(rule, dict) else dict.fromkeys((*order, *(f"{a}|{b}" for a in order for b in order)), rule)
    return {**known, label: fused} if label in known else rule


class ExecutedNodes:
    """Asks for the executed nodes of each model once and keeps them beside the rows: loading hundreds of models takes minutes.

    They are stored by the key of the rows (engine, version, settings, machine) and the name of the mapping.
    """

    def __init__(self, device: DeviceFile, measurer: Measurer, folder: Path, key: str) -> None:
        self._measurer = measurer
        self.tells = engine_class(device.engine).reports_nodes  # whether the engine reports its nodes at all
        name = engine_protocol("mapping", device.engine).name.replace("/", "-")
        self._path = folder / f"executed-{key}-{name}.parquet"
        self._known: dict[str, str] = {}
        if self._path.is_file():
            known = read_parquet(self._path, "graph", "members", next_step=KEPT)
            self._known.update(zip(known["graph"], known["members"], strict=True))
        self._asked: dict[str, str] = {}

    def ask(self, models: Iterable[Graph]) -> None:
        """Load every model that is not known yet."""
        unknown = {digest: graph for graph in models if (digest := graph_digest(graph)) not in self._known}
        if unknown:
            told = self._measurer.executed(list(unknown.values()))
            texts = (json.dumps(members, separators=(",", ":")) for members in told)
            self._known |= dict(zip(unknown, texts, strict=True))

    def __call__(self, graph: Graph) -> list[EngineNode]:
        """Return the nodes of a model that was asked for, with their members only."""
        digest = graph_digest(graph)
        self._asked[digest] = self._known[digest]
        return [EngineNode(str(i), "", "", tuple(members)) for i, members in enumerate(json.loads(self._asked[digest]))]

    def save(self) -> None:
        """Keep what was asked for, in an order that does not depend on which thread answered first."""
        kept = pd.DataFrame(sorted(self._asked.items()), columns=["graph", "members"])
        write_parquet(kept, self._path)


def detect_fusion(
    params: PredictionParams,
    *,
    device: Path,
    models: Path,
    rows: Path,
    rules: Path,
    test_cases: Path,
    skipped: Path,
    verification: Path,
) -> None:
    """Detect the rules, write them with their test cases and the pairs not tested, and verify them over the whole zoo."""
    file = load_device(device)
    with Bench(file, params.measurement, rows) as bench:
        bench.limit(params.fusion.stage_seconds)

        def measure(subjects: Sequence[Graph], repeat: int) -> list[npt.NDArray[np.float64] | None]:
            found = bench.measure_in_time([Subject(g) for g in subjects], repeat, "fusion test cases", some=False)
            return [None if m is None else m.block_us for m in found]

        provenance = Provenance(
            device=file.name,
            engine=file.engine,
            version=str(bench.identity["engine_version"]),
            alpha=params.fusion.alpha,
            measurements=bench.store.key,
        )
        found, cases = detect(measure, params.fusion, provenance)
        # known only now: before, a first run has measured nothing
        date = time.strftime("%Y-%m-%d", time.gmtime(bench.last_measured_at()))
        found = found.model_copy(update={"provenance": found.provenance.model_copy(update={"date": date})})
        executed = ExecutedNodes(file, bench.measurer, rows, bench.store.key)
        if executed.tells:
            table = read_models(models, bases=True, variants=True)
            executed.ask(graphs(table))
    prior = find_prior(params.fusion.prior, file.engine)
    used = found if prior is None else with_prior(found, cases, prior, params.fusion)
    used.write(rules)
    floats = cases.select_dtypes("float").columns  # their last digits depend on the machine that computes them
    cases[floats] = cases[floats].map(nine_digits)
    write_csv(cases, test_cases)
    write_csv(pd.DataFrame(list(skipped_pairs().items()), columns=["pair", "reason"]), skipped)
    if executed.tells:
        frame = verify(used, graphs(table), executed)
        executed.save()
    else:
        frame = pd.DataFrame(columns=list(VERIFIED))
    write_csv(frame, verification)


VERIFIED = (
    "pair", "connection", "edges", "fused_by_engine", "fused_by_rules", "true_positive", "precision", "recall", "bn_folding",
    "reshaping",
)  # fmt: skip
_FOLDING_INTO = ("conv", "dwconv", "fc")


def verify(rules: FusionRules, graphs: Iterable[Graph], executed: Callable[[Graph], Sequence[EngineNode]]) -> pd.DataFrame:
    """Return precision and recall of the rules, over the edges of graphs.

    An edge counts as fused when its two ends run in one node (of the engine), or belong to one kernel (by the rules). An
    operator that the engine dropped because it repeats another runs where that one does.

    Returns:
        One row (`VERIFIED`) for each pair of kinds and connection (`single`, `multi-inbound`, `multi-outbound`).
        Precision is missing where the rules fuse no such edge, recall where the engine fuses none. Two groups are left out of
        the averages (see `averages`): `bn_folding` marks batch normalisations behind a convolution or fully connected layer,
        `reshaping` edges with a reshape at an end, of which a report may say anything since a reshape moves no data.
    """
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for graph in graphs:
        by_engine = _engine_owners(graph, executed(graph))
        by_rules = {
            name: index for index, (members, twins) in enumerate(split_members(graph, rules)) for name in (*members, *twins)
        }
        for key, first, after in _edges(graph):
            theirs = first in by_engine and by_engine[first] == by_engine.get(after)
            ours = by_rules[first] == by_rules[after]
            for slot, value in enumerate((True, theirs, ours, theirs and ours)):
                counts[key][slot] += value
    rows = []
    for (pair, connection), (edges, fused, predicted, right) in sorted(counts.items()):
        kinds = pair.split("_")
        precision, recall = (right / predicted if predicted else None), (right / fused if fused else None)
        folding = kinds[1] == "bn" and kinds[0] in _FOLDING_INTO
        rows.append((pair, connection, edges, fused, predicted, right, precision, recall, folding, "reshape" in kinds))
    return pd.DataFrame(rows, columns=list(VERIFIED)).astype({"precision": float, "recall": float})


def _engine_owners(graph: Graph, nodes: Sequence[EngineNode]) -> dict[str, int]:
    owners = {name: index for index, node in enumerate(nodes) for name in node.members}
    first: dict[tuple[object, ...], str] = {}
    origin: dict[str, str] = {}
    for op in graph.operators:
        if op.weights:
            continue
        key = (op.op_type, tuple(origin.get(i, i) for i in op.inputs), tuple(sorted(op.attributes.items())))
        twin = first.setdefault(key, op.name)
        if twin != op.name:
            origin.update(zip(op.outputs, graph.by_name[twin].outputs, strict=True))
            for one, other in ((op.name, twin), (twin, op.name)):
                if one not in owners and other in owners:
                    owners[one] = owners[other]
    return owners


def _edges(graph: Graph) -> Iterable[tuple[tuple[str, str], str, str]]:
    """Yield ((pair, connection), first, next) of every edge; one that is multi-inbound and multi-outbound is the latter."""
    for op in graph.operators:
        before = graph.predecessors(op)
        for producer in before:
            readers = graph.successors(producer)
            connection = "multi-outbound" if len(readers) > 1 else "multi-inbound" if len(op.inputs) > 1 else "single"
            yield (f"{kind(graph, producer)}_{kind(graph, op)}", connection), producer.name, op.name
