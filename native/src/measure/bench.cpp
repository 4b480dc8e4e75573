// Single records of a cold start's program, prepared and executed stage by stage with the code of a session.
#include <algorithm>
#include <deque>

#include "../../include/measure.h"
#include "../loops/threads.h"
#include "../session/guarded.h"
#include "../session/preparation.h"

using namespace session;
using guarding::guarded;
using guarding::last_of_thread;
using library::Onednn;

namespace {

// Objects that were made together, and what was prepared with them.
struct Making {
  Making(const Onednn& library, const Program& program, Weights& weights, char* memory)
      : objects(library, program, memory),
        preparation(library, program, objects, weights, memory + program.facts().arena_bytes) {}
  ~Making() {
    for (Prepared& one : prepared) preparation.release(one);
  }

  Objects objects;
  Preparation preparation;
  std::deque<Prepared> prepared;
};

// Memory that was touched: which step pays for a huge page depends on its neighbours.
std::shared_ptr<Region> touched(Word bytes) {
  auto made = std::make_shared<Region>(bytes);
  std::memset(made->data(), 0, size(bytes));
  return made;
}

}  // namespace

struct ep_bench {
  ep_bench(const void* bytes, std::size_t count, const char* named, const char* cache, const ep_bench* shared)
      : program(bytes, count),
        library(Onednn::load(named, program.text(program.facts().library))),
        memory(shared != nullptr ? shared->memory
                                 : touched(program.facts().arena_bytes + program.facts().weights_bytes)),
        weights(program, ".", cache != nullptr ? cache : ""),
        preparer(library, 0) {
    if (memory->bytes() < program.facts().arena_bytes + program.facts().weights_bytes)
      refuse("the memory of the other bench is too small");
    own.stream = preparer.stream = library.stream();
    renew(false);
  }

  [[noreturn]] static void refuse(const char* what) { throw Error{EP_INPUT, what, "a bench", "correct the call"}; }

  void renew(bool kept) {
    if (!kept) prepared.clear(), makings.clear();
    makings.push_back(std::make_unique<Making>(library, program, weights, memory->data()));
    weights.map();
  }

  char* weights_at() const { return memory->data() + program.facts().arena_bytes; }
  Preparation& preparation() const { return makings.back()->preparation; }

  void require_record(Word record) const {
    if (record < 0 || record >= program.records()) refuse("there is no such record");
  }

  Word prepare(Word record, Word place) {
    require_record(record);
    library.set_threads(1);
    preparer.spans.clear();
    Prepared& made = makings.back()->prepared.emplace_back();
    preparation().prepare(preparer, record, made, place < 0 ? nullptr : weights_at() + place);
    prepared.push_back({0, made.first, made.end, nullptr});
    return static_cast<Word>(prepared.size()) - 1;
  }

  // Nanoseconds of what was done last.
  Word spent() const {
    Word sum = 0;
    for (const ep_span& span : preparer.spans) sum += span.end_ns - span.begin_ns;
    return sum;
  }

  const Program program;
  const Onednn& library;
  const std::shared_ptr<Region> memory;
  Weights weights;
  Preparer preparer;
  loops::Own own{};
  std::vector<std::unique_ptr<Making>> makings;  // the last one is at work, others were kept
  std::vector<loops::Item> prepared;
};

namespace {

template <class Work>
ep_status on(ep_bench* bench, Work work) {
  return guarded(last_of_thread(), [&] {
    if (bench == nullptr) ep_bench::refuse("there is no bench");
    work(*bench);
  });
}

}  // namespace

EP_EXPORT ep_status ep_measure_open(const void* program, std::size_t bytes, const char* library, const char* cache,
                                    ep_bench* memory, ep_bench** bench) {
  *bench = nullptr;
  return guarded(last_of_thread(), [&] { *bench = new ep_bench(program, bytes, library, cache, memory); });
}

EP_EXPORT void ep_measure_close(ep_bench* bench) { delete bench; }

EP_EXPORT void* ep_measure_memory(ep_bench* bench, std::size_t* bytes) {
  *bytes = static_cast<std::size_t>(bench->memory->bytes());
  return bench->memory->data();
}

EP_EXPORT ep_status ep_measure_renew(ep_bench* bench, int kept) {
  return on(bench, [&](ep_bench& at) { at.renew(kept != 0); });
}

EP_EXPORT ep_status ep_measure_prepare(ep_bench* bench, std::int64_t record, std::int64_t place, std::int64_t* prepared,
                                       ep_span* spans, std::size_t* count) {
  return on(bench, [&](ep_bench& at) {
    *prepared = at.prepare(record, place);
    const std::vector<ep_span>& found = at.preparer.spans;
    std::copy_n(found.begin(), std::min(*count, found.size()), spans);
    *count = found.size();
  });
}

EP_EXPORT ep_status ep_measure_prepare_all(ep_bench* bench, std::int64_t* nanoseconds) {
  return on(bench, [&](ep_bench& at) {
    *nanoseconds = 0;
    for (const Word step : at.program.rows<Word>(format::TODO)) {
      at.prepare(step, -1);
      *nanoseconds += at.spent();
    }
  });
}

EP_EXPORT ep_status ep_measure_fetch(ep_bench* bench, std::int64_t record, int mapped, std::int64_t segment,
                                     std::int64_t* nanoseconds) {
  return on(bench, [&](ep_bench& at) {
    at.require_record(record);
    loops::Head head = at.program.record(record);
    head.source = mapped != 0 ? loops::MAPPED : loops::COPIED;
    head.segment = segment;
    at.preparer.spans.clear();
    at.preparation().fetch(at.preparer, head, record, at.weights_at() + head.place);
    *nanoseconds = at.spent();
  });
}

EP_EXPORT ep_status ep_measure_execute(ep_bench* bench, const std::int64_t* prepared, std::size_t count, int threads) {
  return on(bench, [&](ep_bench& at) {
    std::vector<loops::Item> items;
    std::vector<Word> times(2 * count);
    for (std::size_t k = 0; k < count; ++k) {
      if (prepared[k] < 0 || size(prepared[k]) >= at.prepared.size()) ep_bench::refuse("that was not prepared");
      items.push_back(at.prepared[size(prepared[k])]);
    }
    at.library.set_threads(threads);
    const auto end = static_cast<Word>(count);
    const auto ran = loops::run_lane(at.preparation().places(), at.own, items.data(), times.data(), 0, end, 0, 0);
    at.library.set_threads(1);
    if (ran == loops::FAILED) at.library.failed_execution(at.own.status);
  });
}
