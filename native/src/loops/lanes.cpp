// The lanes of a cold start: who prepares what next, and the execution that follows.
#include <algorithm>

#include "loops.h"
#include "threads.h"

using namespace loops;

namespace {

// Where a lane's next step stands in `todo`, behind which is the end of its steps there.
Word* bounds_of(const Store& store, Word lane) { return &store.bounds[2 * lane]; }

// The next step of a lane, or of another that is behind; `NONE` where there is none.
Word take(const Store& store, Word lane, bool stealing) {
  const Word lanes = store.bounds.length / 2;
  for (Word other = 0; other < (stealing ? lanes : 1); ++other) {
    Word* next = bounds_of(store, (lane + other) % lanes);
    if (load(next) >= next[1]) continue;
    const Word found = next_number(next);
    if (found < next[1]) return store.todo[found];
  }
  return NONE;
}

// The step that a lane would take next; `NONE` where it has none.
Word next_own(const Store& store, Word lane) {
  const Word *next = bounds_of(store, lane), found = load(next);
  return found < next[1] ? store.todo[found] : Word{NONE};
}

bool stopped(const Context& context) { return load(&context.store.flags[STOP]) != 0; }

// Tell whether a step's calls are there.
bool ready(const Context& context, Word step) { return load(&context.store.items[step].first) != nullptr; }

// Tell whether a step's weights can be had at once.
bool arrived(const Context& context, Word step) {
  return context.tape.record(step).source == NO_WEIGHTS || load(&context.store.flags[ARRIVED]) > step;
}

// A moment of a wait for a step that began then: asleep while its weights come from the disk, which takes
// longer. Whoever reads ahead runs on the processor, too, as the host's part of a virtual disk may.
void rest_for(const Context& context, Word step, Word begun) {
  if (arrived(context, step))
    rest(begun);
  else
    nap();
}

// Make the kernels of one of a lane's steps while the weights of its next one are on their way: whoever
// prepares the step finds them made. `NONE` where the weights are there, or all kernels made.
Found make_ahead(const Worker& worker, Word lane) {
  const Context& context = worker.context;
  const Word step = next_own(context.store, lane);
  if (step < 0 || arrived(context, step)) return NONE;
  const Word *next = bounds_of(context.store, lane), at = std::max(worker.own.ahead, load(next));
  if (at >= next[1]) return NONE;
  worker.own.ahead = at + 1;
  worker.own.step = context.store.todo[at];
  return create(worker, context.tape.record(worker.own.step), worker.own.step);
}

// A step's calls are there, for `ep_advance`.
void publish(const Context& context, Word step, Call* block) {
  Item& item = context.store.items[step];
  item.end = block + context.tape.record(step).calls;
  put(&item.first, block);
}

// Wait so many times as long as what began then has taken; the last mark ends with it.
void linger(const Worker& worker, Word begun, double slower) {
  Word now = now_ns();
  now = wait_until(now + static_cast<Word>(slower * static_cast<double>(now - begun)));
  const Word last = 4 * worker.own.marks - 1;
  if (0 <= last && last < worker.marks.length) worker.marks[last] = now;
}

Found prepare_taken(const Worker& worker, Word step, double slower) {
  const Context& context = worker.context;
  const Head& record = context.tape.record(step);
  Call* block = reinterpret_cast<Call*>(&context.store.blocks[record.block]);
  const Word begun = now_ns();
  if (const Found found = prepare(worker, record, step, block)) return found;
  if (slower > 0) linger(worker, begun, slower);
  publish(context, step, block);
  return DONE;
}

// Prepare one of the main lane's steps, or make kernels ahead, while the step wanted is not ready; where that
// is late, others' steps, too.
Found prepare_meanwhile(const Worker& worker, Word wanted, bool late) {
  const Context& context = worker.context;
  if (const Found found = make_ahead(worker, 0); found != NONE) return found;
  const Word mine = next_own(context.store, 0);
  Word step = NONE;
  if (mine >= 0 && arrived(context, mine))
    step = take(context.store, 0, false);
  else if (late && arrived(context, wanted))
    step = take(context.store, 0, true);
  if (step < 0) return NONE;
  worker.own.step = step;
  return prepare_taken(worker, step, 0.0);
}

// Prepare what there is to prepare until a step is ready; `NONE` if its lane is late.
Found await(const Worker& worker, Word wanted, bool stealing, Word patience_ns) {
  Word begun = 0, idle = 0;  // when the wait began, and since when there has been nothing to prepare
  while (!ready(worker.context, wanted)) {
    const bool late = stealing && begun != 0 && now_ns() - begun > patience_ns;
    const Found found = prepare_meanwhile(worker, wanted, late);
    if (found == DONE) {
      idle = 0;
      continue;
    }
    if (found != NONE) return found;
    const Word now = now_ns();
    if (begun == 0)
      begun = now;
    else if (now - begun > patience_ns)
      return NONE;
    if (idle == 0) idle = now;
    rest_for(worker.context, wanted, idle);
  }
  return DONE;
}

}  // namespace

EP_EXPORT Word ep_take(const Context* context, Word lane, Word stealing) {
  return take(context->store, lane, stealing != 0);
}

EP_EXPORT void ep_publish(const Context* context, Word step, Call* block) { publish(*context, step, block); }

// Wait until all steps are prepared, or somebody has given up: `NONE` where steps are missing.
EP_EXPORT Word ep_await_all(const Context* context) {
  for (Word step = 0; step < context->tape.record_starts.length; ++step) {
    const Word begun = now_ns();
    while (!ready(*context, step)) {
      if (stopped(*context)) return NONE;
      rest_for(*context, step, begun);
    }
  }
  return DONE;
}

// Prepare a lane's steps until there are none, with `stealing` then others'; or end with the step at hand in
// `own`. `slower` stands for a slower core: wait so many times as long as each preparation took.
EP_EXPORT Word ep_drive(const Context* context, Own* own, Word* marks, Word length, Word lane, Word stealing,
                        double slower) {
  const Worker worker{*context, *own, {marks, length}};
  while (!stopped(*context)) {
    const Word begun = now_ns();
    const Found made = make_ahead(worker, lane);
    if (made == FAILED) return FAILED;
    if (made == DONE) {
      if (slower > 0) linger(worker, begun, slower);
      continue;
    }
    const Word step = take(context->store, lane, stealing != 0);
    if (step < 0) return DONE;
    own->step = step;
    // to touch weights before they have come would have the disk bring others first
    while (!stopped(*context) && !arrived(*context, step)) nap();
    if (const Found found = prepare_taken(worker, step, slower)) return found;
  }
  return DONE;
}

// Execute steps in order on `narrow` cores, and prepare the main lane's whenever one is not ready, then with
// `stealing` those of lanes that are late by `patience_ns`. Weights of later steps are not waited for: the
// step at hand may be ready before they come. Begin and end of each execution are put into `times`.
// The first step that was not executed; or `LEFT_TO_PYTHON` or `FAILED`, with the step at hand in `own`.
EP_EXPORT Word ep_advance(const Context* context, Own* own, Word* marks, Word length, Word* times, Word first,
                          Word last, Word narrow, Word stealing, Word patience_ns) {
  const Worker worker{*context, *own, {marks, length}};
  const Places& places = *context->places;
  for (Word k = first;;) {
    const Found ran = run_lane(places, *own, context->store.items.from, times, k, last, 0, 0);
    if (ran != NONE) return ran == DONE ? last : Word{ran};
    k = own->step;
    if (narrow > 1) places.fn_threads(1, 0, 0, 0);
    const Found found = await(worker, k, stealing != 0, patience_ns);
    if (narrow > 1) places.fn_threads(narrow, 0, 0, 0);
    if (found != DONE) return found == NONE ? k : Word{found};
  }
}
