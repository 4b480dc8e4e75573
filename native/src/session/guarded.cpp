#include "guarded.h"

#include <pthread.h>

#include <cstdlib>

#ifdef __GLIBCXX__
// What is thrown and caught nowhere ends the process as ever; the C++ library's own would tell its name, which takes a
// twentieth of this library.
void __gnu_cxx::__verbose_terminate_handler() { std::abort(); }
#endif

namespace {

std::atomic<bool> forked{false}, hooked{false};

void mark_fork() { forked = true; }

}  // namespace

std::string guarding::told(const Error& error) {
  std::string text = error.what;
  if (!error.where.empty()) text += "\n  where: " + error.where;
  if (!error.next.empty()) text += "\n  next:  " + error.next;
  return text;
}

std::string& guarding::last_of_thread() {
  thread_local std::string text;
  return text;
}

Error guarding::in_fork(const std::string& where) {
  return {EP_DEVICE, "a process that opened a plan was forked: threads of the libraries did not follow", where,
          "start a fresh process and open the plan there"};
}

void guarding::require_no_fork(const std::string& where) {
  if (forked) throw in_fork(where);
  if (!hooked.exchange(true)) pthread_atfork(nullptr, nullptr, mark_fork);
}
