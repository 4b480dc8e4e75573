#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "../base.h"

namespace session {

inline std::vector<int> processors_of(pid_t thread) {
  cpu_set_t set;
  std::vector<int> found;
  if (sched_getaffinity(thread, sizeof set, &set) != 0) return found;
  for (int k = 0; k < CPU_SETSIZE; ++k)
    if (CPU_ISSET(k, &set)) found.push_back(k);
  return found;
}

// Keep a thread (0: the calling one) on some, where there are any to name; whether the system lets it.
inline bool pin(const std::vector<int>& processors, pid_t thread = 0) {
  if (processors.empty()) return true;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int k : processors)
    if (0 <= k && k < CPU_SETSIZE) CPU_SET(k, &set);
  return sched_setaffinity(thread, sizeof set, &set) == 0;
}

// Keeps the thread that makes it on some processors, until its end or before.
class Pinned : Fixed {
 public:
  explicit Pinned(const std::vector<int>& processors)
      : thread_(static_cast<pid_t>(syscall(SYS_gettid))), before_(processors.empty() ? processors : processors_of(0)) {
    done_ = pin(processors);
  }
  ~Pinned() { release(); }

  bool done() const { return done_; }
  void release() const { pin(before_, thread_); }

 private:
  pid_t thread_;
  std::vector<int> before_;
  bool done_;
};

}  // namespace session
