// Schedules of a program of memory: where and when, for one budget after the other.
#pragma once

#include <optional>
#include <vector>

#include "../program/program.h"

namespace session {

// Where buffers and weights lie in the arena, and when weights are loaded.
struct Schedule {
  bool back_to_back = false;  // inferences follow each other; else memory is filled before each
  Word arena_bytes = 0;
  std::vector<Word> buffers;               // address of each buffer
  std::vector<Word> weights;               // of each step's weights; NOTHING: it has none
  std::vector<Word> after, again;          // of each step's load (reader.h, Load)
  bool stays(std::size_t step) const { return weights[step] >= 0 && again[step] == static_cast<Word>(step); }
  bool operator==(const Schedule& other) const;
};

struct Chosen {
  Word row;  // of SCHEDULES
  Schedule schedule;
};

// A stored schedule; row 0 is the plan's own.
Schedule stored(const program::Program& program, Word row);

// The fastest schedule stored for a budget (bytes over idle), or less; of those as fast the one that reads least once
// what the budget leaves is filled with weights that it would read in each inference.
std::optional<Chosen> fitting(const program::Program& program, Word budget);

// The least budget that a schedule is stored for.
Word least_budget(const program::Program& program);

}  // namespace session
