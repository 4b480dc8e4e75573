// What tells this machine from others: support/machine.py makes the same text, and a test holds both equal.
#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <string>

#include "../../include/measure.h"
#include "../session/files.h"
#include "onednn.h"

namespace {

constexpr const char* WANTED[] = {"vendor_id", "model name",      "cpu family", "model",   "stepping",
                                  "flags",     "CPU implementer", "CPU part",   "Features"};

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// The first line of a file.
std::string content(const std::string& path) {
  std::string found;
  session::each_line(path, [&](const char* line) {
    found = trimmed(line);
    return false;
  });
  return found;
}

// Names and values that are told of the first processor: to tell of all takes milliseconds.
std::string processor() {
  std::string lines[std::size(WANTED)], text;
  session::each_line("/proc/cpuinfo", [&](const char* line) {
    const char* colon = std::strchr(line, ':');
    if (colon == nullptr) return *line != 0;
    const std::string name = trimmed({line, colon});
    for (std::size_t k = 0; k < std::size(WANTED); ++k)
      if (name == WANTED[k]) lines[k] = name + "=" + trimmed(colon + 1) + "\n";
    return true;
  });
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
