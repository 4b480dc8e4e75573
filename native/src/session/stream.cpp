#include "stream.h"

#include <algorithm>
#include <limits>

#include "../loops/threads.h"

EP_EXPORT void ep_widen_bf16(const char* halves, char* values, Word count);
EP_EXPORT void ep_widen_f16(const char* halves, char* values, Word count);

using session::Load;
using session::Schedule;
using session::Stream;

namespace {

constexpr Word TOUCHED_BYTES = 8 << 20;
constexpr Word READS = 33;  // whose median is a small load's time

// Have the system give memory to an arena, ahead of the reads into it; an older one gives it where it is used first.
void touch(char* from, Word bytes) {
  for (Word at = 0; at < bytes; at += TOUCHED_BYTES)
    if (madvise(from + at, size(std::min(TOUCHED_BYTES, bytes - at)), session::POPULATE_WRITE) != 0) return;
}

session::Widen widening(const program::Program& program) {
  return program.facts().halves == 2 ? ep_widen_f16 : ep_widen_bf16;
}

// Bytes of an arena of buffers alone.
Word height(program::Array<const format::Buffer> buffers, const Schedule& schedule) {
  Word found = 0;
  for (Word k = 0; k < buffers.length; ++k) found = std::max(found, schedule.buffers[size(k)] + buffers[k].bytes);
  return found;
}

// For each step with weights, how many loads of an inference are complete when it may run.
std::vector<Word> counts(program::Array<const format::Step> steps, bool mapped) {
  std::vector<Word> found;
  Word loads = 0;
  for (Word k = 0; k < steps.length; ++k) {
    const bool loaded = steps[k].weight_bytes > 0 && !mapped;
    loads += loaded;
    found.push_back(loaded ? loads : 0);
  }
  return found;
}

}  // namespace

void session::Arena::resize(Word bytes) {
  const Word wanted = rounded(std::max<Word>(1, bytes), PAGE);
  if (!memory_) {
    memory_ = zeroed(wanted);
  } else {
    void* moved = mremap(from(), size(this->bytes()), size(wanted), MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) throw std::bad_alloc();
    memory_.release();
    memory_ = Mapped(static_cast<char*>(moved), Unmap{wanted});
  }
  madvise(from(), size(wanted), MADV_HUGEPAGE);
}

Stream::Stream(const library::Onednn& onednn, const program::Program& program, std::unique_ptr<WeightsFile> file,
               LibraryPages pages, const StreamOptions& options, Schedule schedule)
    : onednn_(onednn),
      program_(program),
      steps_(program.rows<format::Step>(format::STEPS)),
      options_(options),
      file_(std::move(file)),
      pages_((pages.begin(), std::move(pages))),
      calls_(onednn, program, *file_, pages_),
      loader_(*file_, widening(program), options.readers),
      loaded_before_(counts(steps_, options.mapped)) {
  pages_.made();
  apply(std::move(schedule));
}

void Stream::apply(Schedule schedule) {
  taken();
  std::vector<bool> present(size(steps_.length));
  if (clean_ && inference_ > 0) present = staying(schedule);
  clean_ = false;  // should something fail here, the next run begins anew by the schedule before
  loader_.pause();
  wait_touched();
  arena_.resize(options_.mapped ? height(program_.rows<format::Buffer>(format::BUFFERS), schedule) : schedule.arena_bytes);
  schedule_ = std::move(schedule);
  calls_.place(schedule_, arena_.from(), options_.mapped ? file_->mapped() : nullptr);
  if (options_.debug || options_.gives_back) note_freed();
  mark_stops();
  restart(std::move(present));
  touching_ = std::make_unique<Thread>([this] { touch(arena_.from(), arena_.bytes()); }, options_.readers);
}

// Steps whose weights stay by the present schedule and by another one, at the same address: they are in memory.
std::vector<bool> Stream::staying(const Schedule& next) const {
  std::vector<bool> found(next.weights.size());
  for (std::size_t k = 0; k < found.size(); ++k)
    found[k] = next.stays(k) && schedule_.stays(k) && next.weights[k] == schedule_.weights[k];
  return found;
}

std::vector<Load> Stream::loads() const {
  std::vector<Load> found;
  for (Word k = 0; k < steps_.length && !options_.mapped; ++k) {
    const format::Step& step = steps_[k];
    if (step.stored_bytes == 0) continue;
    const Word place = schedule_.weights[size(k)], after = schedule_.after[size(k)], again = schedule_.again[size(k)];
    found.push_back({k, step.weights_at, step.stored_bytes, place, after, again, step.stored_bytes < step.weight_bytes});
  }
  return found;
}

void Stream::mark_stops() {
  alone_.assign(size(steps_.length + 1), false);
  for (const Load& load : loads()) alone_[size(load.after + 1)] = alone_[size(load.again + 1)] = true;
}

// Ranges of memory that become free with each step: what nothing needs any more.
void Stream::note_freed() {
  freed_.assign(size(steps_.length), {});
  const auto buffers = program_.rows<format::Buffer>(format::BUFFERS);
  for (Word k = 0; k < buffers.length; ++k) {
    const Word at = schedule_.buffers[size(k)];
    if (buffers[k].upper < steps_.length)  // outputs are still to be read
      freed_[size(buffers[k].upper - 1)].push_back({at, at + buffers[k].bytes});
  }
  for (const Load& load : loads())
    if (!schedule_.stays(size(load.step))) freed_[size(load.step)].push_back({load.place, load.place + load.memory_bytes()});
}

void Stream::restart(std::vector<bool> present) {
  loader_.pause();
  inference_ = expected_ = 0;
  clean_ = true;
  loader_.start(loads(), steps_.length, arena_.from(), std::move(present));
}

void Stream::fill() {
  taken();
  if (!clean_) restart(std::vector<bool>(size(steps_.length)));
  clean_ = false;
  loader_.prepare(inference_ + 1);
  loader_.wait_filled();
  wait_touched();
  clean_ = true;
}

void Stream::expect(Word inferences) {
  taken();
  expected_ = inference_ + inferences;
  loader_.prepare(expected_);
}

void Stream::wait_touched() { touching_.reset(); }

void Stream::begin() {
  taken();
  if (!schedule_.back_to_back)
    fill();
  else if (!clean_)
    restart(std::vector<bool>(size(steps_.length)));
  settle();
  clean_ = false;
}

void Stream::execute() {
  const Word steps = steps_.length, first = inference_ * steps, loads = inference_ * static_cast<Word>(loader_.loads().size());
  const bool by_one = options_.debug || options_.gives_back || !slowed.empty() || !executed_, begun = executed_;
  onednn_.set_threads(static_cast<int>(program_.facts().threads));
  loader_.prepare(inference_ + (schedule_.back_to_back && options_.ahead && inference_ >= expected_ ? 2 : 1));
  began_ns_ = loops::now_ns();
  const auto count = [&](Word step) { return loads + loaded_before_[size(step)]; };
  for (Word k = 0; k < steps;) {
    if (loaded_before_[size(k)] > 0) loader_.wait_loaded(count(k));
    Word end = k + 1;
    while (end < steps && !by_one && !alone_[size(end)] && loader_.has_loaded(count(end))) ++end;
    calls_.run(k, end);
    if (by_one) after(k);
    k = end;
    if (k < steps) loader_.ended(first + k);
  }
  executed_ = true;
  if (settling_ > 0 && settling_-- > 0 && begun) pages_.executed();
  file_->require_unchanged();
  unsettled_ = !begun;
  clean_ = taking_ = true;
}

// The last step has not ended before the outputs were read.
void Stream::taken() {
  if (!taking_) return;
  taking_ = false;
  ++inference_;
  loader_.ended(inference_ * steps_.length);
}

// What follows a step that was executed by itself.
void Stream::after(Word step) {
  if (!slowed.empty()) {
    const Word until = loops::now_ns() + slowed[size(step)];
    while (loops::now_ns() < until) {
    }
    calls_.times[size(2 * step + 1)] = loops::now_ns();
  }
  if (!executed_) pages_.drop();  // what the first execution alone needs
  if (!freed_.empty()) free(step);
}

void Stream::free(Word step) {
  for (const Range& range : freed_[size(step)]) {
    auto* from = reinterpret_cast<float*>(arena_.from() + range.begin);
    if (options_.debug) std::fill_n(from, (range.end - range.begin) / 4, std::numeric_limits<float>::quiet_NaN());
    const Word begin = rounded(range.begin, PAGE), end = range.end / PAGE * PAGE;
    if (options_.gives_back && begin < end) madvise(arena_.from() + begin, size(end - begin), MADV_DONTNEED);
  }
}

void Stream::settle() {
  if (unsettled_) pages_.executed();
  unsettled_ = false;
}

double Stream::stream_ms() {
  taken();
  std::vector<Load> all = loads();
  for (std::size_t k = 0; k < all.size(); ++k) {
    all[k].step = all[k].again = static_cast<Word>(k);
    all[k].after = format::NOTHING;
  }
  clean_ = false;
  loader_.pause();
  const Word begun = loops::now_ns();
  loader_.start(std::move(all), steps_.length, arena_.from(), std::vector<bool>(size(steps_.length)));
  loader_.wait_filled();
  return static_cast<double>(loops::now_ns() - begun) / 1e6;
}

double Stream::read_ms() {
  taken();
  const Word pages = program_.facts().weights_bytes / PAGE;
  if (pages == 0) return 0;
  std::vector<Load> loads;
  for (Word k = 0; k < READS; ++k) loads.push_back({k, k * pages / READS % pages * PAGE, PAGE, 0, k - 1, format::NOTHING, false});
  clean_ = false;
  loader_.pause();
  loader_.start(std::move(loads), READS + 1, arena_.from(), std::vector<bool>(size(READS)));
  std::vector<double> took;
  for (Word k = 0; k < READS; ++k) {
    const Word begun = loops::now_ns();
    loader_.ended(k);
    loader_.wait_loaded(k + 1);
    if (k > 0) took.push_back(static_cast<double>(loops::now_ns() - begun) / 1e6);
  }
  std::sort(took.begin(), took.end());
  return took[took.size() / 2 - 1];
}

Word Stream::waited_ns() const {
  const std::vector<Word>& times = calls_.times;
  Word waited = times.empty() || !executed_ ? 0 : times.back() - began_ns_;
  for (std::size_t k = 0; executed_ && k < times.size(); k += 2) waited -= times[k + 1] - times[k];
  return waited;
}

Word Stream::streamed_bytes() const {
  Word found = 0;
  for (const Load& load : loads()) found += load.memory_bytes();
  return found;
}
