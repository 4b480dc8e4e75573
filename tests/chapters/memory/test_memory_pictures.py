"""What memory holds in each step, as it is drawn."""

from __future__ import annotations

from pathlib import Path

from streamed_models import streamed

from edgeplan.chapters.memory.pictures import held_by_use, write_map
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.document import MemoryUse
from edgeplan.planning.memory.quick import Mode
from edgeplan.runtime.bands import Region
from edgeplan.runtime.dnnl import Dnnl


def test_a_map_shows_weights_activations_and_what_stays(dnnl: Dnnl, tmp_path: Path) -> None:
    found = streamed(dnnl, "residual", tmp_path, 4096, (Region(1, 3, 2),))
    program = found.built.program
    plan = found.document(bounds.least_bytes(found.workload) + (24 << 10), Mode.back_to_back)
    held = held_by_use(plan, program)
    assert set(held) == set(MemoryUse)
    assert any(h.name.startswith("weights of region") for h in held[MemoryUse.weights])
    assert not any(h.name.startswith("weights") for h in held[MemoryUse.tensor])
    for k, step in enumerate(program.steps):
        there = [h for of in held.values() for h in of if h.lower <= k < h.upper]
        assert sum(h.size for h in there) <= plan.arena_bytes
        assert not step.weight_bytes or f"weights of {step.name}" in {h.name for h in there}
    stay = {k for k, again in enumerate(plan.again) if again == k}
    assert {h.name for h in held[MemoryUse.stays]} == {f"weights of {plan.steps[k]}" for k in stay}
    assert all((h.lower, h.upper) == (0, len(plan.steps)) for h in held[MemoryUse.stays])
    write_map(plan, program, tmp_path / "map.svg")
    drawn = (tmp_path / "map.svg").read_text()
    assert all(f">{use}<" in drawn for use in MemoryUse)
    assert drawn.count("<path") > sum(map(len, held.values()))
