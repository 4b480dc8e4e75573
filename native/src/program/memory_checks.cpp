#include <cstring>

#include "checks.h"

using namespace program;
using format::NOTHING;
using format::UNIT;

namespace {

constexpr Word MOST_SCHEDULES = 1 << 16, MOST_PROCESSORS = 1024, MOST_PAGES = 1 << 24, MOST_HALVES = 2;
constexpr const char *NO_OPERANDS = "a step has other operands than its kernel", *NO_STEP = "a load waits for no step",
                     *NO_SCHEDULE = "a schedule puts something outside of its memory";

class Memory : Held {
 public:
  explicit Memory(const Program& program)
      : Held(program),
        steps_(rows<format::Step>(format::STEPS)),
        operands_(rows<format::Operand>(format::OPERANDS)),
        buffers_(rows<format::Buffer>(format::BUFFERS)),
        records_(program) {}

  void check() {
    require(steps_.length == facts_.steps && 0 <= facts_.halves && facts_.halves <= MOST_HALVES, NO_NUMBER);
    for (Word kernel = 0; kernel < records_.count(); ++kernel) check_kernel(kernel);
    begins_.push_back(static_cast<Word>(touched_.size()));
    for (const format::Buffer& buffer : buffers_) {
      require(buffer.bytes >= 0, NO_NUMBER);
      require(0 <= buffer.lower && buffer.lower < buffer.upper && buffer.upper <= facts_.steps, NO_NUMBER);
    }
    for (Word k = 0; k < steps_.length; ++k) check_step(k);
    check_schedules();
    for (const auto id : {format::INPUTS, format::OUTPUTS})
      for (const format::Border& border : rows<format::Border>(id)) {
        require(0 <= border.buffer && border.buffer < buffers_.length, NO_BORDER);
        require_inside(border.offset, border.bytes, buffers_[border.buffer].bytes, NO_BORDER);
      }
    check_pages();
  }

 private:
  // Bytes of an operand that a call touches, from a multiple of others on; of primitives sessions find them out.
  struct Touched {
    Word bytes, multiple;
  };

  void check_kernel(Word number) {
    begins_.push_back(static_cast<Word>(touched_.size()));
    const loops::Head& head = records_.begin(number);
    require(head.slots == 0, Records::WHOLE);
    for (Word k = 0; k < head.calls; ++k) check_call(records_.call());
  }

  void check_call(const Called& call) {
    if (call.kernel != nullptr && reads_rows(call.kernel)) return check_rows(call);
    const Word* pairs = call.kernel != nullptr ? nullptr : records_.take(2 * call.count);
    for (Word k = 0; k < call.count; ++k) {
      const Word bytes = pairs != nullptr ? 0 : touched(call.kernel, call.block, call.count, k, 0);
      require(bytes >= 0, NO_PLACE);
      touched_.push_back({bytes, pairs != nullptr ? 1 : element_bytes(call.block, k)});
      if (pairs != nullptr) records_.require_made(pairs[2 * k + 1], Layout::DESCRIPTOR);
    }
  }

  void check_rows(const Called& call) {
    const Word *block = call.block, rows = block[1], bytes = block[2], count = block[3];
    Word table = 0, picked = 0;
    require(rows >= 1 && bytes >= 1 && count >= 1 && call.count == 2, NO_NUMBER);
    require(!__builtin_mul_overflow(rows, bytes, &table) && !__builtin_mul_overflow(count, bytes, &picked), NO_NUMBER);
    require_inside(block[0], table, facts_.weights_bytes, NO_WEIGHTS);
    const Word index = std::strcmp(call.kernel, "rows_by_int32") == 0 ? sizeof(std::int32_t) : sizeof(std::int64_t);
    require(count <= facts_.arena_bytes, NO_PLACE);
    touched_.push_back({index * count, index});
    touched_.push_back({picked, 1});
  }

  void check_step(Word number) const {
    const format::Step& step = steps_[number];
    const Word end = number + 1 < steps_.length ? steps_[number + 1].first_operand : operands_.length;
    require(NOTHING <= step.kernel && step.kernel < records_.count(), "a step calls no kernel");
    require_inside(step.first_operand, end - step.first_operand, operands_.length, NO_OPERANDS);
    const Word first = step.kernel == NOTHING ? 0 : at(begins_, step.kernel);
    const Word wanted = step.kernel == NOTHING ? 0 : at(begins_, step.kernel + 1) - first;
    require(end - step.first_operand == wanted, NO_OPERANDS);
    for (Word k = 0; k < wanted; ++k)
      check_operand(step, operands_[step.first_operand + k], at(touched_, first + k));
    const bool halved = facts_.halves != 0 && 2 * (step.stored_bytes / PAGE) == step.weight_bytes / PAGE;
    require(step.stored_bytes == step.weight_bytes || halved, "weights of no known size in the file");
    require((step.weights_at | step.weight_bytes | step.stored_bytes) % PAGE == 0, NO_WEIGHTS);
    require_inside(step.weights_at, step.stored_bytes, facts_.weights_bytes, NO_WEIGHTS);
  }

  void check_operand(const format::Step& step, const format::Operand& operand, const Touched& touched) const {
    require(NOTHING <= operand.buffer && operand.buffer < buffers_.length, "an operand lies nowhere");
    const Word whole = operand.buffer == NOTHING ? step.weight_bytes : buffers_[operand.buffer].bytes;
    require_inside(operand.offset, touched.bytes, whole, NO_PLACE);
    require(operand.offset % touched.multiple == 0, NO_PLACE);
  }

  void check_schedules() const {
    const auto schedules = rows<format::Schedule>(format::SCHEDULES);
    const auto places = rows<std::int32_t>(format::PLACES);
    const Word words = buffers_.length + 3 * steps_.length;
    require(1 <= schedules.length && schedules.length <= MOST_SCHEDULES, NO_SCHEDULE);
    require(places.length == schedules.length * words, NO_SCHEDULE);
    for (Word k = 0; k < schedules.length; ++k) check_schedule(schedules[k].arena_bytes, places.from + k * words);
  }

  void check_schedule(Word arena, const std::int32_t* units) const {
    const std::int32_t *weights = units + buffers_.length, *after = weights + steps_.length;
    const std::int32_t* again = after + steps_.length;
    Word most = PAGE;  // no arena is larger than all that lies in it
    for (Word k = 0; k < buffers_.length; ++k) {
      require_inside(UNIT * units[k], buffers_[k].bytes, arena, NO_SCHEDULE);
      most += PAGE + buffers_[k].bytes;
    }
    for (Word k = 0; k < steps_.length; ++k) {
      require(-1 <= after[k] && after[k] < k && -1 <= again[k] && again[k] < steps_.length, NO_STEP);
      if (steps_[k].weight_bytes == 0) continue;
      require_inside(UNIT * weights[k], steps_[k].weight_bytes, arena, NO_SCHEDULE);
      require(UNIT * weights[k] % PAGE == 0, NO_SCHEDULE);
      most += steps_[k].weight_bytes;
    }
    require(0 <= arena && arena <= most, NO_SCHEDULE);
  }

  void check_pages() const {
    for (const auto id : {format::PAGES_MAKING, format::PAGES_RUNNING}) {
      const auto pages = rows<Word>(id);
      require(pages.length % 2 == 0, NO_NUMBER);
      for (Word k = 0; k < pages.length; k += 2) require_inside(pages[k], pages[k + 1], MOST_PAGES, NO_NUMBER);
    }
    for (const Word reader : rows<Word>(format::READERS)) require(0 <= reader && reader < MOST_PROCESSORS, NO_NUMBER);
  }

  const Array<const format::Step> steps_;
  const Array<const format::Operand> operands_;
  const Array<const format::Buffer> buffers_;
  Records records_;
  std::vector<Touched> touched_;  // of the operands of all kernels
  std::vector<Word> begins_;      // of each kernel, and the end
};

}  // namespace

void program::check_memory(const Program& program) { Memory(program).check(); }
