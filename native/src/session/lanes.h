// The lanes of a cold start: who prepares what next, also when somebody is late or fails, and the execution meanwhile.
#pragma once

#include <deque>
#include <exception>
#include <mutex>
#include <optional>

#include "preparation.h"
#include "threads.h"

namespace session {

class Lanes : Fixed {
 public:
  // `steals`: whether a lane with nothing left takes from others. The main lane is driven by the thread that executes,
  // each other one by a thread of its own, on its processor of `preparing` (none: any).
  Lanes(const library::Onednn& library, const program::Program& program, Preparation& preparation, bool steals,
        const std::vector<int>& preparing);
  ~Lanes();

  // Start the threads of the preparing lanes; `arrived`: steps before it have their weights in memory.
  void start(const Word& arrived);
  // Execute steps of the cold start on `narrow` cores, preparing the main lane's and those of late lanes when one is
  // not there. Error: what a lane failed at.
  void execute(Word first, Word last, Word narrow);
  // Prepare until every step is prepared. Threads with nothing left to do are not waited for: to wake takes .1 ms.
  void finish_cold();
  // Begin to prepare what later runs lack, beside the caller.
  void begin_later();
  // Prepare it on all cores, and wait; then run with it. Error: likewise.
  void finish_later();
  void execute_later();
  // What was done when in the cold start.
  std::vector<ep_span> spans();
  void stop();

 private:
  struct Lane {
    Lane(const library::Onednn& library, int number) : preparer(library, number) {}
    Preparer preparer;
    Word next = 0, end = 0, ahead = 0;  // in `todo_`; `ahead`: the next one whose kernels may be made ahead
    double slower = 0;                  // stands for a slower core: it waits so many times as long as preparing took
    std::vector<int> processors;
    std::optional<Thread> thread;
  };

  template <class Work>
  void guarded(Work work);
  void run_thread(Lane& lane);
  void drive(Lane& lane);
  void prepare_later(Lane& lane);
  Word take(Lane& lane, bool steals);
  Word next_of(const Lane& lane) const;
  bool stopped() const;
  bool ready(Word step) const;
  bool arrived(Word step) const;
  void rest_for(Word step, Word begun) const;
  bool make_ahead(Lane& lane);
  void prepare(Lane& lane, Word step);
  bool prepare_meanwhile(Word wanted, bool late);
  void await(Word wanted);
  void run(const loops::Item* items, Word first, Word last);
  void require_no_failure();
  void join();

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
