// The stages of a step: its objects made, its weights fetched, its calls written down.
#include <algorithm>
#include <sys/mman.h>
#include <unistd.h>

#include "loops.h"
#include "threads.h"

using namespace loops;

namespace {

constexpr int POPULATE_READ = 22;  // of Linux 5.14: older headers lack it
constexpr Word POPULATED_AT_ONCE = 2 << 20, PAGE = 4096;

// Have the pages of a part of the cache mapped: what cannot be read is told, a touch would end the process.
bool populate(Word base, Word first, Word last) {
  for (Word part = first; part < last; part += POPULATED_AT_ONCE) {
    const auto length = static_cast<std::size_t>(std::min(POPULATED_AT_ONCE, last - part));
    if (madvise(reinterpret_cast<void*>(base + part), length, POPULATE_READ) != 0) return false;
  }
  return true;
}

bool read(int file, Word target, Word size, Word offset) {
  for (Word done = 0; done < size;) {
    const auto rest = static_cast<std::size_t>(size - done);
    const Word got = pread(file, reinterpret_cast<void*>(target + done), rest, offset + done);
    if (got <= 0) return false;
    done += got;
  }
  return true;
}

// The address of a step's weights from the cache; `LEFT_TO_PYTHON` where something is not as usual.
Word weights_of(const Places& places, const Head& record) {
  if (record.source == NO_WEIGHTS) return 0;
  if (record.source == MAPPED && places.at_map != 0) {
    if (populate(places.at_map, record.segment / PAGE * PAGE, record.segment + record.bytes))
      return places.at_map + record.segment;
  } else if (record.source == COPIED && places.cache_file >= 0) {
    const Word target = places.at_weights + record.place;
    if (read(static_cast<int>(places.cache_file), target, record.bytes, record.segment)) return target;
  }
  return LEFT_TO_PYTHON;
}

// Behind the head of a record are the groups that its step needs, then its slots, then its calls.
const Word* groups_of(const Head& record) { return reinterpret_cast<const Word*>(&record + 1); }

Found make(const Worker& worker, const Head& record) {
  const Word* groups = groups_of(record);
  for (Word k = 0; k < record.groups; ++k)
    if (ensure(worker.context, worker.own, groups[k]) != DONE) return FAILED;
  return DONE;
}

// Write a step's calls, the memories of its weights, which lie at an address, and the arguments.
Found write(const Worker& worker, const Head& record, Call* block, Word weights) {
  const Places& places = *worker.context.places;
  const Store& store = worker.context.store;
  const Word* slots = groups_of(record) + record.groups;  // two words each: descriptor, offset
  Word* memories = reinterpret_cast<Word*>(block + record.calls);
  const auto weight = [&](Word slot) { return weights + slots[2 * slot + 1]; };
  for (Word slot = 0; slot < record.slots; ++slot) {
    const Word described = store.handles[slots[2 * slot]], made = address(memories + slot);
    if (const Status status = places.fn_memory(made, described, places.at_engine, weight(slot)))
      return failed(worker.own, BINDING, status);
  }
  const Word* row = slots + 2 * record.slots;
  Word* argument = memories + record.slots;
  for (Call* call = block; call < block + record.calls; ++call) {
    const Word primitive = *row++;
    call->count = *row++;
    call->arguments = argument;
    if (primitive < 0) {  // a compiled kernel: a block of numbers for a primitive, addresses for arguments
      call->function = store.kernels[-1 - primitive];
      call->primitive = places.at_constants + *row++;
      for (Word k = 0; k < call->count; ++k, ++row)
        *argument++ = *row >= 0 ? places.at_memory + *row : weight(-1 - *row);
      continue;
    }
    call->function = places.fn_execute;
    call->primitive = store.handles[primitive];
    for (Word k = 0; k < call->count; ++k, row += 2) {
      *argument++ = row[0];
      *argument++ = row[1] >= 0 ? store.handles[row[1]] : memories[-1 - row[1]];
    }
  }
  return DONE;
}

// Note what was done since then; the time now.
Word mark(const Worker& worker, Stage stage, Word step, Word start) {
  const Word end = now_ns(), at = 4 * worker.own.marks, row[] = {stage, step, start, end};
  if (at + 4 <= worker.marks.length) {
    std::copy_n(row, 4, &worker.marks[at]);
    ++worker.own.marks;
  }
  return end;
}

}  // namespace

Found loops::create(const Worker& worker, const Head& record, Word step) {
  const Word start = now_ns();
  const Found found = make(worker, record);
  mark(worker, CREATE, step, start);
  return found;
}

// Kernels are made before weights are fetched: with the page cache evicted these are on their way meanwhile.
Found loops::prepare(const Worker& worker, const Head& record, Word step, Call* block) {
  if (record.source == BY_PYTHON) return LEFT_TO_PYTHON;
  Word start = now_ns(), weights = 0;
  if (const Found found = make(worker, record)) return found;
  if (record.source != NO_WEIGHTS) {
    start = mark(worker, CREATE, step, start);
    weights = weights_of(*worker.context.places, record);
    if (weights < 0) return LEFT_TO_PYTHON;
    start = mark(worker, READ, step, start);
  }
  const Found found = write(worker, record, block, weights);
  mark(worker, CREATE, step, start);
  return found;
}

EP_EXPORT Word ep_fetch(const Context* context, Own* own, Word* marks, Word length, const Head* record,
                        Word step) {
  const Word start = now_ns(), weights = weights_of(*context->places, *record);
  mark({*context, *own, {marks, length}}, READ, step, start);
  return weights;
}

EP_EXPORT Word ep_create(const Context* context, Own* own, Word* marks, Word length, const Head* record,
                         Word step) {
  return create({*context, *own, {marks, length}}, *record, step);
}

EP_EXPORT Word ep_bind(const Context* context, Own* own, Word* marks, Word length, const Head* record,
                       Word step, Call* block, Word weights) {
  const Worker worker{*context, *own, {marks, length}};
  const Word start = now_ns();
  const Found found = write(worker, *record, block, weights);
  mark(worker, CREATE, step, start);
  return found;
}

EP_EXPORT Word ep_prepare(const Context* context, Own* own, Word* marks, Word length, const Head* record,
                          Word step, Call* block) {
  return prepare({*context, *own, {marks, length}}, *record, step, block);
}
