// Threads of a session, of pthreads themselves: a thread's stack is to be small.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <functional>

#include "error.h"
#include "processors.h"

namespace session {

constexpr std::size_t SMALL_STACK = 256 << 10, LARGE_STACK = 8 << 20;  // of what calls the system alone, or the library, too

// A thread that does something once, kept to those of some processors that it may use (none: any), with all signals
// blocked: handlers of the application run on its own threads.
class Thread : Fixed {
 public:
  // Error: the system starts none.
  Thread(std::function<void()> work, const std::vector<int>& processors, std::size_t stack_bytes = SMALL_STACK)
      : work_(std::move(work)), processors_(processors) {
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&thread_, &attributes, run, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    if (failed != 0) throw Error{EP_ERROR, "cannot start a thread: " + system_says(failed), "", "end other processes"};
  }

  ~Thread() { pthread_join(thread_, nullptr); }

 private:
  static void* run(void* given) {
    auto* thread = static_cast<Thread*>(given);
    std::vector<int> allowed = processors_of(0);
    const std::vector<int>& own = thread->processors_;
    const auto other = [&](int one) { return std::find(own.begin(), own.end(), one) == own.end(); };
    allowed.erase(std::remove_if(allowed.begin(), allowed.end(), other), allowed.end());
    pin(allowed);  // elsewhere it is slower, not wrong
    thread->work_();
    return nullptr;
  }

  std::function<void()> work_;
  const std::vector<int> processors_;
  pthread_t thread_{};
};

}  // namespace session
