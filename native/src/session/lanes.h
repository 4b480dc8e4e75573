// The lanes of a cold start: who prepares what next, also when somebody is late or fails, and the execution meanwhile.
#pragma once

#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>

#include "../loops/threads.h"
#include "preparation.h"
#include "threads.h"

namespace session {

class Lanes : Fixed {
 public:
  // `steals`: whether a lane with nothing left takes from others. The main lane is driven by the thread that executes,
  // each other one by a thread of its own, on its processor of `preparing` (none: any).
  Lanes(const library::Onednn& library, const program::Program& program, Preparation& preparation, bool steals,
        const std::vector<int>& preparing)
      : library_(library),
        program_(program),
        preparation_(preparation),
        steals_(steals),
        todo_(program.rows<Word>(format::TODO)) {
    const format::Facts& facts = program.facts();
    const auto bounds = program.rows<Word>(format::BOUNDS), later = program.rows<Word>(format::LATER);
    for (Word k = 0; k < bounds.length / 2; ++k) {
      Lane& lane = lanes_.emplace_back(library, static_cast<int>(k));
      lane.preparer.spans.reserve(SPANS * size(facts.steps));
      lane.next = bounds[2 * k];
      lane.end = bounds[2 * k + 1];
      if (k == 0) continue;
      lane.slower = facts.equal_cores != 0 ? 0 : facts.little_ratio - 1;
      if (size(k) <= preparing.size()) lane.processors = {preparing[size(k - 1)]};
    }
    for (Word step = 0; step < later.length; ++step)
      if (later[step] >= 0) later_steps_.push_back(step);
    prepared_.resize(size(facts.steps));
    later_.resize(later_steps_.size());
    items_.resize(size(facts.steps));
    times_.resize(2 * size(facts.steps));
    own_.stream = lanes_.front().preparer.stream = library.stream();
  }

  ~Lanes() {
    stop();
    for (Prepared& one : prepared_) preparation_.release(one);
    for (Prepared& one : later_) preparation_.release(one);
  }

  // Start the threads of the preparing lanes; `arrived`: steps before it have their weights in memory.
  void start(const Word& arrived) {
    arrived_ = &arrived;
    for (auto lane = lanes_.begin() + 1; lane != lanes_.end(); ++lane)
      lane->thread.emplace([this, &own = *lane] { run_thread(own); }, lane->processors, LARGE_STACK);
  }

  // Execute steps of the cold start on `narrow` cores, preparing the main lane's and those of late lanes when one is
  // not there. Error: what a lane failed at.
  void execute(Word first, Word last, Word narrow) {
    for (own_.step = first;;) {
      run(items_.data(), own_.step, last);
      if (own_.step == last) return;
      if (narrow > 1) library_.set_threads(1);
      await(own_.step);
      if (narrow > 1) library_.set_threads(static_cast<int>(narrow));
    }
  }

  // Prepare until every step is prepared. Threads with nothing left to do are not waited for: to wake takes .1 ms.
  void finish_cold() {
    library_.set_threads(1);
    drive(lanes_.front());
    for (Word step = 0; step < program_.facts().steps; ++step) {
      for (const Word begun = loops::now_ns(); !ready(step); rest_for(step, begun))
        if (stopped()) require_no_failure();
    }
  }

  // Begin to prepare what later runs lack, beside the caller.
  void begin_later() {
    if (later_begun_) return;
    join();  // from the cold start, of which no step is left
    for (Lane& lane : lanes_) spans_.insert(spans_.end(), lane.preparer.spans.begin(), lane.preparer.spans.end());
    later_begun_ = true;
    if (later_steps_.empty()) return;
    try {
      start(*arrived_);
    } catch (const Error&) {  // the executing thread does it alone
    }
  }

  // Prepare it on all cores, and wait; then run with it. Error: likewise.
  void finish_later() {
    require_no_failure();
    if (later_done_) return;
    begin_later();
    library_.set_threads(1);
    guarded([&] { prepare_later(lanes_.front()); });
    join();
    require_no_failure();
    later_items_ = items_;
    for (std::size_t k = 0; k < later_steps_.size(); ++k) {
      loops::Item& item = later_items_[size(later_steps_[k])];
      item.first = later_[k].first;
      item.end = later_[k].end;
    }
    later_times_.resize(times_.size());
    later_done_ = true;
  }

  void execute_later() { run(later_items_.data(), 0, static_cast<Word>(later_items_.size())); }
  std::vector<ep_span> spans() {
    std::vector<ep_span> found = spans_;
    if (!later_begun_) {
      join();
      for (const Lane& lane : lanes_) found.insert(found.end(), lane.preparer.spans.begin(), lane.preparer.spans.end());
    }
    for (std::size_t k = 0; k < items_.size(); ++k)
      if (times_[2 * k + 1] != 0)
        found.push_back({0, static_cast<std::int32_t>(k), EXECUTE, 0, times_[2 * k], times_[2 * k + 1]});
    return found;
  }

  void stop() {
    loops::put<Word>(&stop_, 1);
    join();
  }

 private:
  // Whoever gets nothing done for longer is slowed by others, or has more to do than was planned.
  static constexpr Word LATE_NS = 1'000'000, NONE = -1;
  // Of a step: its kernels made ahead, found made, its weights read and transformed, its calls written down.
  static constexpr std::size_t SPANS = 5;

  struct Lane {
    Lane(const library::Onednn& library, int number) : preparer(library, number) {}
    Preparer preparer;
    Word next = 0, end = 0, ahead = 0;  // in `todo_`; `ahead`: the next one whose kernels may be made ahead
    double slower = 0;                  // stands for a slower core: it waits so many times as long as preparing took
    std::vector<int> processors;
    std::optional<Thread> thread;
  };

  // Do something; where it fails, nobody waits for what will not be prepared, and the executing thread tells.
  template <class Work>
  void guarded(Work work) {
    try {
      work();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(failing_);
      if (!failure_) failure_ = std::current_exception();
      loops::put<Word>(&stop_, 1);
    }
  }

  void run_thread(Lane& lane) {
    guarded([&] {
      library_.set_threads(1);
      drive(lane);
      if (later_begun_) prepare_later(lane);
    });
  }

  // Prepare a lane's steps until there are none, then those of others where it steals.
  void drive(Lane& lane) {
    while (!stopped()) {
      if (make_ahead(lane)) continue;
      const Word step = take(lane, steals_);
      if (step < 0) return;
      // to touch weights before they have come would have the disk bring others first
      while (!stopped() && !arrived(step)) loops::nap();
      if (!stopped()) prepare(lane, step);
    }
  }

  void prepare_later(Lane& lane) {
    const auto records = program_.rows<Word>(format::LATER);
    while (!stopped()) {
      const Word k = loops::next_number(&next_later_);
      if (k >= static_cast<Word>(later_steps_.size())) return;
      const Word step = later_steps_[size(k)], record = records[step];
      char* shared = program_.record(record).source == loops::SHARED ? preparation_.weights_of(step) : nullptr;
      preparation_.prepare(lane.preparer, record, later_[size(k)], shared);
    }
  }

  // The next step of a lane, or of another that is behind; `NONE` where there is none.
  Word take(Lane& lane, bool steals) {
    for (std::size_t k = 0; k < (steals ? lanes_.size() : 1); ++k) {
      Lane& other = lanes_[(size(lane.preparer.core) + k) % lanes_.size()];
      if (loops::load(&other.next) >= other.end) continue;
      const Word found = loops::next_number(&other.next);
      if (found < other.end) return todo_[found];
    }
    return NONE;
  }

  // The step that a lane would take next; `NONE` where it has none.
  Word next_of(const Lane& lane) const {
    const Word found = loops::load(&lane.next);
    return found < lane.end ? todo_[found] : NONE;
  }

  bool stopped() const { return loops::load(&stop_) != 0; }
  bool ready(Word step) const { return loops::load(&items_[size(step)].first) != nullptr; }

  // Tell whether a step's weights can be had at once.
  bool arrived(Word step) const { return program_.record(step).source == loops::NO_WEIGHTS || loops::load(arrived_) > step; }

  // A moment of a wait for a step that began then: asleep while its weights come from the disk, which takes longer.
  // Whoever reads ahead runs on the processor, too, as the host's part of a virtual disk may.
  void rest_for(Word step, Word begun) const { arrived(step) ? loops::rest(begun) : loops::nap(); }

  // Wait so many times as long as what began then has taken; the last span ends with it.
  static void linger(std::vector<ep_span>& spans, Word begun, double slower) {
    if (slower <= 0) return;
    const Word now = loops::now_ns();
    spans.back().end_ns = loops::wait_until(now + static_cast<Word>(slower * static_cast<double>(now - begun)));
  }

  // Make the kernels of one of a lane's steps while the weights of its next one are on their way: whoever prepares the
  // step finds them made. False where the weights are there, or all kernels made.
  bool make_ahead(Lane& lane) {
    const Word step = next_of(lane);
    if (step < 0 || arrived(step)) return false;
    const Word at = std::max(lane.ahead, loops::load(&lane.next));
    if (at >= lane.end) return false;
    lane.ahead = at + 1;
    const Word begun = loops::now_ns();
    preparation_.create(lane.preparer, todo_[at]);
    linger(lane.preparer.spans, begun, lane.slower);
    return true;
  }

  void prepare(Lane& lane, Word step) {
    const Word begun = loops::now_ns();
    Prepared& made = prepared_[size(step)];
    preparation_.prepare(lane.preparer, step, made);
    linger(lane.preparer.spans, begun, lane.slower);
    loops::Item& item = items_[size(step)];
    item.end = made.end;
    loops::put(&item.first, made.first);
  }

  // Prepare one of the main lane's steps, or make kernels ahead, while the step wanted is not ready; where that is late,
  // others' steps, too.
  bool prepare_meanwhile(Word wanted, bool late) {
    Lane& main = lanes_.front();
    if (make_ahead(main)) return true;
    const Word mine = next_of(main);
    Word step = NONE;
    if (mine >= 0 && arrived(mine))
      step = take(main, false);
    else if (late && arrived(wanted))
      step = take(main, true);
    if (step < 0) return false;
    prepare(main, step);
    return true;
  }

  // Prepare what there is to prepare until a step is ready. Weights of later steps are not waited for: the step at hand
  // may be ready before they come.
  void await(Word wanted) {
    Word begun = 0, idle = 0;  // when the wait began, and since when there has been nothing to prepare
    while (!ready(wanted)) {
      if (stopped()) require_no_failure();
      const bool late = steals_ && begun != 0 && loops::now_ns() - begun > LATE_NS;
      if (prepare_meanwhile(wanted, late)) {
        idle = 0;
        continue;
      }
      const Word now = loops::now_ns();
      if (begun == 0) begun = now;
      if (idle == 0) idle = now;
      rest_for(wanted, idle);
    }
  }

  void run(const loops::Item* items, Word first, Word last) {
    Word* times = items == items_.data() ? times_.data() : later_times_.data();
    if (loops::run_lane(preparation_.places(), own_, items, times, first, last, 0, 0) == loops::FAILED)
      library_.failed_execution(own_.status);
  }

  void require_no_failure() {
    const std::lock_guard<std::mutex> lock(failing_);
    if (failure_) std::rethrow_exception(failure_);
  }

  void join() {
    for (Lane& lane : lanes_) lane.thread.reset();
  }

  const library::Onednn& library_;
  const program::Program& program_;
  Preparation& preparation_;
  const bool steals_;
  loops::Array<const Word> todo_;
  std::deque<Lane> lanes_;
  const Word* arrived_ = nullptr;
  Word stop_ = 0, next_later_ = 0;
  bool later_begun_ = false, later_done_ = false;
  std::vector<Prepared> prepared_, later_;
  std::vector<loops::Item> items_, later_items_;
  std::vector<Word> times_, later_times_, later_steps_;
  std::vector<ep_span> spans_;
  loops::Own own_{};
  std::mutex failing_;
  std::exception_ptr failure_;
};

}  // namespace session
