"""Lists all named models: whatever a table, a headline or a document of the project names can be written as a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import SeededModel, seeded
from edgeplan.workloads.registry import WORKLOADS, seeded_workload
from edgeplan.zoo import prior_models
from edgeplan.zoo.cold_start_models import COLD_START_MODELS
from edgeplan.zoo.unseen.registry import UNSEEN

#: Of the cold-start chapter's models where a published one of the same name differs.
COLD_START_SUFFIX = "-cold-start"


def named_models() -> Mapping[str, Callable[[], SeededModel]]:
    """Return all models by name, each ready to be written with the weights of seed 0.

    The lists agree where they share a name, but for the cold-start chapter's, which follow another paper's table: those get a
    suffix where they meet a model behind the prior.
    """
    prior = prior_models()
    cold = {f"{name}{COLD_START_SUFFIX}" if name in prior else name: build for name, build in COLD_START_MODELS.items()}
    graphs: dict[str, Callable[[], Graph]] = {**prior, **{name: partial(build, name) for name, build in UNSEEN.items()}, **cold}
    found: dict[str, Callable[[], SeededModel]] = {name: partial(_seeded, build) for name, build in graphs.items()}
    # last: a residual network's values stay small in these
    found |= {name: partial(_workload, name) for name in WORKLOADS}
    return MappingProxyType(found)


def _seeded(build: Callable[[], Graph]) -> SeededModel:
    return seeded(build())


def _workload(name: str) -> SeededModel:
    return seeded_workload(WORKLOADS[name]())
