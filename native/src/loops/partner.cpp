// The loop over the steps of a program, whatever its plan is of: wait for a counter, run a step, count it.
//
// Of a pair the counters are words in memory that both processors see while they run, of which the other one
// uses the lower half. A cold start leaves the loop at a step that is not prepared yet.
#include "loops.h"
#include "threads.h"

using namespace loops;

namespace {

// Longer waits are no hand-overs between processors at work: the core is left to others, a moment at a time.
constexpr Word PATIENT_NS = 20'000'000;
constexpr int LOOKS = 32;  // of one reading of the clock
// A team that is asleep takes .3 ms to compute together on 15 cores: one that soon will is kept awake, by less
// than it waits awake by itself (`library/onednn.cpp`).
constexpr Word ROUSED_NS = 15'000;

void nothing(void*) {}

// Wait until the other counter is at least so far; a team computes next.
Found await(const Own& own, Word needed, Word limit_ns, Four team) {
  if (needed == 0 || load(own.other) >= needed) return DONE;
  const Word begun = now_ns();
  Word roused = begun;
  for (;;) {
    for (int look = 0; look < LOOKS; ++look)
      if (load(own.other) >= needed) return DONE;
    const Word waited = now_ns() - begun;
    if (waited > limit_ns) return LATE;
    if (waited > PATIENT_NS) {
      nap();
    } else if (team != nullptr && begun + waited - roused > ROUSED_NS) {
      team(address(nothing), 0, 0, 0);
      roused = now_ns();
    }
  }
}

// The arguments of a call, with its memories at the addresses of its operands.
const Word* arguments_of(const Places& places, const Call& call, const Word* operands) {
  if (operands == nullptr) return call.arguments;
  if (call.arguments == nullptr) return operands;
  for (Word k = 0; k < call.count; ++k) places.fn_place(call.arguments[2 * k + 1], operands[k], 0, 0);
  return call.arguments;
}

Status run(const Places& places, Word stream, const Call* first, const Item& item) {
  const Word* operands = item.operands;
  for (const Call* call = first; call < item.end; ++call) {
    const Word given = address(arguments_of(places, *call, operands));
    if (const Status status = call->function(call->primitive, stream, call->count, given)) return status;
    if (operands != nullptr) operands += call->count;
  }
  return 0;
}

}  // namespace

Found loops::run_lane(const Places& places, Own& own, const Item* items, Word* times, Word first, Word end,
                      Word last, Word limit_ns) {
  for (Word k = first; k < end; ++k) {
    own.step = k;
    const Call* calls = load(&items[k].first);
    if (calls == nullptr) return NONE;
    if (const Found found = await(own, items[k].needed, limit_ns, own.together)) return found;
    times[2 * k] = now_ns();
    if (const Status status = run(places, own.stream, calls, items[k])) {
      own.status = status;
      return FAILED;
    }
    times[2 * k + 1] = now_ns();
    if (own.counter != nullptr) put(own.counter, k + 1);
  }
  own.step = end;
  return await(own, last, limit_ns, nullptr);
}

EP_EXPORT Word ep_run_lane(const Places* places, Own* own, const Item* items, Word* times, Word first,
                           Word end, Word last, Word limit_ns) {
  return run_lane(*places, *own, items, times, first, end, last, limit_ns);
}
