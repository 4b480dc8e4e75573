// What the parts of edgeplan-run share. The process runs one plan and ends: what it allocates it keeps, and every error
// ends it. So it does without exceptions and the C++ library, which would be most of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace run {

// Print what was said and end at once: to free what libraries hold takes time, and memory that was given up before.
[[noreturn]] void end(int status);
// The same with an error in three lines; `where` and `next` may be "".
[[noreturn]] void refuse(int status, const char* what, const char* where, const char* next);
// The same with an error that the library has put into three lines.
[[noreturn]] void refuse(int status, const char* told);

inline void* held(void* memory) {
  if (memory == nullptr) refuse(1, "there is not enough memory", "", "free some");
  return memory;
}

template <class T>
struct List {
  T* from = nullptr;
  std::size_t length = 0;

  T& operator[](std::size_t k) const { return from[k]; }
  T* begin() const { return from; }
  T* end() const { return from + length; }
  void add(const T& one) {
    if ((length & (length - 1)) == 0)  // it is full at powers of 2
      from = static_cast<T*>(held(std::realloc(static_cast<void*>(from), sizeof(T) * (length > 0 ? 2 * length : 1))));
    from[length++] = one;
  }
};

struct Text : List<char> {
  __attribute__((format(printf, 2, 3))) Text& add(const char* format, ...);
  // Names from files: control characters, which steer a terminal, are written as \x1b.
  Text& add_escaped(const char* text, const char* kept = "");
};

// A formatted text, and one whose control characters are escaped.
__attribute__((format(printf, 1, 2))) const char* text(const char* format, ...);
const char* escaped(const char* text);

void say(const Text& lines);  // printed when the process ends

// Of this process: bytes, as /proc/self/status tells them.
struct Memory {
  std::int64_t resident, peak, anonymous, of_files, shared, tables;
};
Memory memory();
void reset_peak();
std::int64_t waited_pages();  // major faults
std::int64_t now_ns();        // CLOCK_MONOTONIC

}  // namespace run
