#include "threads.h"

#include <sched.h>
#include <signal.h>

#include "error.h"

using session::Thread;

namespace {

void pin(const std::vector<int>& processors) {
  cpu_set_t here, wanted;
  CPU_ZERO(&wanted);
  if (sched_getaffinity(0, sizeof here, &here) != 0) return;
  for (const int one : processors)
    if (0 <= one && one < CPU_SETSIZE && CPU_ISSET(one, &here)) CPU_SET(one, &wanted);
  if (CPU_COUNT(&wanted) > 0) sched_setaffinity(0, sizeof wanted, &wanted);  // elsewhere it is slower, not wrong
}

}  // namespace

Thread::Thread(std::function<void()> work, const std::vector<int>& processors, std::size_t stack_bytes)
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
  started_ = true;
}

void* Thread::run(void* given) {
  auto* thread = static_cast<Thread*>(given);
  pin(thread->processors_);
  thread->work_();
  return nullptr;
}

void Thread::join() {
  if (started_) pthread_join(thread_, nullptr);
  started_ = false;
}
