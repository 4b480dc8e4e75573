"""The native loops and Python agree on these kinds, rows of tables, and columns (`loops.h`)."""

from __future__ import annotations

INTEGERS, FLOATS = 18, 3  # arguments of a call, of either kind
#: Kinds of operations: call a function that returns a status; one that returns a handle; one that returns nothing; copy a
#: handle among the scratch words; move a primitive descriptor on to an implementation.
CALL, ASK, TELL, COPY, WALK = range(5)
#: Kinds of arguments: a number; a handle; where a handle is to be put; a constant's address; a scratch word's; an address in
#: the session's memory; the engine.
NUMBER, HANDLE, RESULT, CONSTANT, SCRATCH, MEMORY, ENGINE = range(7)
#: Where weights come from: nowhere, copied from the cache, mapped, made from the model's file, or what the cold start used.
NO_WEIGHTS, COPIED, MAPPED, RAW, SHARED = range(5)
#: Rows of `places`: addresses, functions of the library, what to ask for.
AT_ENGINE, AT_MEMORY, AT_CONSTANTS, FN_QUERY, FN_NEXT, FN_MEMORY, FN_EXECUTE, FN_PLACE, WHAT_NAME, PLACES = range(10)
#: Rows of `own`: stream, operation and status of a failure, step at hand; of a pair the addresses of this lane's counter and of
#: the other one's, 0 where there is none, and of `GOMP_parallel`, which keeps a team awake; 0 for one thread.
OWN_STREAM, OWN_OPERATION, OWN_STATUS, OWN_STEP, OWN_COUNTER, OWN_OTHER, OWN_TOGETHER, OWN_WORDS = range(8)
#: How a lane ends: well, at a step that is not prepared, in a failure, or since the other processor of a pair did not come in
#: time.
DONE, NONE, FAILED, LATE = 0, -1, -2, -3
#: Head of a step's record.
(HEAD_SOURCE, HEAD_SEGMENT, HEAD_BYTES, HEAD_PLACE, HEAD_GROUPS, HEAD_SLOTS, HEAD_CALLS, HEAD) = range(8)

#: Columns of the steps of a lane: how far the other counter must be, the addresses where the step's calls begin (0 until it is
#: prepared) and end, and that of the addresses of its operands, call by call; 0 where the arguments of its calls know them.
NEEDED, FIRST, END, OPERANDS, ITEM_WORDS = range(5)
#: Columns of calls, which but for the stream are a function and its arguments: steps of one kernel share them. Without
#: arguments, as compiled kernels are called, these are the addresses of the operands.
FUNCTION, PRIMITIVE, COUNT, ARGUMENTS, CALL_WORDS = range(5)

WORD = 8
