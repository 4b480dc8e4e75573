// How far compiled kernels reach, by their blocks (graph/blocks.py): each kernel is told of operands of the sizes that
// it works on, and touches no byte besides those that are told here.
#include <algorithm>
#include <string>

#include "../kernels/kernels.h"
#include "checks.h"

namespace {

using Wide = __int128;  // sums and products of words

constexpr Word MOST_AXES = 16, MOST_OPERANDS = 4096, MOST_BYTES = Word{1} << 46;
constexpr Word LISTED = 9;  // numbers of a list of bytes' kernels (byte_lines.cpp)

// How a kernel goes over its operands: by their strides, or as its own loops say.
enum Way {
  WALKS, COPIES_ROWS, PICKS, MIXES, JOINS, LOOKS_UP, PAIRS, JOINS_BYTES, AVERAGES,
  READS_SLICES, READS_ELEMENTS, WRITES_SLICES, WRITES_ELEMENTS,
};

// Kernels by their names without the type at the end, and bytes of the elements of their operands: T of that type; of
// one alone there are any number. How elements are combined that are written to one place is no matter.
struct Family {
  const char *names, *sizes;
  Way way;
};
constexpr Family FAMILIES[] = {
    {" equal greater less greater_or_equal less_or_equal ", "TT1", WALKS},
    {" is_nan is_infinity is_positive_infinity is_negative_infinity to_bool to_int8 to_uint8 ", "T1", WALKS},
    {" to_float16 to_bfloat16 ", "T2", WALKS},
    {" to_float32 to_int32 ", "T4", WALKS},
    {" to_int64 largest last_largest smallest last_smallest ", "T8", WALKS},
    {" of_float16_to of_bfloat16_to ", "2T", WALKS},
    {" quantised_to_int8 quantised_to_uint8 ", "T411", WALKS},
    {" dequantised ", "T4T4", WALKS},
    {" where ", "1TTT", WALKS},
    {" power_by_float32 power_by_int32 ", "T4T", WALKS},
    {" power_by_int64 ", "T8T", WALKS},
    {" highest lowest ", "TT8", WALKS},
    {" gathered_by_int32 ", "T4T", COPIES_ROWS},
    {" gathered_by_int64 upper lower ", "T8T", COPIES_ROWS},
    {" gathered_by_slices_int32 ", "T48T", READS_SLICES},
    {" gathered_by_slices_int64 ", "T88T", READS_SLICES},
    {" gathered_by_elements_int32 ", "T48T", READS_ELEMENTS},
    {" gathered_by_elements_int64 ", "T88T", READS_ELEMENTS},
    {" scattered_by_slices_int64 ", "T8T8T", WRITES_SLICES},
    {" scattered_by_elements_int32 ", "T4T8T", WRITES_ELEMENTS},
    {" scattered_by_elements_int64 ", "T8T8T", WRITES_ELEMENTS},
    {" picked ", "T8TT", PICKS},
    {" mixed ", "T8TT", MIXES},
    {" joined ", "T", JOINS},
    {" bytes_table ", "111", LOOKS_UP},
    {" bytes_add bytes_mul ", "1141", PAIRS},
    {" bytes_concat ", "1", JOINS_BYTES},
    {" bytes_mean ", "1441", AVERAGES},
};
// All others compute elements from elements at the same places, of one type.
constexpr Family OTHERS{"", "T", WALKS};

const Family& family_of(std::string name) {
  for (const char* how : {"_add_", "_mul_", "_max_", "_min_"})
    if (const auto at = name.find(how); name.rfind("scattered_by_", 0) == 0 && at != name.npos) name.erase(at, 4);
  for (const Family& family : FAMILIES)
    if (std::strstr(family.names, (" " + name + " ").c_str()) != nullptr) return family;
  return OTHERS;
}

Word bytes_of_type(const std::string& type) {
  if (type == "int64") return 8;
  if (type == "float32" || type == "int32") return 4;
  return type == "int8" || type == "uint8" ? 1 : 0;
}

struct Block {
  const Word* block;
  Word rank, operands, row;
  const Word* dims;

  explicit Block(const Word* from)
      : block(from), rank(from[AT_RANK]), operands(from[AT_OPERANDS]), row(from[AT_ROW]), dims(from + AT_DIMS) {}

  const Word* operand(Word k) const { return told(block, k); }
  Wide reach(Word k) const { return operand(k)[REACH]; }
  Wide slice(Word k) const { return reach(k) / row + 1; }  // places along an axis that rows lie behind
  Wide rows() const {
    Wide count = 1;
    for (Word axis = 0; axis < rank && count < MOST_BYTES; ++axis) count *= dims[axis];
    return count;
  }
  // Elements from the first place on that are gone over; 0: places lie before it.
  Wide walked(Word k) const {
    const Word* own = operand(k);
    Wide lowest = own[STARTS], highest = lowest + own[REACH];
    const auto move = [&](Wide size, Wide stride) { (stride < 0 ? lowest : highest) += (size - 1) * stride; };
    for (Word axis = 0; axis < rank; ++axis) move(dims[axis], own[STRIDES + axis]);
    move(row, own[STEP]);
    return lowest < 0 ? 0 : 1 + highest;
  }
  bool dense(std::initializer_list<Word> which) const {
    return std::all_of(which.begin(), which.end(), [&](Word k) { return operand(k)[STEP] == 1; });
  }
};

bool numbers_fit(const Block& b) {
  const auto positive = [](Word value) { return 1 <= value && value <= MOST_BYTES; };
  bool fits = positive(b.row) && std::all_of(b.dims, b.dims + b.rank, positive);
  for (Word k = 0; k < b.operands; ++k) {
    const Word* own = b.operand(k);
    fits = fits && 0 <= own[STARTS] && own[STARTS] <= MOST_BYTES && 0 <= own[REACH] && own[REACH] <= MOST_BYTES;
    const auto any = [](Word value) { return -MOST_BYTES <= value && value <= MOST_BYTES; };
    fits = fits && std::all_of(own + STEP, own + STRIDES + b.rank, any);
  }
  return fits;
}

// Runs of several operands that the last one holds, before which `lists` operands are no runs; elements of one.
Wide joined(const Block& b, Word operand, Word lists) {
  const Word last = b.operands - 1;
  Wide whole = 0;
  for (Word k = 0; k < last - lists; ++k) whole += b.reach(k) + 1;
  if (operand == last) return lists == 0 ? b.rows() * whole : (b.rows() - 1) * (b.reach(last) + 1) + whole;
  return operand < last - lists ? b.rows() * (b.reach(operand) + 1) : LISTED * (last - lists);
}

// Elements that a kernel touches of an operand, from its address on; 0 where its block is not for it.
Wide elements_touched(const Block& b, Way way, Word operand) {
  const Wide walked = b.walked(operand), after = b.row;
  const Wide before = b.rank > 0 ? b.dims[0] : 0, out = b.rank > 1 ? b.dims[1] : 0;
  switch (way) {
    case WALKS: return walked;
    case COPIES_ROWS: return b.dense({0, 2}) ? walked : 0;
    case READS_SLICES: return b.reach(2) >= 2 * (b.reach(1) + 1) ? walked : 0;
    case READS_ELEMENTS: return b.reach(2) >= 2 ? walked : 0;
    case WRITES_SLICES:
    case WRITES_ELEMENTS: {
      const bool slices = way == WRITES_SLICES;
      const bool table = b.reach(3) >= (slices ? 2 * (b.reach(1) + 1) : 2);
      if (!table || !(slices ? b.dense({2, 4}) : b.dense({1, 2}))) return 0;
      return operand == 4 ? std::max(walked, b.reach(0) + 1) : walked;
    }
    case PICKS: {
      const Wide counts[] = {before * b.slice(0) * after, out, 1, before * out * after};
      return counts[operand];
    }
    case MIXES: {
      const Wide taps = b.reach(1) + 1;
      const Wide counts[] = {before * b.slice(0) * after, out * taps, out * taps, before * out * after};
      return counts[operand];
    }
    case JOINS: return b.rank == 1 ? joined(b, operand, 0) : 0;
    case JOINS_BYTES: return b.rank == 1 && b.operands >= 3 ? joined(b, operand, 1) : 0;
    case LOOKS_UP: return operand == 1 ? 256 : after;
    case PAIRS: return operand == 2 ? std::max<Wide>(walked, LISTED) : walked;
    case AVERAGES: {
      const Wide counts[] = {before * b.slice(0) * after, LISTED, after, before * after};
      return counts[operand];
    }
  }
  return 0;
}

// Loops end: they go over no more places than one of the operands has.
bool loops_end(const Block& b) {
  const Wide places = b.rows() * b.row;
  for (Word k = 0; k < b.operands; ++k)
    if (places <= b.walked(k)) return true;
  return false;
}

}  // namespace

bool program::reads_rows(const char* kernel) { return std::strncmp(kernel, "rows_by_", 8) == 0; }

Word program::block_words(const Word* block, Word length) {
  if (length < AT_DIMS || block[AT_RANK] < 0 || block[AT_RANK] > MOST_AXES) return 0;
  if (block[AT_OPERANDS] < 1 || block[AT_OPERANDS] > MOST_OPERANDS) return 0;
  const Word rank = block[AT_RANK], words = AT_DIMS + rank + block[AT_OPERANDS] * (STRIDES + rank);
  return words <= length ? words : 0;
}

Word program::element_bytes(const Word* block, Word operand) { return told(block, operand)[BYTES]; }

Word program::touched(const char* kernel, const Word* block, Word operands, Word operand, Word at) {
  const std::string name = kernel;
  const auto cut = name.rfind('_');
  const Word bytes = cut == std::string::npos ? 0 : bytes_of_type(name.substr(cut + 1));
  const Family& family = family_of(name.substr(0, cut));
  const std::string sizes = family.sizes;
  const Block b(block);
  if (bytes == 0 || reads_rows(kernel) || b.operands != operands || !numbers_fit(b)) return -1;
  if (sizes.size() > 1 && b.operands != static_cast<Word>(sizes.size())) return -1;
  for (Word k = 0; k < b.operands; ++k) {
    const bool list = family.way == JOINS_BYTES && k == b.operands - 2;
    const char size = list ? '4' : sizes[std::min(static_cast<std::size_t>(k), sizes.size() - 1)];
    if (b.operand(k)[BYTES] != (size == 'T' ? bytes : size - '0')) return -1;
  }
  if (at % b.operand(operand)[BYTES] != 0) return -1;
  const Wide found = loops_end(b) ? elements_touched(b, family.way, operand) * b.operand(operand)[BYTES] : 0;
  return 0 < found && found <= MOST_BYTES ? static_cast<Word>(found) : -1;
}

// The same for tests and for planning; -1, too, where there are fewer numbers than the block says.
EP_EXPORT Word ep_touched(const char* kernel, const Word* block, Word length, Word operand) {
  if (program::block_words(block, length) != length || operand < 0 || operand >= block[AT_OPERANDS]) return -1;
  return program::touched(kernel, block, block[AT_OPERANDS], operand, 0);
}
