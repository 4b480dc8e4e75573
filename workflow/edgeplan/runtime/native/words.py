"""The native loops and Python agree on these kinds, rows of tables, and arrays that pass between them (`loops.h`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:  # a process that runs a plan of memory loads no numpy
    import numpy as np
    import numpy.typing as npt

Numbers: TypeAlias = "npt.NDArray[np.int64]"

INTEGERS, FLOATS = 18, 3  # arguments of a call, of either kind
#: Kinds of operations: call a function that returns a status; one that returns a handle; one that returns nothing; copy a
#: handle among the scratch words; move a primitive descriptor on to an implementation.
CALL, ASK, TELL, COPY, WALK = range(5)
#: Kinds of arguments: a number; a handle; where a handle is to be put; a constant's address; a scratch word's; an address in
#: the session's memory; the engine.
NUMBER, HANDLE, RESULT, CONSTANT, SCRATCH, MEMORY, ENGINE = range(7)
#: Where weights come from: nowhere, copied from the cache, mapped, or Python must say.
NO_WEIGHTS, COPIED, MAPPED, BY_PYTHON = range(4)
#: Rows of `places`: addresses, functions of the libraries, what to ask for.
(
    AT_ENGINE,
    AT_MEMORY,
    AT_WEIGHTS,
    AT_MAP,
    AT_CONSTANTS,
    CACHE_FILE,
    FN_QUERY,
    FN_NEXT,
    FN_MEMORY,
    FN_EXECUTE,
    FN_THREADS,
    FN_PLACE,
    WHAT_NAME,
    PLACES,
) = range(14)
#: Rows of `own`: stream, operation and status of a failure, step at hand, marks so far, where in `todo` the next step stands
#: whose kernels may be made ahead; of a pair the addresses of this lane's counter and of the other one's, 0 where there is
#: none.
OWN_STREAM, OWN_OPERATION, OWN_STATUS, OWN_STEP, OWN_MARKS, OWN_AHEAD, OWN_COUNTER, OWN_OTHER, OWN_WORDS = range(9)
#: What became of a step; there was none, or it is not prepared.
DONE, NONE, LEFT_TO_PYTHON, FAILED = 0, -1, -2, -3
#: Rows of `Store.flags`.
STOP, ARRIVED, FLAGS = range(3)
#: Stand for an operation where something else failed.
BINDING, EXECUTION = -1, -2
#: Stages in marks.
READ, CREATE = range(2)
#: Head of a step's record.
(HEAD_SOURCE, HEAD_SEGMENT, HEAD_BYTES, HEAD_PLACE, HEAD_GROUPS, HEAD_SLOTS, HEAD_CALLS, HEAD_BLOCK, HEAD) = range(9)

#: How the lane of a pair ends besides `DONE` and `FAILED`: the other processor did not come in time.
LATE = -4
#: Columns of the steps of a lane: how far the other counter must be, the addresses where the step's calls begin (0 until it is
#: prepared) and end, and that of the addresses of its operands, call by call; 0 where the arguments of its calls know them.
NEEDED, FIRST, END, OPERANDS, ITEM_WORDS = range(5)
#: Columns of calls, which but for the stream are a function and its arguments: steps of one kernel share them. Without
#: arguments, as compiled kernels are called, these are the addresses of the operands.
FUNCTION, PRIMITIVE, COUNT, ARGUMENTS, CALL_WORDS = range(5)

WORD = 8
LANES = 4  # of `entries.mix`: their multiplications overlap


def memories_at(calls: int) -> int:
    """Where in a step's block the memories of its weights stand: behind the words of its calls."""
    return CALL_WORDS * calls


class Tape(NamedTuple):
    """A program as operations, in groups that each make one object; see `tape.Compiler`.

    Attributes:
        kinds, functions, made: of each operation: kind, function (its number in `tape.FUNCTIONS` in a file, its address in a
            session), handle that `ASK` gives.
        roles, values: kind and value of its integer arguments, at most `INTEGERS` each.
        floats: its other arguments, `FLOATS` each.
        starts: first operation of each group, and the end.
        records: of the steps, one after the other.
        record_starts: first word of each.
    """

    kinds: Numbers
    functions: Numbers
    made: Numbers
    roles: npt.NDArray[np.int8]
    values: Numbers
    floats: npt.NDArray[np.float32]
    starts: Numbers
    records: Numbers
    record_starts: Numbers


class Store(NamedTuple):
    """The objects of a session.

    Attributes:
        handles: the library's.
        states: of each group: made or not.
        scratch: words that arrays of handles are put together in.
        blocks: prepared calls of all steps.
        items: the steps as the loop takes them, `ITEM_WORDS` for each (`NEEDED`).
        todo: steps of all lanes; bounds: where each lane's next one and its end stand in it.
        flags: `STOP` is set to stop; steps before `ARRIVED` have their weights in memory.
        kernels: addresses of the compiled kernels, in the order of their names.
    """

    handles: Numbers
    states: Numbers
    scratch: Numbers
    blocks: Numbers
    items: Numbers
    todo: Numbers
    bounds: Numbers
    flags: Numbers
    kernels: Numbers
