// Memory that the system maps, and takes back with the object that holds it.
#pragma once

#include <sys/mman.h>

#include <memory>
#include <new>

#include "../base.h"

namespace session {

constexpr int POPULATE_READ = 22, POPULATE_WRITE = 23;  // advice of Linux 5.14: older headers lack it

struct Unmap {
  Word bytes = 0;
  void operator()(char* from) const { munmap(from, size(bytes)); }
};
using Mapped = std::unique_ptr<char, Unmap>;

// Map a file to be read; null where the system does not.
inline Mapped mapped(int file, Word bytes, int flags, int protection = PROT_READ) {
  void* found = bytes > 0 ? mmap(nullptr, size(bytes), protection, flags, file, 0) : MAP_FAILED;
  return {found == MAP_FAILED ? nullptr : static_cast<char*>(found), Unmap{bytes}};
}

// Zeroed memory. Error: std::bad_alloc.
inline Mapped zeroed(Word bytes) {
  Mapped made = mapped(-1, bytes, MAP_PRIVATE | MAP_ANONYMOUS, PROT_READ | PROT_WRITE);
  if (!made) throw std::bad_alloc();
  return made;
}

// Zeroed memory on huge pages where the system has them: fewer faults at first touch.
class Region {
 public:
  // Error: std::bad_alloc.
  explicit Region(Word bytes) : memory_(zeroed(bytes + HUGE)), bytes_(bytes) {
    madvise(memory_.get(), size(bytes + HUGE), MADV_HUGEPAGE);
  }
  // From the beginning of a huge page on.
  char* data() const { return reinterpret_cast<char*>(rounded(reinterpret_cast<Word>(memory_.get()), HUGE)); }
  Word bytes() const { return bytes_; }

 private:
  static constexpr Word HUGE = 2 << 20;
  Mapped memory_;
  Word bytes_;
};

}  // namespace session
