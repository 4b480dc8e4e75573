#include "run.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

using namespace run;

namespace {

constexpr int READER_HAS_LEFT = 128 + 13;  // as of a process that SIGPIPE ended

// 0, or the error's number.
int write_all(int to, const char* from, std::size_t count) {
  while (count > 0) {
    const ssize_t written = write(to, from, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    from += written;
    count -= static_cast<std::size_t>(written);
  }
  return 0;
}

std::int64_t bytes_of(const char* status, const char* name) {
  const char* line = std::strstr(status, name);
  return line != nullptr ? std::strtoll(line + std::strlen(name), nullptr, 10) << 10 : 0;
}

void add_formatted(Text& to, const char* format, va_list given) {
  char* made = nullptr;
  const int length = vasprintf(&made, format, given);
  if (length < 0) held(nullptr);
  for (int k = 0; k < length; ++k) to.List::add(made[k]);
  std::free(made);
}

}  // namespace

Text run::output;

void run::end(int status) {
  const int problem = write_all(STDOUT_FILENO, output.from, output.length);
  output.length = 0;
  if (problem == EPIPE) _exit(READER_HAS_LEFT);
  if (problem != 0 && problem != EBADF) {  // which it is where the caller has closed it: nobody wants it
    dprintf(STDERR_FILENO, "error: cannot write to the standard output: %s\n", std::strerror(problem));
    if (status == 0) status = 1;
  }
  _exit(status);
}

void run::refuse(int status, const char* told) {
  if (write_all(STDOUT_FILENO, output.from, output.length) == 0) output.length = 0;
  const Text line = Text().add("error: ").add_escaped(told, "\n").add("\n");
  write_all(STDERR_FILENO, line.from, line.length);
  end(status);
}

void run::refuse(int status, const char* what, const char* where, const char* next) {
  Text lines;
  lines.add_escaped(what);
  if (*where != 0) lines.add("\n  where: ").add_escaped(where);
  if (*next != 0) lines.add("\n  next:  ").add_escaped(next);
  refuse(status, lines.ended());
}

Text& Text::add(const char* format, ...) {
  va_list given;
  va_start(given, format);
  add_formatted(*this, format, given);
  va_end(given);
  return *this;
}

Text& Text::add_escaped(const char* text, const char* kept) {
  for (; *text != 0; ++text) {
    const auto byte = static_cast<unsigned char>(*text), after = static_cast<unsigned char>(text[1]);
    const bool steers = byte < 0x20 || byte == 0x7F || (byte == 0xC2 && 0x80 <= after && after < 0xA0);  // UTF-8
    if (steers && std::strchr(kept, *text) == nullptr) add("\\x%02x", byte == 0xC2 ? *++text & 0xFF : byte);
    else add("%c", byte);
  }
  return *this;
}

const char* run::text(const char* format, ...) {
  Text made;
  va_list given;
  va_start(given, format);
  add_formatted(made, format, given);
  va_end(given);
  return made.ended();
}

Memory run::memory() {
  char status[8192];
  const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  const ssize_t length = read(file, status, sizeof status - 1);
  close(file);
  status[length > 0 ? length : 0] = 0;
  return {bytes_of(status, "\nVmRSS:"),   bytes_of(status, "\nVmHWM:"),    bytes_of(status, "\nRssAnon:"),
          bytes_of(status, "\nRssFile:"), bytes_of(status, "\nRssShmem:"), bytes_of(status, "\nVmPTE:")};
}

void run::reset_peak() {  // proc(5), clear_refs
  const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  write_all(file, "5", 1);
  close(file);
}

std::int64_t run::waited_pages() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_majflt;
}

std::int64_t run::now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}
