// Zeroed memory on huge pages where the system has them: fewer faults at first touch.
#pragma once

#include <sys/mman.h>

#include <new>

#include "../base.h"

namespace session {

constexpr int POPULATE_READ = 22;  // advice of Linux 5.14: older headers lack it

class Region {
 public:
  Region() = default;
  // Error: std::bad_alloc.
  explicit Region(Word bytes) : bytes_(bytes) {
    void* found = mmap(nullptr, mapped(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) throw std::bad_alloc();
    from_ = static_cast<char*>(found);
    madvise(found, mapped(), MADV_HUGEPAGE);
  }
  Region(Region&& other) noexcept : from_(other.from_), bytes_(other.bytes_) { other.from_ = nullptr; }
  Region& operator=(Region&& other) noexcept {
    std::swap(from_, other.from_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Region() {
    if (from_ != nullptr) munmap(from_, mapped());
  }

  // From the beginning of a huge page on.
  char* data() const { return reinterpret_cast<char*>((reinterpret_cast<Word>(from_) + HUGE - 1) & -HUGE); }
  Word bytes() const { return bytes_; }

 private:
  static constexpr Word HUGE = 2 << 20;
  std::size_t mapped() const { return static_cast<std::size_t>(bytes_ + HUGE); }

  char* from_ = nullptr;
  Word bytes_ = 0;
};

}  // namespace session
