// Threads of a session, of pthreads themselves: a thread's stack is to be small.
#pragma once

#include <pthread.h>

#include <functional>
#include <vector>

#include "../base.h"

namespace session {

constexpr std::size_t SMALL_STACK = 256 << 10, LARGE_STACK = 8 << 20;  // of what calls the system alone, or the library, too

// A thread that does something once, kept to those of some processors that it may use (none: any), with all signals
// blocked: handlers of the application run on its own threads.
class Thread : Fixed {
 public:
  // Error: the system starts none.
  Thread(std::function<void()> work, const std::vector<int>& processors, std::size_t stack_bytes = SMALL_STACK);
  ~Thread() { join(); }
  void join();

 private:
  static void* run(void* given);
  std::function<void()> work_;
  const std::vector<int> processors_;
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace session
