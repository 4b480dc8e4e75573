#include "pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "files.h"
#include "region.h"

using namespace session;

namespace {

constexpr std::uint64_t PRESENT = std::uint64_t{1} << 63;  // of an entry of /proc/self/pagemap

void advise(Word begin, Word end, int advice) {
  madvise(reinterpret_cast<void*>(begin), size(end - begin), advice);
}

// The beginning of a line of /proc/self/smaps; whether the mapping is one of a file that cannot be written.
bool begins(const char* line, Mapping& mapping, bool& fits) {
  unsigned long begin, end, at;
  char permissions[5];
  int path = 0;
  if (std::sscanf(line, "%lx-%lx %4s %lx %*s %*s %n", &begin, &end, permissions, &at, &path) != 4 || path == 0) return false;
  fits = line[path] == '/' && permissions[1] != 'w' && permissions[3] == 'p';
  if (fits) mapping = {line + path, static_cast<Word>(begin), static_cast<Word>(end), static_cast<Word>(at) / PAGE};
  return true;
}

// The mappings of files in this process that cannot be written, and of which nothing was.
Mappings unchanged_mappings() {
  Mappings found;
  Mapping mapping;
  bool fits = false;
  each_line("/proc/self/smaps", [&](const char* line) {
    constexpr char CHANGED[] = "Anonymous:";  // relocated pages are there in no file
    if (begins(line, mapping, fits) || !fits || std::strncmp(line, CHANGED, sizeof CHANGED - 1) != 0) return;
    if (std::strtol(line + sizeof CHANGED - 1, nullptr, 10) == 0) found.push_back(mapping);
    fits = false;
  });
  return found;
}

void unmap(const Mappings& mappings) {
  for (const Mapping& one : mappings) advise(one.begin, one.end, MADV_DONTNEED);
}

// Mark the pages of a file that its mappings have in memory; none where the system does not tell.
void mark_present(const Mappings& mappings, std::vector<bool>& pages) {
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  constexpr Word AT_ONCE = 256;
  std::uint64_t told[AT_ONCE];
  for (const Mapping& one : mappings) {
    const Word count = (one.end - one.begin) / PAGE;
    if (static_cast<Word>(pages.size()) < one.page + count) pages.resize(size(one.page + count));
    for (Word first = 0; first < count; first += AT_ONCE) {
      const std::size_t bytes = sizeof told[0] * size(std::min(AT_ONCE, count - first));
      const ssize_t got = pread(file, told, bytes, (one.begin / PAGE + first) * static_cast<Word>(sizeof told[0]));
      for (Word k = 0; k < got / static_cast<ssize_t>(sizeof told[0]); ++k)
        if (told[k] & PRESENT) pages[size(one.page + first + k)] = true;
    }
  }
  close(file);
}

Runs runs_of(const std::vector<bool>& pages) {
  Runs found;
  for (std::size_t page = 0; page < pages.size(); ++page) {
    if (!pages[page]) continue;
    if (page > 0 && pages[page - 1])
      ++found.back();
    else
      found.insert(found.end(), {static_cast<Word>(page), 1});
  }
  return found;
}

struct Kept {
  Mappings mappings;  // of one file
  Runs runs;
};

// The parts of a mapping that pages of its file are in are to be in memory.
void populate(const Mapping& mapping, const Runs& runs) {
  for (std::size_t k = 0; k < runs.size(); k += 2) {
    const Word at = mapping.begin + (runs[k] - mapping.page) * PAGE;
    const Word first = std::max(mapping.begin, at), last = std::min(mapping.end, at + runs[k + 1] * PAGE);
    if (first < last) advise(first, last, POPULATE_READ);
  }
}

// Have some pages of mapped files in memory, and no others where no other process uses them.
void keep(const std::vector<Kept>& files) {
  std::vector<int> opened;
  for (const Kept& one : files) opened.push_back(open(one.mappings.front().path.c_str(), O_RDONLY | O_CLOEXEC));
  for (std::size_t k = 0; k < files.size(); ++k) {
    if (opened[k] < 0) continue;  // it has been deleted
    for (const Mapping& mapping : files[k].mappings)
      advise(mapping.begin, mapping.end, MADV_RANDOM);  // nothing is read ahead any more, but around code
    unmap(files[k].mappings);
  }
  for (const int file : opened)  // what this code itself needs is mapped again by now: that stays
    if (file >= 0) posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  for (std::size_t k = 0; k < files.size(); ++k) {
    if (opened[k] < 0) continue;
    const Runs& runs = files[k].runs;
    for (std::size_t run = 0; run < runs.size(); run += 2)  // these pages alone, nothing around them
      posix_fadvise(opened[k], runs[run] * PAGE, runs[run + 1] * PAGE, POSIX_FADV_WILLNEED);
    for (const Mapping& mapping : files[k].mappings) populate(mapping, runs);
    close(opened[k]);
  }
}

}  // namespace

void session::give_up_unused() {
  std::vector<Kept> files;
  for (Mapping& mapping : unchanged_mappings()) {
    const auto same = [&](const Kept& one) { return one.mappings.front().path == mapping.path; };
    const auto known = std::find_if(files.begin(), files.end(), same);
    if (known != files.end())
      known->mappings.push_back(std::move(mapping));
    else
      files.push_back({{std::move(mapping)}, {}});
  }
  for (Kept& one : files) {
    std::vector<bool> pages;
    mark_present(one.mappings, pages);
    one.runs = runs_of(pages);
  }
  keep(files);
}

LibraryPages::LibraryPages(const void* inside, bool records) : records_(records) {
  const Word address = reinterpret_cast<Word>(inside);
  const Mappings all = unchanged_mappings();
  const auto of = std::find_if(all.begin(), all.end(), [&](const Mapping& one) { return one.begin <= address && address < one.end; });
  if (of == all.end()) return;
  for (const Mapping& one : all)
    if (one.path == of->path) mappings_.push_back(one);
}

LibraryPages::LibraryPages(const void* inside, Runs making, Runs running) : LibraryPages(inside) {
  making_ = std::move(making);
  kept_ = std::move(running);
}

void LibraryPages::begin() const {
  if (!kept_.empty() && !mappings_.empty()) keep({{mappings_, making_}});
}

void LibraryPages::drop() {
  if (!kept_.empty()) return;  // what is needed at a time was chosen before
  if (records_) mark_present(mappings_, seen_[running_]);
  unmap(mappings_);
}

void LibraryPages::made() {
  if (!kept_.empty() && !mappings_.empty()) keep({{mappings_, kept_}});
  drop();
  running_ = true;
}

void LibraryPages::executed() const {
  if (!kept_.empty()) give_up_unused();
}

Runs LibraryPages::found(bool running) {
  if (records_) mark_present(mappings_, seen_[running_]);
  return runs_of(seen_[running]);
}
