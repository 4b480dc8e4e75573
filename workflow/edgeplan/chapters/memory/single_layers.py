"""Kernels and cuts of one layer: what trades memory for time within it (the paper's Figures 2 and 11).

A convolution stands between two poolings, so that it is given and leaves activations in the layout that they have inside a
model. Of a fully connected layer weights are cut, of a convolution weights, or its input into bands of rows.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.folders import CostedProgram, ModelCut
from edgeplan.chapters.memory.programs import LIMITS, ModelPrograms
from edgeplan.chapters.memory.studies import ModelBench, in_own_step
from edgeplan.errors import InfeasibleError, UndecidedError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.memory.quick import Mode
from edgeplan.planning.memory.workload import least_bytes
from edgeplan.profiling.streaming import profile_program, run_apart
from edgeplan.runtime.bands import Region
from edgeplan.runtime.candidates import default
from edgeplan.runtime.creation import Implementation
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import WEIGHTS_NAME
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.packed_programs import TapedProgram
from edgeplan.runtime.streaming.build import Built, build
from edgeplan.runtime.streaming.weights_file import write_weights
from edgeplan.runtime.streaming.workloads import workload_of

#: Bytes of weights of a part that are tried, the coarsest first; the first cuts nothing.
_LIMITS = (1 << 40, 16 * MIB, 8 * MIB, 4 * MIB, 2 * MIB, MIB, MIB // 2, MIB // 4)
_ROWS = (1, 2, 4, 7, 14)  # of a band
_RUNS, _RANK = 7, 4


def _convolution(channels: int, size: int) -> Graph:
    b = GraphBuilder("convolution", (1, channels, size, size))
    return b.build(b.maxpool(b.conv(b.maxpool("input", 3, 1, 1), channels, 3, name="layer"), 3, 1, 1))


def _fully_connected(inputs: int, outputs: int) -> Graph:
    b = GraphBuilder("fully connected", (1, inputs))
    return b.build(b.softmax(b.fc("input", outputs, name="layer")))


#: Models of one layer, by name: two of VGG-19's as the paper has them, and small ones.
LAYERS: Mapping[str, Callable[[], Graph]] = MappingProxyType(
    {
        "conv3x3-512-28x28": lambda: _convolution(512, 28),
        "fc-4096-4096": lambda: _fully_connected(4096, 4096),
        "conv3x3-64-14x14": lambda: _convolution(64, 14),
        "fc-512-512": lambda: _fully_connected(512, 512),
    }
)


def single_layers(bench: ModelBench) -> Iterator[dict[str, Any]]:
    """Run the layers of the settings: every kernel of each convolution, and every cut of each layer."""
    subject = bench.subject
    settings = subject.settings
    for number, name in enumerate(settings.single_layers):
        work = subject.work / f"layer-{number}"
        (work / "planner").mkdir(parents=True)
        model = save_onnx(LAYERS[name](), work / "layer.onnx")
        programs = ModelPrograms(model, work / "planner", settings.threads, subject.cores, settings.runs)
        if name.startswith("conv"):
            for row in kernels(programs, model, work, settings.threads):
                yield {"model": name} | row
        for row in slices(programs, settings.runs):
            yield {"model": name} | row
        shutil.rmtree(work)


def kernels(programs: ModelPrograms, model: Path, work: Path, threads: int) -> Iterator[dict[str, Any]]:
    """Each implementation of the convolution that oneDNN offers: what it takes of memory, and its time."""
    dnnl, chosen, offered = Dnnl(), dict[Any, Implementation](), dict[int, tuple[Implementation, ...]]()

    def choose(found: tuple[Implementation, ...]) -> Implementation:
        offered.setdefault(len(chosen), found)  # the number of the step's key among those of all
        return default(found)

    def built(known: dict[Any, Implementation]) -> Built:
        with dnnl.without_primitive_cache():
            return build(dnnl, programs.lowered, BLOCKED, _LIMITS[0], threads, choose=choose, known=known)

    built(chosen)
    place, key = next((place, key) for place, key in enumerate(chosen) if key[0] == "conv")
    for number, kernel in enumerate(offered[place]):
        made, folder = built({**chosen, key: kernel}), work / f"kernel-{number}"
        folder.mkdir()
        write_weights(dnnl, model, programs.lowered, made, folder / WEIGHTS_NAME)
        programs.writer.program(folder, TapedProgram(made.program))
        profile = profile_program(folder, made.program, programs.settings(_RUNS, profile=True))
        needs = workload_of(made.program, profile.compute_ms)
        k = int(needs.weight_bytes.argmax())  # poolings have none
        weights, live = int(needs.weight_bytes[k]), int(needs.live_bytes[k])
        yield {
            "case": "kernel", "setting": kernel.name, "compute_ms": float(needs.compute_ms[k]), "weights": weights,
            "activations": live, "needed": weights + live,
        }  # fmt: skip
        shutil.rmtree(folder)


def cut_name(candidate: CostedProgram) -> str:
    """Name the cut of a program as tables do."""
    limit = candidate.form.limit
    parts = "whole layers" if limit == LIMITS[0] else f"weights in parts of {limit / MIB:g} MiB"
    heights = sorted({region.rows for region in candidate.form.regions})
    return parts + (f", inputs in bands of {' and '.join(map(str, heights))} rows" if heights else "")


def slices(programs: ModelPrograms, runs: int) -> Iterator[dict[str, Any]]:
    """Each cut of a layer: the least memory beside kernels, and times with nothing loaded ahead and with one part ahead."""
    whole = programs.built(ModelCut(_LIMITS[0])).program
    last, height = len(whole.step_names) - 1, max((b.shape[2] for b in whole.outputs if len(b.shape) == _RANK), default=0)
    cuts = [ModelCut(limit) for limit in _LIMITS]
    cuts += [ModelCut(_LIMITS[0], (Region(0, last, rows),)) for rows in _ROWS if rows < height]
    seen = list[CostedProgram]()
    for cut in cuts:
        candidate = programs.candidate(cut)
        if candidate in seen:
            continue
        seen.append(candidate)
        work = candidate.workload
        arena = least_bytes(work)
        row = {
            "case": "slice", "setting": cut_name(candidate), "budget": cut.limit, "needed": arena,
            "compute_ms": float(work.compute_ms.sum()), "weights": int(work.weight_bytes.sum()),
            "load_ms": float(work.weight_bytes.sum()) / candidate.profile.bytes_per_ms, "steps": len(work.weight_bytes),
            "place": len(cut.regions),
        }  # fmt: skip
        yield row | _timed(programs, candidate, arena + int(work.weight_bytes.max()), runs)


def _timed(programs: ModelPrograms, candidate: CostedProgram, arena: int, runs: int) -> dict[str, Any]:
    """Times of a cut in an arena: `median_ms` with weights loaded ahead, `full_ms` with each part loaded when it is needed."""
    try:
        plan = candidate.documented(candidate.planned(arena + candidate.objects_bytes, Mode.back_to_back))
    except (InfeasibleError, UndecidedError) as error:
        return {"reason": error.what}
    settings = replace(programs.settings(max(runs, 3)), followed=True)
    ahead, full = (run_apart(candidate.folder, [schedule], settings) for schedule in (plan.model_dump(), in_own_step(plan)))
    return {
        "peak": plan.arena_bytes, "median_ms": statistics.median(ahead.phases[0].run_ms[1:]),
        "full_ms": statistics.median(full.phases[0].run_ms[1:]), "read": statistics.median(ahead.phases[0].read_bytes[1:]),
    }  # fmt: skip
