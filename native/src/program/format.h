// The file of a program, program.bin: a header, a table of sections, and rows of fixed sizes, all little-endian and
// at multiples of 64 bytes. runtime/program_file.py writes it; a test holds both equal.
#pragma once

#include "../base.h"

namespace format {

constexpr char MAGIC[9] = "EDGEPLAN";
constexpr std::uint32_t VERSION = 1, ORDER = 0x01020304;
constexpr Word ALIGNMENT = 64, DIMS = 12, NOTHING = -1;

struct Header {
  char magic[8];
  std::uint32_t version, byte_order;
  std::uint64_t bytes;     // of the file
  std::uint64_t checksum;  // `checksum` of all behind the header
  std::uint32_t kind, sections;
  std::uint64_t reserved[3];
};
static_assert(sizeof(Header) == 64);

enum Kind : std::uint32_t { COLD_START, MEMORY };

struct Section {
  std::uint32_t id, row_bytes;
  std::uint64_t offset, count;  // from the beginning of the file, rows
};

// Readers skip what they do not know. Numbers are never given twice.
enum Id : std::uint32_t {
  FACTS = 1,       // Facts, one row
  TEXT = 2,        // bytes: texts that end with 0; that at 0 is empty
  INPUTS = 3,      // Border
  OUTPUTS = 4,     // Border
  FUNCTIONS = 10,  // Word: names of oneDNN's functions, by the numbers that operations have for them
  KERNELS = 11,    // Word: names of compiled kernels, by the numbers that records have for them
  KINDS = 12,      // Word of each operation: what it does (loops.h, Kind)
  FUNCTION_OF = 13,    // Word of each operation
  MADE = 14,           // Word of each operation: the handle that `ASK` gives
  ROLES = 15,          // int8, INTEGERS of each operation: kinds of its arguments (loops.h, Role)
  VALUES = 16,         // Word, INTEGERS of each operation
  FLOATS = 17,         // float, 3 of each operation
  STARTS = 18,         // Word: first operation of each group, and the end
  CONSTANTS = 19,      // bytes
  RECORDS = 20,        // Word: of a cold start's steps, or of kernels: a head (loops.h, Head), groups, slots, calls
  RECORD_STARTS = 21,  // Word: of each step of a cold start, then of those of later runs; or of each kernel
  STEP_NAMES = 22,     // Word: text
  // of a cold start
  LATER = 30,      // Word of each step: the number of its record for later runs, NOTHING where it stays as it is
  TODO = 31,       // Word: steps that the lanes prepare, lane by lane
  BOUNDS = 32,     // Word, two of each lane: where in `TODO` it begins and ends
  CHECKSUMS = 33,  // uint64 of each step: of its weights in the cache
  FILES = 34,      // File: of the model, for raw weights
  RAW = 35,        // Raw: weights that are made from the model's, by ascending record
  RECIPES = 36,    // Recipe
  // of a plan of memory
  STEPS = 40,            // Step
  OPERANDS = 41,         // Operand
  BUFFERS = 42,          // Buffer
  SCHEDULES = 43,        // Schedule: the plan's own first, then those stored for other budgets by ascending budget
  PLACES = 44,           // int32, of each schedule: units of buffers, of weights (-1: none), then `after`, `again`
  PAGES_MAKING = 45,     // Word pairs: first page and number of pages of the library that making kernels needs
  PAGES_RUNNING = 46,    // Word pairs: likewise, executing them
  READERS = 47,          // Word: processors that reading threads may use
};

struct Facts {
  Word kind, threads, steps;
  Word model, machine, version, commit, isa, layout, library;  // texts; `library`: its file when it was planned
  Word descriptors, attributes, primitives, memories;          // rows that the tape makes
  Word scratch;                                                // words that arrays of handles are put together in
  Word arena_bytes, weights_bytes;  // of a cold start behind the arena, of memory: of the file weights.bin
  // of a cold start
  Word equal_cores, widen_from, continuous, cache_bytes;
  Word stamp[5];  // of weights.cache, or of weights.bin: device, number, size, times of modification and change (ns)
  double little_ratio;
  // of a plan of memory
  Word isolated, halves;    // halves: 0 whole, 1 bf16, 2 float16
  std::uint64_t checksum;   // of weights.bin
  double bytes_per_ms, others;
};

// An input or output, row-major.
struct Border {
  Word name, dtype, rank, dims[DIMS];  // dtype: a number of `DTYPES`
  Word buffer, offset, bytes, below;   // buffer: NOTHING: an offset in the arena
};
constexpr const char* DTYPES[] = {"float32", "int32", "int64", "int8", "uint8", "bool"};

struct File {
  Word path, bytes, stamp[5];
  std::uint64_t checksum;  // of a file of another stamp contents decide
};

// One weight of a record that is made from the model's file when it is needed.
struct Raw {
  Word record, slot;                // number of the record, of the slot in it
  Word source, target;              // groups of descriptors: as the recipe makes it, as the kernel reads it
  Word offset, bytes;               // in the step's weights
  Word conversion;                  // row of the primitive that converts; NOTHING: same bytes
  Word first, end;                  // of its recipe
};

// An operation on a stack of arrays of float32.
struct Recipe {
  Word operation;
  Word file, offset, count, stride, dtype;  // of a load: where; bytes from one value to the next; a number of `STORED`
  double number;
};
enum Operation : Word {
  LOAD,      // push values of a file, as float32
  BYTES,     // push `count` bytes of a file as they are
  FILL,      // the top, of one value, becomes `count` of them
  ADD, SUBTRACT, MULTIPLY, DIVIDE,  // pop b, then a; push a op b[(i / count) % length of b]
  ADD_NUMBER, MULTIPLY_NUMBER, ROOT, NEGATE,  // of the top
};
constexpr const char* STORED[] = {"float32", "int32", "int64", "int8", "uint8", "bool", "float16"};
constexpr Word SIZES[] = {4, 4, 8, 1, 1, 1, 2};  // bytes of each, and of `DTYPES`

struct Step {
  Word kernel, first_operand, weights_at, weight_bytes, stored_bytes;  // kernel NOTHING: its output is its input
};
struct Operand {
  Word buffer, offset;  // buffer NOTHING: the step's weights
};
struct Buffer {
  Word bytes, lower, upper;
};
struct Schedule {
  Word budget_bytes, arena_bytes;
  double predicted_ms, lower_bound_ms;
};
constexpr Word UNIT = 64;  // of PLACES

}  // namespace format
