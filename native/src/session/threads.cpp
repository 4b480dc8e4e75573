#include "threads.h"

#include <signal.h>

#include <algorithm>

#include "error.h"
#include "processors.h"

using session::Thread;

namespace {

void pin_inside(const std::vector<int>& processors) {
  std::vector<int> allowed = session::processors_of(0);
  const auto other = [&](int one) { return std::find(processors.begin(), processors.end(), one) == processors.end(); };
  allowed.erase(std::remove_if(allowed.begin(), allowed.end(), other), allowed.end());
  session::pin(allowed);  // elsewhere it is slower, not wrong
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
  pin_inside(thread->processors_);
  thread->work_();
  return nullptr;
}

void Thread::join() {
  if (started_) pthread_join(thread_, nullptr);
  started_ = false;
}
