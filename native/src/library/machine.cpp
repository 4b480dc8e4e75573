// What tells this machine from others: support/machine.py makes the same text, and a test holds both equal.
#include <fcntl.h>
#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "../../include/measure.h"
#include "onednn.h"

namespace {

constexpr const char* WANTED[] = {"vendor_id", "model name",      "cpu family", "model",   "stepping",
                                  "flags",     "CPU implementer", "CPU part",   "Features"};
constexpr std::size_t FIRST_BYTES = 16 << 10;  // hold what is told of one processor; to tell of all takes milliseconds

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// The beginning of a small file, up to an empty line of it where one is wanted.
std::string content(const std::string& path, const char* until = nullptr) {
  std::string text;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char part[4096];
  ssize_t got = 0;
  while (text.size() < FIRST_BYTES && (got = read(file, part, sizeof part)) > 0) {
    text.append(part, static_cast<std::size_t>(got));
    if (until != nullptr && text.find(until) != std::string::npos) break;
  }
  close(file);
  return until != nullptr ? text.substr(0, text.find(until)) : trimmed(text);
}

// Names and values that are told of the first processor.
std::string processor() {
  const std::string told = content("/proc/cpuinfo", "\n\n");
  std::vector<std::string> lines(std::size(WANTED));
  for (std::size_t at = 0; at < told.size();) {
    const std::string line = told.substr(at, told.find('\n', at) - at);
    at += line.size() + 1;
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string name = trimmed(line.substr(0, colon));
    for (std::size_t k = 0; k < std::size(WANTED); ++k)
      if (name == WANTED[k]) lines[k] = name + "=" + trimmed(line.substr(colon + 1)) + "\n";
  }
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

std::string caches() {
  std::string text;
  for (int k = 0;; ++k) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(k) + "/";
    const std::string level = content(folder + "level");
    if (level.empty()) return text;
    text += level + " " + content(folder + "type") + " " + content(folder + "size") + "\n";
  }
}

std::string id() {
  for (const char* path : {"/etc/machine-id", "/var/lib/dbus/machine-id"})
    if (const std::string given = content(path); !given.empty()) return given;
  const char *state = std::getenv("XDG_STATE_HOME"), *home = std::getenv("HOME");
  if (const passwd* user = nullptr; home == nullptr && (user = getpwuid(getuid())) != nullptr) home = user->pw_dir;
  const std::string in_home = std::string(home != nullptr ? home : "") + "/.local/state";
  return content((state != nullptr && *state == '/' ? state : in_home) + "/edgeplan/machine-id");
}

}  // namespace

std::string library::machine() {
  utsname system;
  uname(&system);
  const std::string cores = std::to_string(sysconf(_SC_NPROCESSORS_ONLN));
  return processor() + caches() + cores + " " + system.machine + "\n" + id();
}

EP_EXPORT const char* ep_machine(void) {
  thread_local std::string told;
  told = library::machine();
  return told.c_str();
}
