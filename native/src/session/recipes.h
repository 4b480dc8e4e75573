// Weights that are made from the model's file when they are needed (format.h, Recipe): a stack of arrays of float32.
#pragma once

#include <string>
#include <vector>

#include "../program/program.h"
#include "region.h"

namespace session {

// Memory for weights on their way, used again and again. One for each thread.
class Staging {
 public:
  // So many bytes; at the beginning of a line of the cache, and with room to be widened in vectors.
  char* take(Word bytes);
  // Give up what was taken.
  void clear();

 private:
  std::vector<Region> parts_;
  Word used_ = 0, whole_ = 0;  // of the last part, of all
};

// Bytes, which are `count` values where they are numbers.
struct Values {
  char* from;
  Word count, bytes;

  float* numbers() const { return reinterpret_cast<float*>(from); }
};

// A part of a file that a recipe reads; none where `bytes` is 0.
struct RecipePart {
  Word file, offset, bytes;
};
RecipePart part_of(const format::Recipe& row);

// What recipes of a weight make, of what they have read, part by part. They were checked with the program.
Values made(const program::Program& program, const format::Raw& raw, Staging& staging, char* const*& read);

}  // namespace session
