// The calls of a program's steps bound to memory: kernels made once, and of each step the addresses of its operands alone.
//
// The memories that a primitive is given belong to its kernel: before each call the loop points them to the operands of
// the step. So another schedule changes a table of addresses, and nothing of the library's.
#pragma once

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "objects.h"
#include "pages.h"
#include "reader.h"

namespace session {

// Where buffers and weights lie in the arena, and when weights are loaded.
struct Schedule {
  bool back_to_back = false;  // inferences follow each other; else memory is filled before each
  Word arena_bytes = 0;
  std::vector<Word> buffers;               // address of each buffer
  std::vector<Word> weights;               // of each step's weights; NOTHING: it has none
  std::vector<Word> after, again;          // of each step's load (reader.h, Load)
  bool stays(std::size_t step) const { return weights[step] >= 0 && again[step] == static_cast<Word>(step); }
  bool operator==(const Schedule& other) const {
    return back_to_back == other.back_to_back && arena_bytes == other.arena_bytes && buffers == other.buffers &&
           weights == other.weights && after == other.after && again == other.again;
  }
};

// Rows of a table in the file of weights, which a step reads as its indices name them.
class Rows : Fixed {
 public:
  // block: where the table begins in the file, its rows, the bytes of one, and how many are picked
  Rows(const WeightsFile& file, const Word* block, bool wide)
      : file_(file), at_(block[0]), rows_(block[1]), bytes_(block[2]), count_(block[3]), wide_(wide),
        pages_(zeroed(rounded(bytes_, PAGE) + PAGE)) {}

  // As a kernel is called, with the addresses of indices and target; Error: EP_MODEL.
  // Each row once, in the order of the file.
  static loops::Status call(Word given, Word, Word, Word operands) {
    Rows& rows = *reinterpret_cast<Rows*>(given);
    const Word indices = reinterpret_cast<const Word*>(operands)[0], target = reinterpret_cast<const Word*>(operands)[1];
    std::vector<std::pair<Word, Word>> picked;
    for (Word place = 0; place < rows.count_; ++place) {
      picked.emplace_back(rows.index(indices, place), place);
      if (picked.back().first < 0) return library::INVALID_INDEX;
    }
    std::sort(picked.begin(), picked.end());
    Word held = format::NOTHING;
    for (const auto& [row, place] : picked) {
      if (row != held) rows.read(row);
      held = row;
      std::memcpy(reinterpret_cast<char*>(target + place * rows.bytes_),
                  rows.pages_.get() + (rows.at_ + row * rows.bytes_) % PAGE, size(rows.bytes_));
    }
    return 0;
  }

 private:
  // The row of an index; NOTHING where there is none.
  Word index(Word indices, Word place) const {
    const Word found = wide_ ? reinterpret_cast<const Word*>(indices)[place] : reinterpret_cast<const std::int32_t*>(indices)[place];
    const Word row = found < 0 ? found + rows_ : found;
    return 0 <= row && row < rows_ ? row : format::NOTHING;
  }

  // Have a row at the beginning of the pages, from where it begins in the first one on.
  void read(Word row) {
    const Word begin = at_ + row * bytes_, first = begin / PAGE * PAGE;
    iovec piece{pages_.get(), size(rounded(begin + bytes_ - first, PAGE))};
    file_.read(first, &piece, 1);
  }

  const WeightsFile& file_;
  const Word at_, rows_, bytes_, count_;
  const bool wide_;
  const Mapped pages_;  // room for a row where it lies in the file
};

// What the library offers depends on its cache of primitives: descriptors that differ in the strides of axes of size 1
// count as equal there, so an implementation that was found for one of them is offered for the other.
class NoPrimitiveCache : Fixed {
 public:
  explicit NoPrimitiveCache(const library::Onednn& onednn) : onednn_(onednn) {
    onednn.call("dnnl_get_primitive_cache_capacity", loops::address(&before_));
    onednn.call("dnnl_set_primitive_cache_capacity", 0);
  }
  ~NoPrimitiveCache() { onednn_.function("dnnl_set_primitive_cache_capacity")(before_, 0, 0, 0); }

 private:
  const library::Onednn& onednn_;
  int before_ = 0;
};

class BoundCalls : Fixed {
 public:
  // Make the kernels; pages of the library that only this needs are dropped again. Error: EP_DEVICE.
  BoundCalls(const library::Onednn& onednn, const program::Program& program, const WeightsFile& file, LibraryPages& pages)
      : times(size(2 * program.facts().steps)),
        onednn_(onednn),
        program_(program),
        file_(file),
        objects_(onednn, program, nullptr),
        kernels_(library::Onednn::kernels_of(program)) {
    constexpr Word DROP_EVERY = 8;        // kernels made
    const NoPrimitiveCache none(onednn);  // equal steps share their kernel anyway
    try {
      own_.stream = onednn.stream();
      for (Word kernel = 0; kernel < program.records(); ++kernel) {
        if (kernel % DROP_EVERY == 0) pages.drop();
        make(kernel);
      }
      bind();
    } catch (...) {
      destroy();
      throw;
    }
    objects_.free_makings();
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    pages.drop();
  }

  ~BoundCalls() { destroy(); }

  // Give all operands their addresses; weights lie in the arena, or where the file is mapped (else null).
  void place(const Schedule& schedule, const char* arena, const char* mapped) {
    const auto steps = program_.rows<format::Step>(format::STEPS);
    const auto operands = program_.rows<format::Operand>(format::OPERANDS);
    for (Word k = 0; k < steps.length; ++k) {
      const Word end = k + 1 < steps.length ? steps[k + 1].first_operand : operands.length;
      const Word weights = mapped != nullptr ? loops::address(mapped) + steps[k].weights_at
                                             : loops::address(arena) + schedule.weights[size(k)];
      for (Word at = steps[k].first_operand; at < end; ++at) {
        const Word buffer = operands[at].buffer;
        const Word from = buffer < 0 ? weights : loops::address(arena) + schedule.buffers[size(buffer)];
        operands_[size(at)] = from + operands[at].offset;
      }
    }
  }

  // Run steps from one on to before another. Error: EP_DEVICE, EP_MODEL.
  void run(Word first, Word end) {
    const auto found = loops::run_lane(objects_.places(), own_, items_.data(), times.data(), first, end, 0, 0);
    if (found != loops::DONE) onednn_.failed_execution(own_.status);
  }

  std::vector<Word> times;  // begin and end of each step, ns

 private:
  void make(Word kernel) {
    first_call_.push_back(calls_.size());
    first_reach_.push_back(reaches_.size());
    onednn_.set_threads(static_cast<int>(program_.facts().threads));
    const loops::Head& head = program_.record(kernel);
    const Word* row = reinterpret_cast<const Word*>(&head + 1);
    for (Word k = 0; k < head.groups; ++k) objects_.ensure(*row++);
    for (Word k = 0; k < head.calls; ++k) {
      const bool compiled = row[0] < 0;
      calls_.push_back(compiled ? kernel_call(-1 - row[0], row) : primitive_call(row, row[1]));
      row += compiled ? 3 : 2 + 2 * row[1];
    }
  }

  // row: handle, count, then of each argument its number and the handle of its memory's descriptor
  loops::Call primitive_call(const Word* row, Word count) {
    objects_.require_scratchpad(row[0], row + 2, count);
    arguments_.emplace_back(new Word[size(2 * count)]);  // `dnnl_exec_arg_t`
    Word* arguments = arguments_.back().get();
    for (Word k = 0; k < count; ++k) {
      const Word descriptor = objects_.handle(row[3 + 2 * k]);
      memories_.push_back(objects_.memory(descriptor, 0));
      reaches_.push_back(objects_.reach(row[0], row[2 + 2 * k], row[3 + 2 * k]));
      arguments[2 * k] = row[2 + 2 * k];
      arguments[2 * k + 1] = memories_.back();
    }
    return {objects_.places().fn_execute, objects_.handle(row[0]), count, arguments};
  }

  // row: -1 - kernel, count, offset of its block in the constants
  loops::Call kernel_call(Word kernel, const Word* row) {
    const auto* block = reinterpret_cast<const Word*>(program_.rows<char>(format::CONSTANTS).from + row[2]);
    const auto function = kernels_[size(kernel)];
    reaches_.insert(reaches_.end(), size(row[1]), 0);  // checked with the program
    if (function != nullptr) return {function, loops::address(block), row[1], nullptr};
    const char* name = program_.text(program_.rows<Word>(format::KERNELS)[kernel]);
    rows_.push_back(std::make_unique<Rows>(file_, block, std::strcmp(name, "rows_by_int64") == 0));
    return {Rows::call, loops::address(rows_.back().get()), row[1], nullptr};
  }

  // What primitives reach lies in the buffer, or in the weights of the step.
  void require_inside(const format::Step& step) const {
    const auto buffers = program_.rows<format::Buffer>(format::BUFFERS);
    const format::Operand* operand = program_.rows<format::Operand>(format::OPERANDS).from + step.first_operand;
    for (std::size_t k = first_reach_[size(step.kernel)]; k < first_reach_[size(step.kernel + 1)]; ++k, ++operand)
      if (operand->offset + reaches_[k] > (operand->buffer < 0 ? step.weight_bytes : buffers[operand->buffer].bytes))
        program_.damaged("a kernel reaches beyond the memory that it is given");
  }

  // Tell the loop where the calls of each step lie, and where its operands will.
  void bind() {
    static loops::Call nothing{};
    first_call_.push_back(calls_.size());
    first_reach_.push_back(reaches_.size());
    const auto steps = program_.rows<format::Step>(format::STEPS);
    operands_.resize(size(program_.rows<format::Operand>(format::OPERANDS).length));
    for (Word k = 0; k < steps.length; ++k) {
      Word* operands = operands_.data() + steps[k].first_operand;
      if (steps[k].kernel < 0) {
        items_.push_back({0, &nothing, &nothing, operands});
        continue;
      }
      const auto kernel = size(steps[k].kernel);
      require_inside(steps[k]);
      items_.push_back({0, calls_.data() + first_call_[kernel], calls_.data() + first_call_[kernel + 1], operands});
    }
  }

  void destroy() {
    for (const Word memory : memories_) objects_.destroy_memory(memory);
    onednn_.end_stream(own_.stream);
  }

  const library::Onednn& onednn_;
  const program::Program& program_;
  const WeightsFile& file_;
  Objects objects_;
  const std::vector<loops::Four> kernels_;
  loops::Own own_{};
  std::vector<Word> memories_;
  std::vector<std::unique_ptr<Word[]>> arguments_;
  std::vector<std::unique_ptr<Rows>> rows_;
  std::vector<loops::Call> calls_;
  std::vector<std::size_t> first_call_, first_reach_;  // of each kernel, and the end
  std::vector<Word> reaches_;                          // bytes of memory that arguments of primitives reach
  std::vector<loops::Item> items_;
  std::vector<Word> operands_;
};

}  // namespace session
