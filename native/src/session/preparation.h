// What comes before a step's execution: its objects made, its weights fetched or made, its calls written down.
#pragma once

#include <memory>

#include "../loops/threads.h"
#include "objects.h"
#include "weights.h"

namespace session {

// A thread that prepares: what it needs of its own.
struct Preparer : Fixed {
  Preparer(const library::Onednn& used, int number) : library(used), core(number) {}
  ~Preparer() { library.end_stream(stream); }

  const library::Onednn& library;
  const int core;
  Word stream = 0;  // where it has needed one
  Staging staging;
  std::vector<ep_span> spans;  // what was done when
};

// A step's calls, behind which are the memories of its weights and all arguments.
struct Prepared {
  std::unique_ptr<Word[]> words;
  loops::Call *first = nullptr, *end = nullptr;
  Word slots = 0;
};

class Preparation {
 public:
  // `weights_at`: of weights that are copied or made.
  Preparation(const library::Onednn& library, const program::Program& program, Objects& objects, Weights& weights,
              char* weights_at)
      : library_(library),
        program_(program),
        objects_(objects),
        weights_(weights),
        weights_at_(weights_at),
        kernels_(library::Onednn::kernels_of(program)) {}

  const loops::Places& places() const { return objects_.places(); }
  // Make the objects that a record needs. Error: EP_DEVICE.
  void create(Preparer& preparer, Word number) {
    const Word begun = loops::now_ns();
    make(program_.record(number));
    mark(preparer, CREATE, number, begun);
  }

  // Prepare a record, its weights at their place, or at another one. Error: EP_DEVICE, EP_MODEL.
  // Kernels are made before weights are fetched: with the page cache evicted these are on their way meanwhile.
  void prepare(Preparer& preparer, Word number, Prepared& into, char* weights = nullptr) {
    const loops::Head& head = program_.record(number);
    if (weights == nullptr) weights = weights_at_ + head.place;
    Word begun = loops::now_ns();
    make(head);
    if (head.source != loops::NO_WEIGHTS && head.source != loops::SHARED) {
      mark(preparer, CREATE, number, begun);
      if (head.source == loops::RAW)
        transform(preparer, number, weights);
      else
        weights = fetch(preparer, head, number, weights);
      begun = loops::now_ns();
    }
    write(head, into, weights);
    mark(preparer, CREATE, number, begun);
  }

  // Fetch weights from the cache, as a part of that; where they lie, which is `target` for those that are copied.
  char* fetch(Preparer& preparer, const loops::Head& record, Word number, char* target) {
    const Word begun = loops::now_ns();
    char* found = weights_.cached(record, number, target);
    mark(preparer, READ, number, begun);
    return found;
  }

  // Where the weights of a record lie once it is prepared.
  char* weights_of(Word number) const {
    const loops::Head& found = program_.record(number);
    return found.source == loops::MAPPED ? weights_.mapped(found) : weights_at_ + found.place;
  }

  void release(Prepared& prepared) const {
    const Word* memories = reinterpret_cast<const Word*>(prepared.end);
    for (Word slot = 0; slot < prepared.slots; ++slot) objects_.destroy_memory(memories[slot]);
    prepared = {};
  }

 private:
  using Head = loops::Head;
  static constexpr Word SOURCE = 1, TARGET = 17;  // arguments of `dnnl_primitive_execute`

  // Behind the head of a record are the groups that its step needs, then its slots, then its calls.
  static const Word* groups_of(const Head& record) { return reinterpret_cast<const Word*>(&record + 1); }
  static const Word* slots_of(const Head& record) { return groups_of(record) + record.groups; }  // descriptor, offset
  static const Word* calls_of(const Head& record) { return slots_of(record) + 2 * record.slots; }

  // Words of a record's calls, and of all their arguments.
  static Word words_of(const Head& record) {
    Word words = record.calls * static_cast<Word>(sizeof(loops::Call) / sizeof(Word));
    const Word* row = calls_of(record);
    for (Word call = 0; call < record.calls; ++call) {
      const bool kernel = row[0] < 0;
      const Word own = kernel ? row[1] : 2 * row[1];
      words += own;
      row += (kernel ? 3 : 2) + own;
    }
    return words;
  }

  // Note what was done since then; the time now.
  static Word mark(Preparer& preparer, Stage stage, Word number, Word begun) {
    const Word now = loops::now_ns();
    preparer.spans.push_back({preparer.core, static_cast<std::int32_t>(number), stage, 0, begun, now});
    return now;
  }

  void make(const Head& record) {
    const Word* groups = groups_of(record);
    for (Word k = 0; k < record.groups; ++k) objects_.ensure(groups[k]);
  }

  void transform(Preparer& preparer, Word number, char* to) {
    Word begun = loops::now_ns();
    preparer.staging.clear();
    const std::vector<char*> read = weights_.read(number, preparer.staging);
    begun = mark(preparer, READ, number, begun);
    char* const* next = read.data();
    for (const format::Raw& raw : weights_.raw_of(number))
      convert(preparer, raw, made(program_, raw, preparer.staging, next), to + raw.offset);
    mark(preparer, TRANSFORM, number, begun);
  }

  // From the layout that a recipe makes to that which the kernel reads.
  void convert(Preparer& preparer, const format::Raw& raw, const Values& values, char* to) {
    if (raw.conversion < 0) {
      std::memcpy(to, values.from, size(raw.bytes));
      return;
    }
    objects_.make(raw.source);
    objects_.make(raw.target);
    const Word primitive = objects_.primitive(raw.conversion), from = objects_.handle(raw.source);
    if (objects_.reach(primitive, SOURCE, raw.source) > values.bytes ||
        objects_.reach(primitive, TARGET, raw.target) > raw.bytes)
      program_.damaged("a recipe of weights does not fit");
    if (preparer.stream == 0) preparer.stream = library_.stream();
    const auto [scratch, scratch_bytes] = objects_.scratchpad(primitive);
    const Word count = scratch_bytes > 0 ? 3 : 2;
    Word arguments[] = {SOURCE, objects_.memory(from, loops::address(values.from)),
                        TARGET, objects_.memory(objects_.handle(raw.target), loops::address(to)), SCRATCHPAD, 0};
    if (scratch_bytes > 0) arguments[5] = objects_.memory(scratch, loops::address(preparer.staging.take(scratch_bytes)));
    const Word status =
        objects_.places().fn_execute(objects_.handle(primitive), preparer.stream, count, loops::address(arguments));
    for (Word k = 0; k < count; ++k) objects_.destroy_memory(arguments[2 * k + 1]);
    if (status != 0) library_.failed_execution(status);
  }

  void write(const Head& record, Prepared& into, char* weights) const {
    into.words = std::make_unique<Word[]>(size(record.slots + words_of(record)));
    into.first = reinterpret_cast<loops::Call*>(into.words.get());
    into.end = into.first + record.calls;
    const loops::Places& places = objects_.places();
    const Word* slots = slots_of(record);
    Word* memories = reinterpret_cast<Word*>(into.end);
    const auto weight = [&](Word slot) { return loops::address(weights + slots[2 * slot + 1]); };
    for (; into.slots < record.slots; ++into.slots)
      memories[into.slots] = objects_.memory(objects_.handle(slots[2 * into.slots]), weight(into.slots));
    const Word* row = calls_of(record);
    Word* argument = memories + record.slots;
    for (loops::Call* call = into.first; call < into.end; ++call) {
      const Word primitive = *row++;
      call->count = *row++;
      call->arguments = argument;
      if (primitive < 0) {  // a compiled kernel: a block of numbers for a primitive, addresses for arguments
        call->function = kernels_[size(-1 - primitive)];
        call->primitive = places.at_constants + *row++;
        for (Word k = 0; k < call->count; ++k, ++row)
          *argument++ = *row >= 0 ? places.at_memory + *row : weight(-1 - *row);
        continue;
      }
      call->function = places.fn_execute;
      call->primitive = objects_.handle(primitive);
      objects_.require_scratchpad(primitive, row, call->count);
      for (Word k = 0; k < call->count; ++k, row += 2) {
        require_inside(record, primitive, row[0], row[1]);
        *argument++ = row[0];
        *argument++ = row[1] >= 0 ? objects_.handle(row[1]) : memories[-1 - row[1]];
      }
    }
  }

  // What a primitive reaches of an argument lies in the arena, or in the weights of the step.
  void require_inside(const Head& record, Word primitive, Word argument, Word place) const {
    const Word* slot = slots_of(record) + 2 * (-1 - place);
    const auto [descriptor, offset] = place >= 0 ? objects_.memory_of(place) : std::pair{slot[0], slot[1]};
    const Word reached = offset + objects_.reach(primitive, argument, descriptor);
    if (reached > (place >= 0 ? program_.facts().arena_bytes : record.bytes))
      program_.damaged("a kernel reaches beyond the memory that it is given");
  }

  const library::Onednn& library_;
  const program::Program& program_;
  Objects& objects_;
  Weights& weights_;
  char* weights_at_;
  const std::vector<loops::Four> kernels_;
};

}  // namespace session
