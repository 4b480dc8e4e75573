#include "checks.h"

using namespace program;
using format::NOTHING;
using format::Recipe;
using loops::Head;

namespace {

constexpr Word WORD = sizeof(Word), VALUE = sizeof(float), MOST_LANES = 1024, MOST_STRIDE = Word{1} << 32;
constexpr const char *NO_RECIPE = "weights are made of nothing", *NO_LATER = "a step has no later one",
                     *NO_LANES = "its lanes do not prepare each step once";

// Arrays of float32, or bytes, that a recipe makes: their lengths. None is larger than so many bytes.
class Stack : Held {
 public:
  Stack(const Program& program, Word most)
      : Held(program),
        most_(most),
        recipes_(rows<Recipe>(format::RECIPES)),
        files_(rows<format::File>(format::FILES)) {}

  Word made(Word first, Word end) {
    require_inside(first, end - first, recipes_.length, NO_RECIPE);
    for (Word k = first; k < end; ++k) apply(recipes_[k]);
    require(made_.size() == 1, NO_RECIPE);
    return made_[0].values ? VALUE * made_[0].count : made_[0].count;
  }

 private:
  struct Made {
    Word count;
    bool values;
  };

  void apply(const Recipe& one) {
    require(0 <= one.count && static_cast<Word>(made_.size()) < Records::MOST, NO_RECIPE);
    switch (one.operation) {
      case format::LOAD: return push(loaded(one), true);
      case format::BYTES:
        require_inside(one.offset, one.count, file(one).bytes, NO_RECIPE);
        return push(one.count, false);
      case format::FILL:
        require(values(1) == 1, NO_RECIPE);
        made_.pop_back();
        return push(one.count, true);
      case format::ADD: case format::SUBTRACT: case format::MULTIPLY: case format::DIVIDE:
        require(values(2) >= 1 && one.count >= 1, NO_RECIPE);
        return made_.pop_back();
      default:
        require(format::ADD_NUMBER <= one.operation && one.operation <= format::NEGATE && values(1) >= 1, NO_RECIPE);
    }
  }

  void push(Word count, bool values) {
    require(1 <= count && count <= most_ / (values ? VALUE : 1), NO_RECIPE);
    made_.push_back({count, values});
  }

  // Values of the topmost array, if the topmost so many are values.
  Word values(std::size_t arrays) const {
    require(made_.size() >= arrays, NO_RECIPE);
    for (std::size_t k = 1; k <= arrays; ++k) require(made_[made_.size() - k].values, NO_RECIPE);
    return made_.back().count;
  }

  const format::File& file(const Recipe& one) const {
    require(0 <= one.file && one.file < files_.length, NO_RECIPE);
    return files_[one.file];
  }

  Word loaded(const Recipe& one) const {
    Word apart = 0;
    require(0 <= one.dtype && one.dtype < 7 && 1 <= one.stride && one.stride <= MOST_STRIDE, NO_RECIPE);
    require(one.count >= 1 && !__builtin_mul_overflow(one.count - 1, one.stride, &apart), NO_RECIPE);
    require(apart <= file(one).bytes, NO_RECIPE);
    require_inside(one.offset, apart + format::SIZES[one.dtype], file(one).bytes, NO_RECIPE);
    return one.count;
  }

  const Word most_;
  const Array<const Recipe> recipes_;
  const Array<const format::File> files_;
  std::vector<Made> made_;
};

class Cold : Held {
 public:
  explicit Cold(const Program& program)
      : Held(program), records_(program), heads_(size(records_.count())) {}

  void check() {
    require(0 <= facts_.widen_from && facts_.widen_from <= facts_.steps && records_.count() >= facts_.steps, NO_NUMBER);
    require(facts_.little_ratio >= 0, NO_NUMBER);
    check_lanes();
    for (Word number = 0; number < records_.count(); ++number) check_record(number);
    check_later();
    require(raw_ == rows<format::Raw>(format::RAW).length, NO_RECIPE);
    for (const auto id : {format::INPUTS, format::OUTPUTS})
      for (const format::Border& border : rows<format::Border>(id)) {
        require(border.buffer == NOTHING, NO_BORDER);
        require_inside(border.offset, border.bytes, facts_.arena_bytes, NO_BORDER);
      }
  }

 private:
  const Head& head(Word number) const { return *at(heads_, number); }

  void check_lanes() const {
    const auto todo = rows<Word>(format::TODO), bounds = rows<Word>(format::BOUNDS);
    require(todo.length == facts_.steps && bounds.length % 2 == 0 && bounds.length <= 2 * MOST_LANES, NO_LANES);
    Word end = 0;
    for (Word lane = 0; lane < bounds.length; lane += 2) {
      require(bounds[lane] == end && end <= bounds[lane + 1], NO_LANES);
      end = bounds[lane + 1];
    }
    require(bounds.length > 0 && end == facts_.steps, NO_LANES);
    std::vector<char> met(size(facts_.steps));
    for (const Word step : todo) {
      require(0 <= step && step < facts_.steps && !at(met, step), NO_LANES);
      at(met, step) = true;
    }
  }

  void check_record(Word number) {
    const Head& head = records_.begin(number);
    const Word* slots = records_.take(2 * head.slots);
    at(heads_, number) = &head;
    check_weights(head, number);
    for (Word slot = 0; slot < head.slots; ++slot) {
      records_.require_made(slots[2 * slot], Layout::DESCRIPTOR);
      require_inside(slots[2 * slot + 1], 0, head.bytes, NO_WEIGHTS);
    }
    if (head.source == loops::RAW)
      for (Word slot = 0; slot < head.slots; ++slot) check_raw(head, number, slot, slots + 2 * slot);
    for (Word k = 0; k < head.calls; ++k) check_call(head, slots);
  }

  void check_weights(const Head& head, Word number) const {
    const bool copied = head.source == loops::COPIED, cached = copied || head.source == loops::MAPPED;
    const bool placed = copied || head.source == loops::RAW;
    const bool known = number >= facts_.steps || number < rows<std::uint64_t>(format::CHECKSUMS).length;
    require(loops::NO_WEIGHTS <= head.source && head.source <= loops::SHARED && head.bytes >= 0, NO_WEIGHTS);
    require(head.slots == 0 || head.source != loops::NO_WEIGHTS, NO_WEIGHTS);
    require(!cached || (head.segment % PAGE == 0 && known), NO_WEIGHTS);
    require(!placed || head.place % WORD == 0, NO_WEIGHTS);
    if (cached) require_inside(head.segment, head.bytes, facts_.cache_bytes, NO_WEIGHTS);
    if (placed) require_inside(head.place, head.bytes, facts_.weights_bytes, NO_WEIGHTS);
  }

  void check_call(const Head& head, const Word* slots) {
    const Called call = records_.call();
    const bool compiled = call.kernel != nullptr;
    const Word* given = records_.take(compiled ? call.count : 2 * call.count);
    for (Word k = 0; k < call.count; ++k) {
      const Word place = compiled ? given[k] : given[2 * k + 1], slot = -1 - place;
      require(slot < head.slots, "a call names no weight");
      if (compiled && place < 0)
        check_operand(call, k, slots[2 * slot + 1], head.bytes);
      else if (compiled)
        check_operand(call, k, place, facts_.arena_bytes);
      else if (place >= 0)
        records_.require_made(place, Layout::MEMORY);
    }
  }

  void check_operand(const Called& call, Word operand, Word offset, Word whole) const {
    require_inside(offset, touched(call.kernel, call.block, call.count, operand, offset), whole, NO_PLACE);
  }

  // Steps' records for later runs; weights that are shared are those of the cold start.
  void check_later() const {
    const auto later = rows<Word>(format::LATER);
    std::vector<Word> step_of(heads_.size(), NOTHING);
    require(later.length == facts_.steps, NO_LATER);
    for (Word step = 0; step < later.length; ++step) {
      if (later[step] == NOTHING) continue;
      require(facts_.steps <= later[step] && later[step] < records_.count(), NO_LATER);
      require(at(step_of, later[step]) == NOTHING, NO_LATER);
      at(step_of, later[step]) = step;
    }
    for (Word number = 0; number < records_.count(); ++number) {
      if (head(number).source != loops::SHARED) continue;
      const Word step = at(step_of, number);
      require(step != NOTHING && head(step).bytes >= head(number).bytes, NO_WEIGHTS);
      require(head(step).source != loops::NO_WEIGHTS || head(number).slots == 0, NO_WEIGHTS);
    }
  }

  // Each weight of a record that is raw has a recipe, record by record.
  void check_raw(const Head& head, Word number, Word slot, const Word* place) {
    const auto all = rows<format::Raw>(format::RAW);
    require(raw_ < all.length, NO_RECIPE);
    const format::Raw& raw = all[raw_++];
    require(raw.record == number && raw.slot == slot && raw.target == place[0] && raw.offset == place[1], NO_RECIPE);
    require_inside(raw.offset, raw.bytes, head.bytes, NO_WEIGHTS);
    require(layout_.kind(raw.source) == Layout::DESCRIPTOR, NO_RECIPE);
    require(NOTHING <= raw.conversion && raw.conversion < layout_.primitives, NO_RECIPE);
    const Word made = Stack(program_, head.bytes).made(raw.first, raw.end);
    require(raw.conversion != NOTHING || made == raw.bytes, NO_RECIPE);
  }

  Records records_;
  std::vector<const Head*> heads_;  // by record
  Word raw_ = 0;                    // weights met that are raw
};

}  // namespace

void program::check_cold(const Program& program) { Cold(program).check(); }
