// Prices schedules of cold starts whose weights are on the disk, and improves them by single changes.
//
// Called by edgeplan's planning/optimal.py. The order of events is as planning/machine.py says it;
// a test simulates it.
#include "../base.h"

#include <limits>

namespace {

// Of a step by one of its candidates, ms. The early part of a preparation does not wait for weights.
struct Times {
  double read, early_main, early_queue, main, queue, narrow, wide;
};

// A profile and its disk, as edgeplan's SearchTimes.
struct SearchTimes {
  const Times *times;     // by step and candidate
  const Word *candidates; // how many, by step
  Word steps, width;      // width: candidates of the richest step
  Word queues, widens;    // preparing cores; whether execution may widen
  double latency_ms;

  const Times &of(Word step, Word candidate) const { return times[step * width + candidate]; }
};

struct Step {
  double early, late, arrives, ready;
};

// How far a core is with its own steps: before place `at` they are prepared, before `made` they have kernels.
struct Progress {
  Word length, at, made;
};

// Memory of a search, as edgeplan's Scratch.
struct Scratch {
  Step *steps;
  Progress *cores; // the main core's first
  Word *own;       // the steps of each core, so many rows
};

// As Python's: without an order (NaN) it is the first.
double later(double one, double other) { return other > one ? other : one; }
double sooner(double one, double other) { return other < one ? other : one; }

// A core that prepares; its functions return when the work is done.
class Core {
public:
  Core(const SearchTimes &times, const Scratch &memory, Word core)
      : steps_(memory.steps), progress_(memory.cores[core]), own_(memory.own + core * times.steps) {}

  void add(Word step) { own_[progress_.length++] = step; }
  bool is_done() const { return progress_.at == progress_.length; }
  Word following() const { return own_[progress_.at]; }

  // Whether the weights of the next step are on their way while kernels remain to be made.
  bool can_make(double now) const {
    return progress_.made < progress_.length && steps_[following()].arrives > now;
  }

  double make(double now) { return now + steps_[own_[progress_.made++]].early; }

  double prepare(double now) {
    if (progress_.made == progress_.at) now = make(now);
    Step &step = steps_[own_[progress_.at++]];
    return step.ready = later(now, step.arrives) + step.late;
  }

  double prepare_all(double now) {
    while (!is_done()) now = can_make(now) ? make(now) : prepare(now);
    return now;
  }

private:
  Step *steps_;
  Progress &progress_;
  Word *own_;
};

// Gives each step to its core, and says when its weights come.
void distribute(const SearchTimes &times, const Scratch &memory, const Word *choice, const Word *place) {
  for (Word core = 0; core <= times.queues; ++core) memory.cores[core] = {0, 0, 0};
  double come = times.latency_ms;
  for (Word k = 0; k < times.steps; ++k) {
    const Times &chosen = times.of(k, choice[k]);
    const Word core = place[k] + 1;
    const double early = core == 0 ? chosen.early_main : chosen.early_queue;
    come += chosen.read;
    const double late = (core == 0 ? chosen.main : chosen.queue) - early;
    const double arrives = chosen.read > 0 ? come : 0.0; // what has no weights waits for none
    memory.steps[k] = {early, late, arrives, std::numeric_limits<double>::infinity()};
    Core(times, memory, core).add(k);
  }
}

// When a step is ready and the main core is free, which prepares its own steps until then.
double ready(const Scratch &memory, Core &main, Word k, double now) {
  const Step *steps = memory.steps;
  while (steps[k].ready > now) {
    if (main.is_done()) now = steps[k].ready;
    else if (main.can_make(now)) now = main.make(now);
    else if (main.following() == k || steps[main.following()].arrives <= now) now = main.prepare(now);
    else now = sooner(steps[k].ready, steps[main.following()].arrives);
  }
  return now;
}

double priced(const SearchTimes &times, const Scratch &memory, const Word *choice, const Word *place,
              Word widen_from, double cutoff) {
  distribute(times, memory, choice, place);
  const Word together = times.widens ? widen_from : times.steps;
  double now = 0.0, free = 0.0;
  for (Word core = 1; core <= times.queues; ++core)
    free = later(free, Core(times, memory, core).prepare_all(0.0));
  Core main(times, memory, 0);
  for (Word k = 0; k < times.steps; ++k) {
    if (k == together) now = later(main.prepare_all(now), free);
    now = ready(memory, main, k, now);
    const Times &chosen = times.of(k, choice[k]);
    now += k >= together ? chosen.wide : chosen.narrow;
    if (now >= cutoff) return now;
  }
  return now;
}

constexpr Word JUMPS[] = {1, 2, 4, 8, 16, -1, -2, -4, -8, -16};
constexpr double HELPS = 1 - 1e-9;

// One round of single changes; each is kept if it helps.
struct Descent {
  const SearchTimes &times;
  const Scratch &memory;
  Word *choice, *place;
  Word widen_from;
  double now_ms;
  bool helped;

  bool helps(Word widening) {
    const double changed_ms = priced(times, memory, choice, place, widening, now_ms);
    if (!(changed_ms < now_ms * HELPS)) return false;
    now_ms = changed_ms;
    return helped = true;
  }

  void move_widening() {
    Word widest = widen_from;
    for (Word jump : JUMPS) {
      const Word wider = widen_from + jump;
      if (times.widens && 0 <= wider && wider <= times.steps && helps(wider)) widest = wider;
    }
    widen_from = widest;
  }

  void move(Word k) {
    Word best_choice = choice[k], best_place = place[k];
    for (Word candidate = 0; candidate < times.candidates[k]; ++candidate) {
      for (Word core = -1; core < times.queues; ++core) {
        if (candidate == best_choice && core == best_place) continue;
        choice[k] = candidate;
        place[k] = core;
        if (helps(widen_from)) best_choice = candidate, best_place = core;
      }
    }
    choice[k] = best_choice;
    place[k] = best_place;
  }
};

} // namespace

// When the last step has been executed, ms; or what has passed when that is known not to be below the cutoff.
//
// choice, place: by step, a candidate and the core that prepares it, -1 for the main core.
EP_EXPORT double ep_schedule_priced(const SearchTimes *times, const Scratch *memory, const Word *choice,
                                    const Word *place, Word widen_from, double cutoff) {
  return priced(*times, *memory, choice, place, widen_from, cutoff);
}

// Changes the step that widens, then candidate and place of each step; whether anything helped.
EP_EXPORT int ep_schedule_descended(const SearchTimes *times, const Scratch *memory, Word *choice,
                                    Word *place, Word *widen_from, double *now_ms) {
  Descent descent{*times, *memory, choice, place, *widen_from, *now_ms, false};
  descent.move_widening();
  for (Word k = 0; k < times->steps; ++k) descent.move(k);
  *widen_from = descent.widen_from;
  *now_ms = descent.now_ms;
  return descent.helped;
}
