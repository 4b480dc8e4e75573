// A program file, mapped, and found whole: every number in its rows is within its bounds, and taken as it is.
#pragma once

#include <string>

#include "../loops/loops.h"
#include "../session/region.h"
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

// Numbers of a program's objects: descriptors, then two of each attribute (itself, its post-operations), two of each
// primitive (itself, what describes it), and memories (runtime/tape.py, Layout). Groups of operations, which make them, are
// in the same order.
struct Layout {
  enum Kind { DESCRIPTOR, ATTRIBUTES, POST_OPS, PRIMITIVE, DESCRIBED, MEMORY, NOTHING };
  Word descriptors, attributes, primitives, memories;

  Word groups() const { return descriptors + attributes + primitives + memories; }
  Word handles() const { return groups() + attributes + primitives; }
  Word first_primitive() const { return descriptors + 2 * attributes; }
  Word first_memory() const { return first_primitive() + 2 * primitives; }
  Kind kind(Word handle) const;
  Word group_of(Word handle) const;  // the group that makes a handle
};

class Program : Fixed {
 public:
  // Map a file and check all of it; Error: it is none, damaged, or of another version.
  explicit Program(const std::string& path);
  // The same of bytes, which are copied, for measuring.
  Program(const void* bytes, std::size_t count);

  const format::Header& header() const { return *reinterpret_cast<const format::Header*>(from_.get()); }
  const format::Facts& facts() const { return *facts_; }
  const char* text(Word offset) const { return text_ + offset; }
  const char* model() const { return text(facts_->model); }
  Layout layout() const { return {facts_->descriptors, facts_->attributes, facts_->primitives, facts_->memories}; }
  const loops::Head& record(Word number) const {
    return reinterpret_cast<const loops::Head&>(records_[record_starts_[number]]);
  }
  Word records() const { return record_starts_.length; }
  // The next step for whoever cannot run it: the command that plans again.
  const std::string& plan_again() const { return plan_again_; }

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
  void adopt();  // what is asked often, once it is checked

  std::string path_, plan_again_ = "plan the model again: edgeplan plan cold-start or plan memory";
  session::Mapped from_;
  std::size_t bytes_ = 0;
  const format::Facts* facts_ = nullptr;
  const char* text_ = nullptr;
  Array<const Word> records_{}, record_starts_{};
};

// Checks of what the sections of a kind hold, against every bound (checks.cpp); Error: damaged.
void check_cold(const Program& program);
void check_memory(const Program& program);

}  // namespace program
