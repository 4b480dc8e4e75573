// A program file, mapped, and found whole: every number in its rows is within its bounds, and taken as it is.
#pragma once

#include <string>

#include "../loops/loops.h"
#include "format.h"

namespace program {

using loops::Array;

// A digest at the speed of memory (mixing.cpp); no protection against somebody who means to deceive.
std::uint64_t checksum(const void* bytes, std::size_t count);

// The same of bytes that are had part by part, each but the last a multiple of 32.
class Checksum {
 public:
  void add(const void* bytes, std::size_t count);
  std::uint64_t ended() const;

 private:
  std::uint64_t states_[loops::LANES] = {1, 2, 3, 4}, rest_ = 0, count_ = 0;
};

class Program {
 public:
  // Map a file and check all of it; Error: it is none, damaged, or of another version.
  explicit Program(const std::string& path, const std::string& plan_again);
  // The same of bytes that the caller keeps, for measuring.
  Program(const void* bytes, std::size_t count);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const format::Header& header() const { return *static_cast<const format::Header*>(from_); }
  const format::Facts& facts() const { return *facts_; }
  const char* text(Word offset) const { return text_ + offset; }

  // The rows of a section; none where the file has none.
  template <class Row>
  Array<const Row> rows(format::Id id) const {
    const Found found = section(id, sizeof(Row));
    return {static_cast<const Row*>(found.from), found.count};
  }

  [[noreturn]] void damaged(const char* why) const;

  // Give the pages back that checking has mapped: those that are needed come again.
  void drop_pages() const;

 private:
  struct Found {
    const void* from;
    Word count;
  };
  Found section(format::Id id, std::size_t row_bytes) const;
  void check();
  void check_sections() const;
  void adopt();  // facts and texts, once they are checked

  std::string path_, plan_again_;
  const void* from_ = nullptr;
  std::size_t bytes_ = 0;
  bool mapped_ = false;
  const format::Facts* facts_ = nullptr;
  const char* text_ = nullptr;
};

// Checks of what the sections of a kind hold, against every bound (checks.cpp); Error: damaged.
void check_cold(const Program& program);
void check_memory(const Program& program);

}  // namespace program
