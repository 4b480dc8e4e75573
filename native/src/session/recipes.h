// Weights that are made from the model's file when they are needed (format.h, Recipe): a stack of arrays of float32.
#pragma once

#include <string>
#include <vector>

#include "../program/program.h"
#include "files.h"
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

class Recipes {
 public:
  Recipes(const program::Program& program, const std::string& where) : program_(program), where_(where) {}

  // A part of a file that a recipe reads; none where `bytes` is 0.
  struct Part {
    Word file, offset, bytes;
  };
  static Part part_of(const format::Recipe& row);
  // What recipes of a weight make, of what they have read, part by part. Error: EP_FORMAT where they do not fit.
  Values make(const format::Raw& raw, Staging& staging, char* const*& read) const;
  [[noreturn]] void damaged() const;

 private:
  void run(const format::Recipe& row, std::vector<Values>& stack, Staging& staging, char* const*& read) const;
  Values loaded(const format::Recipe& row, char* read, Staging& staging) const;

  const program::Program& program_;
  std::string where_;
};

}  // namespace session
