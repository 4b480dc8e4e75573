// Bringing weights into memory before they are fetched: they come in the order of execution while kernels are made.
#pragma once

#include <atomic>
#include <optional>

#include "threads.h"
#include "weights.h"

namespace session {

class ReadingAhead {
 public:
  // Begin, where weights are not in memory yet. `arrived`: steps before it have their weights; the last number in the
  // end.
  ReadingAhead(const Weights& weights, Word steps, Word& arrived);
  ~ReadingAhead();
  ReadingAhead(const ReadingAhead&) = delete;
  ReadingAhead& operator=(const ReadingAhead&) = delete;

 private:
  void run(Word steps, Word& arrived);

  std::vector<Weights::Part> parts_;
  std::atomic<bool> ended_{false};
  std::optional<Thread> thread_;
};

}  // namespace session
