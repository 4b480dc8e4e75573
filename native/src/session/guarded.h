// What guards every call of the C interface: exceptions become statuses, one thread at a time works with a session,
// and none in a fork.
#pragma once

#include <unistd.h>

#include <atomic>
#include <new>

#include "session.h"

using session::Session;

struct ep_session {
  std::unique_ptr<Session> opened;
  std::atomic<bool> busy{false};
  pid_t process = getpid();
  std::string error, folder;
};

namespace guarding {

using program::Program;

std::string told(const Error& error);
std::string& last_of_thread();  // the last error of this thread that is no session's
Error in_fork(const std::string& where);
void require_no_fork(const std::string& where);  // Error: this process was forked since the first call

// Do something, and turn what it throws into a status and a text.
template <class Work>
ep_status guarded(std::string& text, Work work) {
  try {
    work();
    return EP_OK;
  } catch (const Error& error) {
    text = told(error);
    return error.status;
  } catch (const std::bad_alloc&) {
    text = told({EP_ERROR, "there is not enough memory", "", "free some, or plan with less memory"});
  } catch (const std::exception& error) {
    text = told({EP_ERROR, error.what(), "", "report it"});
  } catch (...) {
    text = "something unknown was thrown";
  }
  return EP_ERROR;
}

// The same with a session, for one thread at a time.
template <class Work>
ep_status with(const ep_session* given, Work work) {
  auto* session = const_cast<ep_session*>(given);
  if (session == nullptr) return EP_INPUT;
  if (session->busy.exchange(true)) return EP_BUSY;  // its error is another thread's
  const ep_status status = guarded(session->error, [&] {
    if (session->process != getpid()) throw in_fork(session->folder);
    work(*session->opened);
  });
  session->busy = false;
  return status;
}

// Open a folder as `make` does, for a caller of the interface.
template <class Make>
ep_status open_as(ep_session** session, const char* folder, Make make) {
  if (session == nullptr) return EP_INPUT;
  *session = nullptr;
  return guarded(last_of_thread(), [&] {
    if (folder == nullptr) throw Error{EP_INPUT, "no folder was named", "ep_open", "name a plan folder"};
    require_no_fork(folder);
    auto made = std::make_unique<ep_session>();
    made->folder = folder;
    made->opened = make(made->folder);
    *session = made.release();
  });
}

}  // namespace guarding
