// What checks of programs share: nothing that a program says is used before it is held to its bounds.
#pragma once

#include <vector>

#include "program.h"

namespace program {

template <class T>
T& at(std::vector<T>& rows, Word k) {
  return rows[size(k)];
}
template <class T>
const T& at(const std::vector<T>& rows, Word k) {
  return rows[size(k)];
}

// A program, and how it is held to something.
class Held {
 public:
  explicit Held(const Program& program);

 protected:
  static constexpr const char *NO_NUMBER = "a number of it is none", *NO_WEIGHTS = "weights lie outside of their place",
                              *NO_PLACE = "a kernel reaches beyond the memory that it is given",
                              *NO_BORDER = "an input or output lies outside of its place";

  void require(bool fits, const char* why) const {
    if (!fits) program_.damaged(why);
  }
  // So many bytes from an offset on lie within others.
  void require_inside(Word offset, Word bytes, Word whole, const char* why) const {
    require(offset >= 0 && bytes >= 0 && offset <= whole && bytes <= whole - offset, why);
  }
  const char* constant(Word offset, Word bytes) const;  // from a multiple of 8 on
  template <class Row>
  Array<const Row> rows(format::Id id) const {
    return program_.rows<Row>(id);
  }

  const Program& program_;
  const format::Facts& facts_;
  const Layout layout_;

 private:
  const Array<const char> constants_;
};

// Groups that each group is made from, one after the other; where those of each begin, and the end.
struct Needs {
  std::vector<Word> groups, begins;
};
Needs check_operations(const Program& program);

// A call of a record: of a primitive, or of a compiled kernel by its name and block.
struct Called {
  const char* kernel;
  const Word* block;
  Word count;
};

// The records of a program, of steps or of kernels, read word by word.
class Records : Held {
 public:
  static constexpr Word MOST = 1 << 16;  // calls, slots, arguments
  static constexpr const char* WHOLE = "a record ends too early";

  explicit Records(const Program& program);
  Word count() const { return starts_.length; }
  // Begin a record: its head, and its groups, in an order in which they can be made.
  const loops::Head& begin(Word number);
  const Word* take(Word count);  // so many words that follow
  Called call();                 // the next call, up to its arguments
  // An object that the record's groups make.
  void require_made(Word handle, Layout::Kind kind) const;

 private:
  void list(Word group);
  const Word* block(Word offset, bool of_rows) const;

  const Needs needs_;
  std::vector<Word> met_;  // by group, the last record that lists it
  const Array<const Word> words_, starts_, kernels_;
  Word at_ = 0, number_ = format::NOTHING;
};

// Tell whether a kernel is none: rows that are read from the file.
bool reads_rows(const char* kernel);
// Words of the block at the head of so many; 0: there is none.
Word block_words(const Word* block, Word length);
// Bytes of an element of an operand, as a block tells them.
Word element_bytes(const Word* block, Word operand);
// Bytes that a kernel touches of an operand that lies at an offset; -1: the block is not for it, or the offset.
Word touched(const char* kernel, const Word* block, Word operands, Word operand, Word at);

}  // namespace program
