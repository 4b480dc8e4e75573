"""The programs that a model is cut into: each is written with its weights, and profiled, when it is first asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.folders import CostedProgram, ModelCut, PlanWriter, RunCores
from edgeplan.errors import ModelError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.measurement.process.inputs import Array, random_inputs
from edgeplan.planning.layout import Ints
from edgeplan.planning.memory.planner import greedy_layout
from edgeplan.planning.memory.workload import least_bytes
from edgeplan.profiling.streaming import RunSettings, profile_program
from edgeplan.profiling.subjects import require_exact
from edgeplan.runtime.bands import regions_by_peak
from edgeplan.runtime.creation import Implementation
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import WEIGHTS_NAME
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.packed_programs import TapedProgram
from edgeplan.runtime.program import activation_layouts
from edgeplan.runtime.streaming.build import Built, build
from edgeplan.runtime.streaming.schedules import F32, Stored
from edgeplan.runtime.streaming.weights_file import halvable, write_weights
from edgeplan.runtime.streaming.workloads import untimed_workload
from edgeplan.writable import cannot_write

#: Bytes of weights of a part of a step that are tried, the coarsest first: what they cost is measured, not known beforehand.
LIMITS = (1 << 40, 4 * MIB, 2 * MIB, MIB, MIB // 2, MIB // 4)
_SLOTS = 3  # parts of a step that should fit in the arena beside its tensors: one in use, two on their way
_FINEST_BYTES = 64 << 10  # of such a part: a read of less costs more than its bytes
_ARENA_STEP = MIB // 4  # arenas that forms are cut for: near budgets share their forms


class ModelPrograms:
    """The programs of one model, each of a way to cut it: a form. `work` is an empty folder for them and their weights.

    Attributes:
        forms: those that do not hang on a budget, the coarsest first.
        profiled: those that were, by form.
        values: seeded inputs of all runs; inputs: the same in files.
    """

    def __init__(self, model: Path, work: Path, threads: int, cores: RunCores, runs: int = 7, weights: Stored = F32) -> None:
        self.model, self.work, self._threads, self.cores, self._runs = model, work, threads, cores, runs
        self.weights: Stored = weights
        graph = simplify(load_onnx(model))
        require_exact(graph, str(model))
        self.lowered: Lowered = lower(graph)
        self._halved = halvable(model, self.lowered, weights) if weights != F32 else frozenset[str]()
        self._dnnl = Dnnl()
        self.writer = PlanWriter(model, self._dnnl, threads, cores, weights)
        layouts, block = activation_layouts(self.lowered, BLOCKED), self._dnnl.info.block
        cuts = regions_by_peak(self.lowered, layouts, BLOCKED, block)
        self.forms = tuple(ModelCut(limit, regions) for regions in cuts for limit in LIMITS)
        self._built: dict[ModelCut, Built] = {}
        self._chosen: dict[object, Implementation] = {}
        self.profiled: dict[ModelCut, CostedProgram] = {}
        self._layouts: dict[ModelCut, Ints] = {}
        shapes = {name: self.lowered.shapes[name] for name in self.lowered.inputs}
        self.values = random_inputs(shapes, 0, self.lowered.types, self.lowered.limits)  # tokens from all of a vocabulary
        self.inputs = _written(self.values, work)
        if not self.built(self.forms[0]).program.step_names:
            what = "the model computes nothing: it hands its inputs on, and there is no memory to plan"
            raise ModelError(what, where=str(model), next_step="plan a model that computes something")

    @property
    def finest(self) -> ModelCut:
        """The form that needs least memory, by its bound."""
        return min(self.forms, key=self.least)

    def candidate(self, form: ModelCut) -> CostedProgram:
        """The program of a form, written with its weights and profiled."""
        if form not in self.profiled:
            began = time.perf_counter()
            program = self.built(form).program
            same = [c for f, c in self.profiled.items() if self.built(f).program.steps == program.steps]
            if same:
                return same[0]
            folder = self._folder(form)
            folder.mkdir()
            try:
                write_weights(self._dnnl, self.model, self.lowered, self.built(form), folder / WEIGHTS_NAME)
            except OSError as error:
                raise cannot_write(error, folder) from error
            taped = TapedProgram(program)
            self.writer.program(folder, taped)
            written = time.perf_counter()
            profile = profile_program(folder, program, self.settings(self._runs, profile=True))
            self.writer.program(folder, taped, profile)
            times = written - began, time.perf_counter() - written
            self.profiled[form] = CostedProgram(folder, form, program, profile, taped, *times)
        return self.profiled[form]

    def built(self, form: ModelCut) -> Built:
        """The program of a form; nothing is written."""
        if form not in self._built:
            limits = self._limits(form)
            with self._dnnl.without_primitive_cache():  # what is chosen must be offered in a fresh process, too
                self._built[form] = build(
                    self._dnnl, self.lowered, BLOCKED, form.limit, self._threads, form.regions, known=self._chosen,
                    limits=limits, halved=self._halved, halves=self.weights,
                )  # fmt: skip
        return self._built[form]

    def fitted(self, budget: int) -> tuple[ModelCut, ...]:
        """Forms whose steps are cut no finer than an arena of this budget asks for; one for each choice of bands."""
        base = self.candidate(self.forms[0])
        arena = (budget - base.objects_bytes) // _ARENA_STEP * _ARENA_STEP
        cuts = dict.fromkeys(form.regions for form in self.forms)
        found = [ModelCut(LIMITS[0], regions, arena) for regions in cuts] if arena > 0 else []
        return tuple(form for form in found if self._limits(form))

    def _limits(self, form: ModelCut) -> dict[str, int]:
        """The bytes of weights that the parts of single steps may have, so that a few fit beside the step's tensors."""
        if not form.arena:
            return {}
        program = self.built(replace(form, arena=0)).program
        live = untimed_workload(program).live_bytes
        found = {}
        for step, bytes_beside in zip(program.steps, live.tolist(), strict=True):
            room = max((form.arena - bytes_beside) // _SLOTS, _FINEST_BYTES)
            limit = 1 << (room.bit_length() - 1)  # few sizes: parts of the same size share their kernel
            if step.weight_bytes > room:
                found[step.name] = limit
        return found

    def _folder(self, form: ModelCut) -> Path:
        return self.work / f"form-{list(self._built).index(form)}"

    def least(self, form: ModelCut) -> int:
        """Bound the bytes of activations and weights of a form from below, nothing measured."""
        return least_bytes(untimed_workload(self.built(form).program))

    def estimated(self, form: ModelCut) -> CostedProgram:
        """A form as if cutting cost no more than in one with the same bands, or nothing: a step's parts share its time."""
        alike = (f for f in self.profiled if f.regions == form.regions)
        base = self.candidate(next(alike, self.forms[0]))
        times: dict[int, float] = {}
        for origin, ms in zip(self.built(base.form).origin, base.profile.compute_ms, strict=True):
            times[origin] = times.get(origin, 0.0) + ms
        built = self.built(form)
        parts: dict[int, list[int]] = {}
        for k, origin in enumerate(built.origin):
            parts.setdefault(origin, []).append(k)
        compute = np.zeros(len(built.origin))
        weights = np.array([step.weight_bytes for step in built.program.steps], np.float64)
        for origin, members in parts.items():
            share = weights[members]
            share = share if share.all() else np.ones(len(members))
            compute[members] = times.get(origin, 0.0) * share / share.sum()
        profile = base.profile.model_copy(update={"compute_ms": tuple(compute.tolist())})
        return CostedProgram(self._folder(form), form, built.program, profile)

    def lowest(self, form: ModelCut) -> Ints:
        """The lowest layout of the activations of a form."""
        if form not in self._layouts:
            self._layouts[form] = greedy_layout(untimed_workload(self.built(form).program))
        return self._layouts[form]

    @property
    def idle_bytes(self) -> int:
        """Resident memory of the process that runs plans, before it opens one."""
        return self.candidate(self.forms[0]).profile.idle_bytes

    @property
    def fastest_ms(self) -> float:
        """An inference with all weights in memory, no step cut."""
        return float(np.sum(self.candidate(self.forms[0]).profile.compute_ms))

    def least_bytes(self) -> int:
        """Return the bytes that the finest form needs at least, objects counted."""
        return self.candidate(self.finest).least_bytes()

    def settings(self, runs: int, *, profile: bool = False, isolated: bool = False) -> RunSettings:
        """Return the settings that programs are run with."""
        return RunSettings(
            self.inputs, self.cores.all, self.cores.reader, runs, isolated,
            bandwidth_passes=5 if profile else 0, steps=profile,
        )  # fmt: skip


def _written(values: Mapping[str, Array], work: Path) -> Mapping[str, Path]:
    found = {}
    for number, (name, value) in enumerate(values.items()):
        found[name] = work / f"input-{number}.bin"
        found[name].write_bytes(np.ascontiguousarray(value).tobytes())
    return found
