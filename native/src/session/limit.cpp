// The limit of memory of the control groups around this process, of either version. support/cgroups.py reads the same
// files, and a test holds both equal.
#include <algorithm>

#include "files.h"
#include "pages.h"

using session::each_line;

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

// The number that a file holds; UNLIMITED_BYTES where it holds a word, or is not there.
Word number(const std::string& path) {
  Word found = UNLIMITED_BYTES;
  each_line(path, [&](const char* line) {
    if (*line != 0 && line[std::strspn(line, "0123456789")] == 0) found = std::strtoll(line, nullptr, 10);
  });
  return found;
}

}  // namespace

Word session::memory_limit(const std::string& proc, const std::string& root) {
  Mount mounts[3];
  each_line(proc + "/self/mountinfo", [&](const char* line) {
    const Words words = split(line, ' ');
    const auto dash = static_cast<std::size_t>(std::find(words.begin(), words.end(), "-") - words.begin());
    if (dash < 5 || dash + 1 >= words.size()) return;
    if (const int version = version_of(words, dash)) mounts[version] = {words[4], words[3], true};
  });
  Word least = UNLIMITED_BYTES;
  each_line(proc + "/self/cgroup", [&](const char* line) {  // number:controllers:path
    const Words words = split(line, ':');
    if (words.size() < 3) return;
    const int version = words[1].empty() ? 2 : holds(split(words[1], ','), "memory") ? 1 : 0;
    if (version == 0 || !mounts[version].known) return;
    std::string group = below(line + words[0].size() + words[1].size() + 2, mounts[version].top);
    for (;; group.erase(group.rfind('/'))) {
      least = std::min(least, number(root + mounts[version].point + group + NAMES[version]));
      if (group.empty()) break;
    }
  });
  return least < UNLIMITED_BYTES ? least : format::NOTHING;
}

Word session::narrow_limit(const program::Program& program) {
  const auto schedules = program.rows<format::Schedule>(format::SCHEDULES);
  const Word limit = memory_limit();
  return schedules.length > 0 && limit <= schedules[0].budget_bytes + WIDE_BYTES ? limit : format::NOTHING;
}

EP_EXPORT Word ep_memory_limit(const char* proc, const char* root) { return session::memory_limit(proc, root); }
