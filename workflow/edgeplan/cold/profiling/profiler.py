"""Profiling a model: what the row store lacks is measured, the rest is read."""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from edgeplan.cold.clock import Clock, calibrate
from edgeplan.cold.inputs import Array
from edgeplan.cold.interference import PRODUCTS, Interference
from edgeplan.cold.profiling.contention import measure_pairs
from edgeplan.cold.profiling.fresh import measure_start, start_of, start_row, start_signature
from edgeplan.cold.profiling.measure import measure
from edgeplan.cold.profiling.memory import first_touch, pinned
from edgeplan.cold.profiling.once import measure_once, once_ms
from edgeplan.cold.profiling.profiles import profile_of
from edgeplan.cold.profiling.rounds import Rig
from edgeplan.cold.profiling.settings import Cores, ProfileSettings
from edgeplan.cold.profiling.store import Constants, ProfileStore, identity
from edgeplan.cold.profiling.subjects import signatures, subject, touched_pages
from edgeplan.devices.engines.base import random_inputs
from edgeplan.graph.ir import Graph
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.references import References
from edgeplan.planning.cold_start.profile import Profile
from edgeplan.progress import progress
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.process import prepare_process
from edgeplan.runtime.steps import Lowered
from edgeplan.runtime.weights import WeightLocation, locate_weights

log = logging.getLogger(__name__)
_THOUSANDTHS = 1000
_LOCK_SECONDS = 600.0


@dataclass(frozen=True)
class _Model:
    """A model to be profiled."""

    name: str
    dnnl: Dnnl
    path: Path
    lowered: Lowered
    weights: Mapping[str, WeightLocation]
    inputs: Mapping[str, Array]


def profile_model(
    dnnl: Dnnl,
    model: Path,
    graph: Graph,
    settings: ProfileSettings,
    *,
    cores: Cores,
    name: str,
    store: ProfileStore | None = None,
    layouts: Sequence[str] = HOMES,
) -> tuple[Profile, ...]:
    """Profile a model under every home layout; only what the store lacks is measured.

    Args:
        dnnl: the library.
        model: the model file; its weights are read while measuring.
        graph: its graph.
        settings: how to measure.
        cores: of the device.
        name: of the model.
        store: rows measured before; None keeps nothing.
        layouts: home layouts.

    Returns:
        One profile for each home layout, in the order of `layouts`.

    Raises:
        ModelError: operators that the runtime lacks (all are named, nothing is measured), or a damaged file.
        NoiseError: the machine is too busy; what was stored before is kept.
        BusyError: another process is measuring on this machine.
        FormatError: a stored file is damaged.
        StoreError: rows could not be stored.
    """
    lowered = lower(graph)
    known = _Model(name, dnnl, model, lowered, locate_weights(model, lowered), random_inputs(graph))
    rows = store or ProfileStore(None, identity(dnnl.info, settings, cores))
    signed = {home: signatures(dnnl, lowered, home) for home in layouts}
    missing = [home for home in layouts if not all(map(rows.known, (*signed[home], start_signature(signed[home]))))]
    constants = rows.constants()
    if missing or constants is None:
        with machine_lock(_LOCK_SECONDS):
            prepare_process(dnnl)
            constants = _measure(known, missing or list(layouts)[:1], rows, settings, cores)
        rows.merge()
    return pooled([_profile(known, home, rows, settings, cores, constants) for home in layouts])


def pooled(profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    """The profiles of a model with the medians over its home layouts of what is measured once for each layout.

    Layouts differ less in these than one measurement from the next, and a planner compares layouts. The factor on creation is
    each layout's own: unequal steps share conversions and descriptors too, which the profiler makes for each anew, and how much
    they share is a matter of the layout.
    """

    def medians(found: Sequence[Any]) -> Any:
        names = [field.name for field in fields(found[0])]
        return type(found[0])(*(statistics.median(getattr(one, name) for one in found) for name in names))

    contention, fresh = medians([p.contention for p in profiles]), medians([p.fresh for p in profiles])
    start = statistics.median(p.start_ms for p in profiles)
    own = (replace(fresh, create=p.fresh.create) for p in profiles)
    return tuple(replace(p, contention=contention, fresh=f, start_ms=start) for p, f in zip(profiles, own, strict=True))


def _profile(
    model: _Model, home: str, rows: ProfileStore, settings: ProfileSettings, cores: Cores, constants: Constants
) -> Profile:
    """The profile of a model under a home layout whose steps are stored; what a fresh process pays, if that is too."""
    signed = signatures(model.dnnl, model.lowered, home)
    pages = touched_pages(model.dnnl, model.lowered, home, constants.page_bytes)
    steps = [
        (step, signature, count * constants.touch_ms_per_page)
        for step, signature, count in zip(model.lowered.steps, signed, pages, strict=True)
    ]
    start = start_of(rows.rows(start_signature(signed)) if rows.known(start_signature(signed)) else ())
    return profile_of(
        model.name,
        home,
        steps,
        model.lowered.shapes,
        {signature: rows.rows(signature) for signature in signed},
        settings,
        cores,
        start.contention,
        touch_ms_per_byte=constants.touch_ms_per_byte,
        start_ms=start.start_ms,
        once_ms=once_ms(rows.all_rows()),
        fresh=start.fresh,
    )


def _measure(model: _Model, layouts: Sequence[str], store: ProfileStore, settings: ProfileSettings, cores: Cores) -> Constants:
    """Measure the missing rows of some home layouts, and what the machine's constants lack."""
    with pinned(cores.big[0]):
        # The big cores alone: one load takes longer on a little core, which is no disturbance.
        references, watch = References(), Interference(cores.big, PRODUCTS)
        constants = store.constants()
        if constants is None:
            nominal = calibrate(references, settings.reference_runs)
            clock = Clock(references, nominal, watch, settings.reference_runs)
            before = clock.now()
            touch_ms, page_bytes = min(first_touch() for _ in range(5))
            touch_ms /= clock.slowness(before, clock.now())
            constants = Constants(
                nominal_compute_us=nominal.compute_us,
                nominal_bandwidth_us=nominal.bandwidth_us,
                touch_ms_per_page=touch_ms,
                page_bytes=page_bytes,
            )
            store.keep_constants(constants)
        clock = Clock(references, constants.nominal, watch, settings.reference_runs)
    description = f"profiling {model.path.name}"
    with (
        progress(description, _THOUSANDTHS * len(layouts)) as advance,
        tempfile.TemporaryDirectory(prefix="edgeplan-profile-") as scratch,
    ):
        starts = replace(clock, watch=Interference(cores.all))
        for home in layouts:
            _layout(model, home, store, settings, cores, clock, starts, constants, Path(scratch), advance)
    return constants


def _layout(
    model: _Model,
    home: str,
    store: ProfileStore,
    settings: ProfileSettings,
    cores: Cores,
    clock: Clock,
    starts: Clock,
    constants: Constants,
    scratch: Path,
    advance: Callable[[int], None],
) -> None:
    found = subject(model.dnnl, model.lowered, home, model.weights, len(cores.big))
    evicted = settings.page_cache == "evicted"
    rig = Rig(
        model.dnnl, found, model.path, model.inputs, classes=cores.classes, big=cores.big, scratch=scratch, evicted=evicted
    )
    with rig:
        missing = [group for group in found.groups if not store.known(group.digest)]
        if missing:
            measured = measure(rig, missing, settings, clock, advance)
            store.add([*measured, *measure_once(rig.trials, once_ms(store.all_rows()), scratch, clock)])
        signed = [rig.group[index].digest for index in range(len(model.lowered.steps))]
        if store.known(start_signature(signed)):
            return
        pairs = measure_pairs(rig, cores, starts.watch)
    profile = _profile(model, home, store, settings, cores, constants)
    shapes = {name: values.shape for name, values in model.inputs.items()}
    repeats = max(settings.blocks // 2, 1)
    start = measure_start(
        model.dnnl, model.path, profile, shapes, pairs, cores=cores, scratch=scratch, repeats=repeats, clock=starts
    )
    store.add([start_row(signed, start)])
