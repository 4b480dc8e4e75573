// What the parts of edgeplan-run share. The process runs one plan and ends: what it allocates it keeps, and every error
// ends it. So it does without exceptions and the C++ library, which would be most of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "../include/edgeplan.h"

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
  // The text, with a 0 at its end.
  const char* ended() { return add("%c", 0).from; }
};

__attribute__((format(printf, 1, 2))) const char* text(const char* format, ...);

extern Text output;  // printed when the process ends

// Of this process: bytes, as /proc/self/status tells them.
struct Memory {
  std::int64_t resident, peak, anonymous, of_files, shared, tables;
};
Memory memory();
void reset_peak();
std::int64_t waited_pages();  // major faults
std::int64_t now_ns();        // CLOCK_MONOTONIC

// An input as messages name it: float32[1,3,224,224] named 'input'.
const char* described(const ep_tensor_info& info);

// Read the values of a file of an array as NumPy writes it (versions 1 and 2, little-endian, row-major). Ends the process
// where it holds none, or others than are wanted.
void read_array(const char* file, const ep_tensor_info& wanted, void* to);

// A folder to write to, made if it is not there; ends the process where nothing can be written there.
void require_folder(const char* folder);

// Write an output to FOLDER/NAME.npy, at once; in the name all but letters, digits and "_.-~" are as in %2F. Its path.
const char* write_array(const char* folder, const ep_tensor_info& info, const void* values);

// Inferences within one budget of memory.
struct Phase {
  double budget, predicted_ms;
  double replan_ms, pause_ms;  // to choose another schedule (0: none), and until the first inference could begin
  double read_bytes;
  List<double> run_ms, wait_ms;  // of each inference, and how long steps waited for weights in it
};

struct Report {
  const char *model = "", *layout = "";
  double steps = 0, threads = 0;
  // of a cold start
  bool continuous = false;  // there are kernels of their own for later inferences
  double cache_bytes = 0, cold_ms = 0;
  List<double> warm_ms{};
  double opened_ms = 0, stages_ms[4] = {};  // as ep_span numbers them
  // of a plan of memory
  bool of_memory = false;
  List<Phase> phases{};
  double others = 0, bytes_per_ms = 0, limit_bytes = 0;  // limit 0: it leaves room, or there is none
  std::int64_t waited_pages = 0, start_peak = 0;
  Memory idle{}, peak{};
  // outputs that were written: names and files
  List<const char*> names{}, files{};
};

// What a run is told by: lines, or one object of JSON with the same.
void tell(const Report& report, Text& lines);
void tell_json(const Report& report, Text& to);

}  // namespace run
