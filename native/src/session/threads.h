// Threads of a session, and locks, of pthreads themselves: a thread's stack is to be small.
#pragma once

#include <pthread.h>

#include <functional>
#include <vector>

namespace session {

class Lock {
 public:
  explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~Lock() { pthread_mutex_unlock(&mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

constexpr std::size_t SMALL_STACK = 256 << 10, LARGE_STACK = 8 << 20;  // of what calls the system alone, or the library, too

// A thread that does something once, kept to those of some processors that it may use (none: any), with all signals
// blocked: handlers of the application run on its own threads.
class Thread {
 public:
  // Error: the system starts none.
  Thread(std::function<void()> work, const std::vector<int>& processors, std::size_t stack_bytes = SMALL_STACK);
  ~Thread() { join(); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  void join();

 private:
  static void* run(void* given);
  std::function<void()> work_;
  const std::vector<int> processors_;
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace session
