// Running a program of memory: one arena, weights loaded into it while steps run. The schedule can be changed between two
// inferences.
#pragma once

#include "bound.h"

EP_EXPORT void ep_widen_bf16(const char* halves, char* values, Word count);
EP_EXPORT void ep_widen_f16(const char* halves, char* values, Word count);

namespace session {

struct StreamOptions {
  std::vector<int> readers;  // processors of the reading threads; none: any
  bool debug = false;        // memory that becomes free is filled with NaN, so that using it shows
  bool gives_back = false;   // it goes back to the system, as an allocator does with large blocks
  bool mapped = false;       // weights are used where their file is mapped: nothing is read by threads
  bool ahead = true;         // where inferences follow each other, one more is expected at each, unless it was told how many
  bool records = false;      // pages of the library that are needed are written down
  const char* library = nullptr;
  std::uint64_t budget = 0;          // 0: by the schedule, or else the plan's own
  std::optional<Schedule> schedule;
};

// Memory on huge pages that can be resized: pages that are in memory stay there, to get others takes time.
class Arena : Fixed {
 public:
  // Error: std::bad_alloc, and it is as before.
  void resize(Word bytes) {
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

  // Have the system give memory to it, ahead of the reads into it; an older one gives it where it is used first.
  void touch() const {
    constexpr Word AT_ONCE = 8 << 20;
    for (Word at = 0; at < bytes(); at += AT_ONCE)
      if (madvise(from() + at, size(std::min(AT_ONCE, bytes() - at)), POPULATE_WRITE) != 0) return;
  }

  char* from() const { return memory_.get(); }
  Word bytes() const { return memory_.get_deleter().bytes; }

 private:
  Mapped memory_;
};

class Stream : Fixed {
 public:
  // Error: EP_MODEL, EP_DEVICE, or there is not enough memory.
  Stream(const library::Onednn& onednn, const program::Program& program, std::unique_ptr<WeightsFile> file,
         LibraryPages pages, const StreamOptions& options, Schedule schedule)
      : onednn_(onednn),
        program_(program),
        steps_(program.rows<format::Step>(format::STEPS)),
        options_(options),
        file_(std::move(file)),
        pages_((pages.begin(), std::move(pages))),
        calls_(onednn, program, *file_, pages_),
        loader_(*file_, program.facts().halves == 2 ? ep_widen_f16 : ep_widen_bf16, options.readers) {
    Word loads = 0;
    for (const format::Step& step : steps_) {
      const bool loaded = step.weight_bytes > 0 && !options.mapped;
      loads += loaded;
      loaded_before_.push_back(loaded ? loads : 0);
    }
    pages_.made();
    apply(std::move(schedule));
  }

  // Run by another schedule from the next inference on. Weights are loaded anew, but for those that stay where they are.
  void apply(Schedule schedule) {
    taken();
    std::vector<bool> present(size(steps_.length));
    if (clean_ && inference_ > 0) present = staying(schedule);
    clean_ = false;  // should something fail here, the next run begins anew by the schedule before
    loader_.pause();
    wait_touched();
    arena_.resize(options_.mapped ? height(schedule) : schedule.arena_bytes);
    schedule_ = std::move(schedule);
    calls_.place(schedule_, arena_.from(), options_.mapped ? file_->mapped() : nullptr);
    if (options_.debug || options_.gives_back) note_freed();
    mark_stops();
    restart(std::move(present));
    touching_ = std::make_unique<Thread>([this] { arena_.touch(); }, options_.readers);
  }

  const Schedule& schedule() const { return schedule_; }
  char* at(Word buffer, Word offset) const { return arena_.from() + schedule_.buffers[size(buffer)] + offset; }

  // Load what memory has room for before the next inference begins.
  void fill() {
    taken();
    if (!clean_) restart(std::vector<bool>(size(steps_.length)));
    clean_ = false;
    loader_.prepare(inference_ + 1);
    loader_.wait_filled();
    wait_touched();
    clean_ = true;
  }

  // One inference, of which `write` writes the inputs to their places; outputs are taken before `taken`. Error: EP_MODEL, EP_DEVICE.
  template <class Write>
  void run(Write write) {
    begin();
    write();
    execute();
  }

  // The last step has not ended before the outputs were read.
  void taken() {
    if (!taking_) return;
    taking_ = false;
    ++inference_;
    loader_.ended(inference_ * steps_.length);
  }

  // So many follow: weights may be loaded for them while one runs.
  void expect(Word inferences) {
    taken();
    expected_ = inference_ + inferences;
    loader_.prepare(expected_);
  }

  // Wait until the whole arena is in memory.
  void wait_touched() { touching_.reset(); }

  // Give up what was read around code that ran in the first inference alone.
  void settle() {
    if (unsettled_) pages_.executed();
    unsettled_ = false;
  }

  // Time to read all weights while nothing else runs; the next run begins anew.
  double stream_ms() {
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

  // Time of a small load that nothing else is read beside; the next run begins anew.
  double read_ms() {
    taken();
    constexpr Word READS = 33;  // whose median is a small load's time
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

  LibraryPages& pages() { return pages_; }
  const std::vector<Word>& times() const { return calls_.times; }
  bool ran() const { return executed_; }
  Word began_ns() const { return began_ns_; }

  // Time of the last inference in which no step ran.
  Word waited_ns() const {
    const std::vector<Word>& times = calls_.times;
    Word waited = times.empty() || !executed_ ? 0 : times.back() - began_ns_;
    for (std::size_t k = 0; executed_ && k < times.size(); k += 2) waited -= times[k + 1] - times[k];
    return waited;
  }

  Word bytes_read() const { return loader_.bytes_read(); }

  // Of all weights that are loaded, as memory holds them.
  Word streamed_bytes() const {
    Word found = 0;
    for (const Load& load : loads()) found += load.memory_bytes();
    return found;
  }

  double widened_per_ms() { return loader_.widened_per_ms(); }
  bool direct() const { return file_->direct(); }

  std::vector<Word> slowed;  // ns by which each step is prolonged, awake: a slower processor is stood for so; none: by none

 private:
  struct Range {
    Word begin, end;
  };

  void begin() {
    taken();
    if (!schedule_.back_to_back)
      fill();
    else if (!clean_)
      restart(std::vector<bool>(size(steps_.length)));
    settle();
    clean_ = false;
  }

  void execute() {
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

  // What follows a step that was executed by itself.
  void after(Word step) {
    if (!slowed.empty()) {
      const Word until = loops::now_ns() + slowed[size(step)];
      while (loops::now_ns() < until) continue;
      calls_.times[size(2 * step + 1)] = loops::now_ns();
    }
    if (!executed_) pages_.drop();  // what the first execution alone needs
    if (!freed_.empty()) free(step);
  }

  void free(Word step) {
    for (const Range& range : freed_[size(step)]) {
      auto* from = reinterpret_cast<float*>(arena_.from() + range.begin);
      if (options_.debug) std::fill_n(from, (range.end - range.begin) / 4, std::numeric_limits<float>::quiet_NaN());
      const Word begin = rounded(range.begin, PAGE), end = range.end / PAGE * PAGE;
      if (options_.gives_back && begin < end) madvise(arena_.from() + begin, size(end - begin), MADV_DONTNEED);
    }
  }

  void restart(std::vector<bool> present) {
    loader_.pause();
    inference_ = expected_ = 0;
    clean_ = true;
    loader_.start(loads(), steps_.length, arena_.from(), std::move(present));
  }

  std::vector<Load> loads() const {
    std::vector<Load> found;
    for (Word k = 0; k < steps_.length && !options_.mapped; ++k) {
      const format::Step& step = steps_[k];
      if (step.stored_bytes == 0) continue;
      const Word place = schedule_.weights[size(k)], after = schedule_.after[size(k)], again = schedule_.again[size(k)];
      found.push_back({k, step.weights_at, step.stored_bytes, place, after, again, step.stored_bytes < step.weight_bytes});
    }
    return found;
  }

  // Bytes of an arena of buffers alone.
  Word height(const Schedule& schedule) const {
    Word found = 0, k = 0;
    for (const format::Buffer& buffer : program_.rows<format::Buffer>(format::BUFFERS))
      found = std::max(found, schedule.buffers[size(k++)] + buffer.bytes);
    return found;
  }

  // Steps whose weights stay by the present schedule and by another one, at the same address: they are in memory.
  std::vector<bool> staying(const Schedule& next) const {
    std::vector<bool> found(next.weights.size());
    for (std::size_t k = 0; k < found.size(); ++k)
      found[k] = next.stays(k) && schedule_.stays(k) && next.weights[k] == schedule_.weights[k];
    return found;
  }

  void mark_stops() {
    alone_.assign(size(steps_.length + 1), false);
    for (const Load& load : loads()) alone_[size(load.after + 1)] = alone_[size(load.again + 1)] = true;
  }

  // Ranges of memory that become free with each step: what nothing needs any more.
  void note_freed() {
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

  const library::Onednn& onednn_;
  const program::Program& program_;
  const program::Array<const format::Step> steps_;
  const StreamOptions options_;
  std::unique_ptr<WeightsFile> file_;
  LibraryPages pages_;
  BoundCalls calls_;
  Arena arena_;
  Loader loader_;
  std::unique_ptr<Thread> touching_;
  Schedule schedule_;
  std::vector<Word> loaded_before_;           // loads of an inference that are complete when a step may run; 0: it has none
  std::vector<bool> alone_;                   // steps that do not follow the one before at once
  std::vector<std::vector<Range>> freed_;     // of each step: memory that nothing needs any more
  Word inference_ = 0, expected_ = 0, began_ns_ = 0;
  bool executed_ = false;   // every kernel has run once
  int settling_ = 2;        // inferences until all code has run once: the first one step by step, the second as all others
  bool unsettled_ = false;  // pages wait to be given up
  bool clean_ = false;      // the next inference may go on where the one before ended
  bool taking_ = false;     // outputs are used still
};

}  // namespace session
