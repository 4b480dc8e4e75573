// The limit of memory of the control groups around this process, of either version. support/cgroups.py reads the same
// files, and a test holds both equal.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../program/format.h"
#include "pages.h"

namespace {

using Words = std::vector<std::string>;
constexpr Word UNLIMITED_BYTES = Word{1} << 60;  // version 1 tells of a number near 2^63 where there is no limit
constexpr Word WIDE_BYTES = 256 << 20;           // beside a budget: the idle process, and all of the libraries' files
constexpr const char* NAMES[] = {"", "/memory.limit_in_bytes", "/memory.max"};

// Where the groups of a version are mounted, and which group that is the top of.
struct Mount {
  std::string point, top;
  bool known = false;
};

Words split(const std::string& text, char mark) {
  Words found(1);
  for (const char one : text)
    if (one == mark)
      found.emplace_back();
    else
      found.back() += one;
  return found;
}

bool holds(const Words& words, const char* wanted) { return std::find(words.begin(), words.end(), wanted) != words.end(); }

// The lines of a file; none where it cannot be read.
Words lines(const std::string& path) {
  Words found;
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return found;
  char* line = nullptr;
  std::size_t room = 0;
  while (getline(&line, &room, file) > 0) found.emplace_back(line, std::strcspn(line, "\n"));
  std::free(line);
  std::fclose(file);
  return found;
}

int version_of(const Words& mount, std::size_t dash) {
  if (mount[dash + 1] == "cgroup2") return 2;
  return mount[dash + 1] == "cgroup" && holds(split(mount.back(), ','), "memory") ? 1 : 0;
}

// Groups of a path below a mount: inside a container the path may be that of the host, of which nothing but the
// container's own group is mounted.
std::string below(const std::string& path, const std::string& top) {
  const std::string start = top == "/" ? top : top + "/";
  if (path.rfind(start, 0) != 0 || holds(split(path, '/'), "..")) return "";
  return "/" + path.substr(start.size());
}

Word number(const std::string& path) {
  const Words found = lines(path);
  const bool digits = !found.empty() && !found[0].empty() && found[0].find_first_not_of("0123456789") == std::string::npos;
  return digits ? std::strtoll(found[0].c_str(), nullptr, 10) : UNLIMITED_BYTES;
}

}  // namespace

Word session::memory_limit(const std::string& proc, const std::string& root) {
  Mount mounts[3];
  for (const std::string& line : lines(proc + "/self/mountinfo")) {
    const Words words = split(line, ' ');
    const auto dash = static_cast<std::size_t>(std::find(words.begin(), words.end(), "-") - words.begin());
    if (dash < 5 || dash + 1 >= words.size()) continue;
    if (const int version = version_of(words, dash)) mounts[version] = {words[4], words[3], true};
  }
  Word least = UNLIMITED_BYTES;
  for (const std::string& line : lines(proc + "/self/cgroup")) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const int version = controllers.empty() ? 2 : holds(split(controllers, ','), "memory") ? 1 : 0;
    if (version == 0 || !mounts[version].known) continue;
    std::string group = below(line.substr(second + 1), mounts[version].top);
    for (;; group.erase(group.rfind('/'))) {
      least = std::min(least, number(root + mounts[version].point + group + NAMES[version]));
      if (group.empty()) break;
    }
  }
  return least < UNLIMITED_BYTES ? least : format::NOTHING;
}

Word session::narrow_limit(const program::Program& program) {
  const auto schedules = program.rows<format::Schedule>(format::SCHEDULES);
  const Word limit = memory_limit();
  return schedules.length > 0 && limit <= schedules[0].budget_bytes + WIDE_BYTES ? limit : format::NOTHING;
}

EP_EXPORT Word ep_memory_limit(const char* proc, const char* root) { return session::memory_limit(proc, root); }
