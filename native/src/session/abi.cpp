// The C interface: every exception ends here, one thread at a time works with a session, and none in a fork.
#include <pthread.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>

#include "../loops/threads.h"
#include "guarded.h"

using namespace guarding;

#ifdef __GLIBCXX__
// What is thrown and caught nowhere ends the process as ever; the C++ library's own would tell its name, which takes a
// twentieth of this library.
void __gnu_cxx::__verbose_terminate_handler() { std::abort(); }
#endif

namespace {

std::atomic<bool> forked{false}, hooked{false};

format::Border border_of(const Session& opened, format::Id id, int number) {
  const auto borders = opened.program().rows<format::Border>(id);
  if (number < 0 || number >= borders.length) throw Error{EP_INPUT, "there is no such input or output", "", "ask how many there are"};
  return borders[number];
}

ep_status describe(const ep_session* session, format::Id id, int number, ep_tensor_info* info) {
  return with(session, [&](Session& opened) {
    const format::Border border = border_of(opened, id, number);
    *info = {opened.program().text(border.name), format::DTYPES[border.dtype], static_cast<int>(border.rank), {},
             static_cast<std::size_t>(border.bytes), border.below};
    for (Word axis = 0; axis < border.rank; ++axis) info->dims[axis] = border.dims[axis];
  });
}

int count_of(const ep_session* session, format::Id id) {
  return session == nullptr ? 0 : static_cast<int>(session->opened->program().rows<format::Border>(id).length);
}

// Refuse buffers that do not fit; an output may have none.
void require_fitting(const Session& opened, format::Id id, const ep_buffer* given, int count, bool output) {
  const auto borders = opened.program().rows<format::Border>(id);
  const char* what = output ? "output" : "input";
  if (count != borders.length || (count > 0 && given == nullptr))
    throw Error{EP_INPUT, std::to_string(count) + " " + what + "s were given", opened.program().model(),
                "give " + std::to_string(borders.length)};
  for (int k = 0; k < count; ++k) {
    if (output && given[k].data == nullptr) continue;
    if (given[k].data == nullptr || given[k].bytes != static_cast<std::size_t>(borders[k].bytes))
      throw Error{EP_INPUT, std::string(what) + " '" + opened.program().text(borders[k].name) + "' has " + std::to_string(given[k].bytes) + " bytes",
                  opened.program().model(), "give " + std::to_string(borders[k].bytes) + " bytes"};
  }
}

std::unique_ptr<Session> opened(const std::string& folder, const ep_options* given) {
  const Word begun_ns = loops::now_ns();
  ep_options options{};
  options.continuous = -1;
  if (given != nullptr && given->size < sizeof options)
    throw Error{EP_INPUT, "the options are those of an older version", "ep_open", "build again"};
  if (given != nullptr) options = *given;
  struct stat status;
  const std::string path = folder + "/program.bin";
  if (stat(path.c_str(), &status) != 0) {
    const bool there = stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
    if (!there) throw Error{EP_FORMAT, "there is no plan folder", folder, "make one: edgeplan plan cold-start or plan memory"};
    throw Error{EP_FORMAT, "the plan has no program that runs without Python: it is of a pair, of a GPU, or of an older version", folder,
                "run it with edgeplan run, or plan the model again"};
  }
  auto found = std::make_unique<Program>(path);
  if (found->header().kind == format::COLD_START) return session::open_cold(folder, std::move(found), options, begun_ns);
  return session::open_memory(folder, std::move(found), options);
}

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
  if (!hooked.exchange(true)) pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

double Session::set_budget(std::uint64_t) {
  throw Error{EP_INPUT, "a plan of a cold start has no budget", "ep_set_budget", "plan with edgeplan plan memory"};
}

session::Stream& Session::stream() { throw Error{EP_INPUT, "this is no plan of memory", "ep_measure", "open one"}; }

void Session::copy_in(const ep_buffer* inputs) {
  const auto borders = program().rows<format::Border>(format::INPUTS);
  for (Word k = 0; k < borders.length; ++k) std::memcpy(place(borders[k]), inputs[k].data, inputs[k].bytes);
}

EP_EXPORT int ep_abi_version(void) { return EP_ABI_VERSION; }

EP_EXPORT ep_status ep_open(const char* folder, const ep_options* options, ep_session** session) {
  return open_as(session, folder, [&](const std::string& named) { return opened(named, options); });
}

EP_EXPORT int ep_input_count(const ep_session* session) { return count_of(session, format::INPUTS); }
EP_EXPORT int ep_output_count(const ep_session* session) { return count_of(session, format::OUTPUTS); }

EP_EXPORT ep_status ep_input(const ep_session* session, int number, ep_tensor_info* info) {
  return describe(session, format::INPUTS, number, info);
}

EP_EXPORT ep_status ep_output(const ep_session* session, int number, ep_tensor_info* info) {
  return describe(session, format::OUTPUTS, number, info);
}

EP_EXPORT ep_status ep_run(ep_session* session, const ep_buffer* inputs, int input_count, ep_buffer* outputs, int output_count) {
  return with(session, [&](Session& opened) {
    require_fitting(opened, format::INPUTS, inputs, input_count, false);
    require_fitting(opened, format::OUTPUTS, outputs, output_count, true);
    opened.taken();
    opened.run(inputs);
    bool in_place = false;
    const auto borders = opened.program().rows<format::Border>(format::OUTPUTS);
    for (Word k = 0; k < borders.length; ++k) {
      void* from = opened.place(borders[k]);
      if (outputs[k].data == nullptr)
        outputs[k] = {from, static_cast<std::size_t>(borders[k].bytes)}, in_place = true;
      else
        std::memcpy(outputs[k].data, from, outputs[k].bytes);
    }
    if (!in_place) opened.taken();
    opened.ended();
  });
}

EP_EXPORT ep_status ep_set_budget(ep_session* session, std::uint64_t bytes, double* predicted_ms) {
  return with(session, [&](Session& opened) {
    const double found = opened.set_budget(bytes);
    if (predicted_ms != nullptr) *predicted_ms = found;
  });
}

EP_EXPORT ep_status ep_prepare_later(ep_session* session) {
  return with(session, [](Session& opened) { opened.prepare_later(); });
}

EP_EXPORT ep_status ep_trace(const ep_session* session, ep_span* spans, std::size_t* count) {
  return with(session, [&](Session& opened) {
    const std::vector<ep_span> found = opened.trace();
    for (std::size_t k = 0; k < found.size() && k < *count; ++k) spans[k] = found[k];
    *count = found.size();
  });
}

EP_EXPORT double ep_fact(const ep_session* session, const char* name) {
  double found = std::nan("");
  with(session, [&](Session& opened) { found = opened.fact(name); });
  return found;
}

EP_EXPORT const char* ep_text(const ep_session* session, const char* name) {
  const char* found = nullptr;
  with(session, [&](Session& opened) {
    const Program& program = opened.program();
    if (std::strcmp(name, "model") == 0) found = program.model();
    if (std::strcmp(name, "layout") == 0) found = program.text(program.facts().layout);
  });
  return found;
}

EP_EXPORT const char* ep_last_error(const ep_session* session) {
  return session == nullptr ? last_of_thread().c_str() : session->error.c_str();
}

EP_EXPORT void ep_close(ep_session* session) {
  if (session == nullptr || session->process != getpid()) return;
  delete session;
}
