// Pages of the loaded oneDNN that are in memory: letting go of those that are not needed now, and keeping those that are.
//
// Making kernels runs other code than executing them. What the library's file holds can be had again at any time: pages
// that nobody changed are dropped once the kernels are made, and those that execution needs come back one by one.
//
// Under a limit of memory that is not enough. A page that is not in the page cache is read with megabytes around it, all
// of which count, and which may push out what the next kernel needs. So a profile says which pages making and executing
// kernels need, and a process under a limit has those and no others in memory.
#pragma once

#include <string>
#include <vector>

#include "../program/program.h"

namespace session {

// Pages of a file: the first of each run, and how many there are, one after the other.
using Runs = std::vector<Word>;

// A mapping of a file that cannot be written, and holds nothing but what the file says.
struct Mapping {
  std::string path;
  Word begin, end;  // addresses
  Word page;        // of the file that it begins with
};
using Mappings = std::vector<Mapping>;

class LibraryPages {
 public:
  // inside: an address of the library; records: those that are needed are written down
  explicit LibraryPages(const void* inside, bool records = false);
  // In a process under a limit: those that are needed at a time, and no others.
  LibraryPages(const void* inside, Runs making, Runs running);

  void begin() const;     // kernels will be made
  void drop();            // take the pages out of this process, unless they are kept; whoever needs one has it again
  void made();            // all kernels are made: they will be executed now
  void executed() const;  // an inference has run code that had not run before: what was read around it is given up
  Runs found(bool running);  // those that making kernels, or executing them, needed, if they were written down

 private:
  Mappings mappings_;
  bool records_ = false, running_ = false;
  Runs making_, kept_;  // none: nothing is kept
  std::vector<bool> seen_[2];
};

// Keep of all files that this process has mapped the pages that it uses, and give up the rest of what was read of them:
// what a loader reads ahead counts to the memory of a control group, and drags what is used out of it with itself.
void give_up_unused();

// The least limit of memory (bytes) that a group around this process sets; NOTHING where none does.
//   proc: where the kernel tells about processes; root: folder that mount points are below
Word memory_limit(const std::string& proc = "/proc", const std::string& root = "");

// That limit where it leaves a plan of memory little room; else NOTHING.
Word narrow_limit(const program::Program& program);

}  // namespace session
