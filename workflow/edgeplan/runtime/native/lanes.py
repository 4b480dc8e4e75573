"""The lanes of a cold start: who prepares what next, and the execution that follows."""

from __future__ import annotations

from edgeplan.runtime.native.intrinsics import invoke_with_four, load_word, next_number, store_word
from edgeplan.runtime.native.partner import run_lane
from edgeplan.runtime.native.stages import create, prepare
from edgeplan.runtime.native.waiting import nap, now_ns, pause, wait_until
from edgeplan.runtime.native.words import (
    ARRIVED,
    CALL_WORDS,
    DONE,
    END,
    FAILED,
    FIRST,
    FN_THREADS,
    HEAD_BLOCK,
    HEAD_CALLS,
    HEAD_SOURCE,
    ITEM_WORDS,
    NO_WEIGHTS,
    NONE,
    OWN_AHEAD,
    OWN_MARKS,
    OWN_STEP,
    STOP,
    WORD,
    Numbers,
    Store,
    Tape,
)
from edgeplan.support.compiled import compiled


@compiled
def take(store: Store, lane: int, stealing: bool) -> int:
    """The next step of a lane, or of another that is behind; -1 where there is none."""
    lanes = len(store.bounds) // 2
    for other in range(lanes if stealing else 1):
        chosen = (lane + other) % lanes
        place = store.bounds.ctypes.data + 2 * chosen * WORD
        if load_word(place) < store.bounds[2 * chosen + 1]:
            found = next_number(place)
            if found < store.bounds[2 * chosen + 1]:
                return int(store.todo[found])
    return NONE


@compiled
def _next_own(store: Store, lane: int) -> int:
    """The step that a lane would take next; `NONE` where it has none."""
    found = load_word(store.bounds.ctypes.data + 2 * lane * WORD)
    return int(store.todo[found]) if found < store.bounds[2 * lane + 1] else NONE


@compiled
def _arrived(tape: Tape, store: Store, step: int) -> bool:
    """Tell whether a step's weights can be had at once."""
    without = tape.records[tape.record_starts[step] + HEAD_SOURCE] == NO_WEIGHTS
    return bool(without or load_word(store.flags.ctypes.data + ARRIVED * WORD) > step)


@compiled
def _pause(tape: Tape, store: Store, places: Numbers, own: Numbers, step: int, begun: int) -> None:
    """A moment of a wait for a step that began then: asleep while its weights come from the disk, which takes longer than that.

    Whoever reads ahead runs on the processor, too; on a virtual machine so may the host's part of the disk.
    """
    if _arrived(tape, store, step):
        pause(places, own, begun)
    else:
        nap(places)


@compiled
def _await_weights(tape: Tape, store: Store, places: Numbers, step: int) -> None:
    """Wait for the weights of a step: to touch them before would have the disk bring others first."""
    while store.flags[STOP] == 0 and not _arrived(tape, store, step):
        nap(places)


@compiled
def _make_ahead(tape: Tape, store: Store, places: Numbers, own: Numbers, marks: Numbers, lane: int) -> int:
    """Make the kernels of one of a lane's steps while the weights of its next one are on their way.

    Whoever prepares the step finds them made.

    Returns:
        `DONE`; `NONE` where the weights are there, or all kernels made; or `FAILED`.
    """
    step = _next_own(store, lane)
    if step < 0 or _arrived(tape, store, step):
        return NONE
    at = max(own[OWN_AHEAD], load_word(store.bounds.ctypes.data + 2 * lane * WORD))
    if at >= store.bounds[2 * lane + 1]:
        return NONE
    own[OWN_AHEAD] = at + 1
    own[OWN_STEP] = store.todo[at]
    return create(tape, store, places, own, marks, tape.records, tape.record_starts[own[OWN_STEP]], own[OWN_STEP])


@compiled
def publish(tape: Tape, store: Store, step: int, block: int) -> int:
    """A step's calls are there, for `advance`."""
    item = store.items.ctypes.data + step * ITEM_WORDS * WORD
    calls = tape.records[tape.record_starts[step] + HEAD_CALLS]
    store_word(item + END * WORD, block + calls * CALL_WORDS * WORD)
    return store_word(item + FIRST * WORD, block)


@compiled
def _ready(store: Store, step: int) -> bool:
    """Tell whether a step's calls are there."""
    return bool(load_word(store.items.ctypes.data + (step * ITEM_WORDS + FIRST) * WORD) != 0)


@compiled
def _linger(places: Numbers, own: Numbers, marks: Numbers, begun: int, slower: float) -> None:
    """Wait so many times as long as what began then has taken; the last mark ends with it."""
    now = now_ns(places, own)
    now = wait_until(places, own, now + int(slower * (now - begun)))
    last = own[OWN_MARKS] * 4 - 1
    if 0 <= last < len(marks):
        marks[last] = now


@compiled
def _prepare_taken(tape: Tape, store: Store, places: Numbers, own: Numbers, marks: Numbers, step: int, slower: float) -> int:
    begun = now_ns(places, own)
    at = tape.record_starts[step]
    block = store.blocks.ctypes.data + tape.records[at + HEAD_BLOCK] * WORD
    found = prepare(tape, store, places, own, marks, tape.records, at, step, block)
    if found == DONE:
        if slower > 0:
            _linger(places, own, marks, begun, slower)
        publish(tape, store, step, block)
    return found


@compiled
def drive(
    tape: Tape, store: Store, places: Numbers, own: Numbers, marks: Numbers, lane: int, stealing: bool, slower: float
) -> int:
    """Prepare a lane's steps until there are none. Otherwise the step at hand is in `own`.

    Args:
        tape: see above.
        store: see above.
        places: see above.
        own: see above.
        marks: of preparations.
        lane: its number.
        stealing: whether to prepare what is other lanes', once there is nothing left.
        slower: stand for a slower core: wait so many times as long as each preparation took.
    """
    while store.flags[STOP] == 0:
        begun = now_ns(places, own) if slower > 0 else 0
        found = _make_ahead(tape, store, places, own, marks, lane)
        if found == DONE:
            if slower > 0:
                _linger(places, own, marks, begun, slower)
            continue
        if found == FAILED:
            return FAILED
        step = take(store, lane, stealing)
        if step < 0:
            return DONE
        own[OWN_STEP] = step
        _await_weights(tape, store, places, step)
        found = _prepare_taken(tape, store, places, own, marks, step, slower)
        if found != DONE:
            return found
    return DONE


@compiled
def _prepare_meanwhile(tape: Tape, store: Store, places: Numbers, own: Numbers, marks: Numbers, wanted: int, late: bool) -> int:
    """Prepare one of the main lane's steps, or make kernels ahead, while the step to be executed is not ready.

    Args:
        tape: see above.
        store: see above.
        places: see above.
        own: see above.
        marks: of preparations.
        wanted: the step to be executed.
        late: whether it is late, so that others' are prepared, too.
    """
    found = _make_ahead(tape, store, places, own, marks, 0)
    if found != NONE:
        return found
    mine = _next_own(store, 0)
    step = NONE
    if mine >= 0 and _arrived(tape, store, mine):
        step = take(store, 0, False)  # noqa: FBT003  of compiled functions all arguments are positional
    elif late and _arrived(tape, store, wanted):
        step = take(store, 0, True)  # noqa: FBT003
    if step < 0:
        return NONE
    own[OWN_STEP] = step
    return int(_prepare_taken(tape, store, places, own, marks, step, 0.0))


@compiled
def _await(
    tape: Tape, store: Store, places: Numbers, own: Numbers, marks: Numbers, wanted: int, stealing: bool, patience_ns: int
) -> int:
    """Prepare what there is to prepare until a step is ready.

    Returns:
        `DONE`; `NONE` if its lane is late; or `LEFT_TO_PYTHON` or `FAILED`, with the step at hand in `own`.
    """
    begun, idle = 0, 0  # when the wait began, and since when there has been nothing to prepare
    while not _ready(store, wanted):
        late = stealing and begun != 0 and now_ns(places, own) - begun > patience_ns
        found = _prepare_meanwhile(tape, store, places, own, marks, wanted, late)
        if found == DONE:
            idle = 0
            continue
        if found != NONE:
            return int(found)
        now = now_ns(places, own)
        if begun == 0:
            begun = now
        elif now - begun > patience_ns:
            return NONE
        if idle == 0:
            idle = now
        _pause(tape, store, places, own, wanted, idle)
    return DONE


@compiled
def await_all(tape: Tape, store: Store, places: Numbers, own: Numbers) -> int:
    """Wait until all steps are prepared, or somebody has given up.

    Args:
        tape: see above.
        store: see above.
        places: see above.
        own: see above.

    Returns:
        `DONE`; `NONE` where steps are missing.
    """
    for k in range(len(tape.record_starts)):
        begun = now_ns(places, own)
        while not _ready(store, k):
            if load_word(store.flags.ctypes.data + STOP * WORD) != 0:
                return NONE
            _pause(tape, store, places, own, k, begun)
    return DONE


@compiled
def advance(
    tape: Tape,
    store: Store,
    places: Numbers,
    own: Numbers,
    marks: Numbers,
    times: Numbers,
    first: int,
    last: int,
    narrow: int,
    stealing: bool,
    patience_ns: int,
) -> int:
    """Execute steps in order, and prepare the main lane's whenever one is not ready, then those of lanes that are late.

    Weights of later steps are not waited for: the step at hand may be ready before they come.

    Args:
        tape: see above.
        store: see above.
        places: see above.
        own: see above.
        marks: of preparations.
        times: begin and end of each step's execution, as `run_lane` takes them.
        first: step.
        last: the step after the last.
        narrow: cores that execute.
        stealing: whether to prepare what is other lanes'.
        patience_ns: how long a lane may be late.

    Returns:
        the first step that was not executed; or `LEFT_TO_PYTHON` or `FAILED`, with the step at hand in `own`.
    """
    k = first
    while True:
        found = run_lane(places, own, store.items, times, k, last, 0, 0)
        if found != NONE:
            return last if found == DONE else found
        k = own[OWN_STEP]
        if narrow > 1:
            invoke_with_four(places[FN_THREADS], 1, 0, 0, 0)
        found = _await(tape, store, places, own, marks, k, stealing, patience_ns)
        if narrow > 1:
            invoke_with_four(places[FN_THREADS], narrow, 0, 0, 0)
        if found == NONE:
            return int(k)
        if found != DONE:
            return int(found)
