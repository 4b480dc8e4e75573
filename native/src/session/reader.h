// Weights read past the page cache: direct I/O into memory, a few reads in flight, in the order of execution.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../loops/threads.h"
#include "../program/program.h"
#include "error.h"
#include "files.h"
#include "threads.h"

namespace session {

constexpr Word CHUNK_BYTES = 2 << 20;  // of one read: smaller ones cost bandwidth, larger ones gain none

// The file of weights, read without leaving anything of it in the page cache.
class WeightsFile : Fixed {
 public:
  // Error: EP_MODEL: it is missing, or does not hold the weights of the program.
  WeightsFile(const std::string& folder, const program::Program& program)
      : program_(program), file_(folder + "/weights.bin", File::PASSED) {
    const format::Facts& facts = program.facts();
    if (!file_.open()) damaged("cannot open them: " + system_says());
    if (file_.bytes() != facts.weights_bytes)
      damaged(std::to_string(file_.bytes()) + " bytes, not " + std::to_string(facts.weights_bytes));
    if (!file_.is(facts.stamp, CONTENT) && file_.checksum() != facts.checksum) damaged("they are not those that were planned");
  }

  // Fill memory from an offset on; Error: EP_MODEL.
  void read(Word offset, iovec* pieces, int count) const {
    const std::string problem = file_.read(pieces, count, offset);
    if (!problem.empty() && file_.changed()) damaged(problem);
    if (!problem.empty())
      throw Error{EP_MODEL, "cannot read the weights: " + problem, file_.path(), "check the disk, then run again"};
  }

  // Error: EP_MODEL where it was changed since it was opened.
  void require_unchanged() const {
    if (file_.changed())
      throw Error{EP_MODEL, "the weights were changed while they were in use", file_.path(), program_.plan_again()};
  }

  bool direct() const { return file_.direct(); }

  // The file, mapped until it is closed.
  const char* mapped() const {
    if (!mapped_ && file_.bytes() > 0) {
      mapped_ = session::mapped(file_.descriptor(), file_.bytes(), MAP_SHARED);
      if (!mapped_) throw Error{EP_MODEL, "cannot map the weights: " + system_says(), file_.path(), "free memory"};
    }
    return mapped_.get();
  }

 private:
  static constexpr Word CONTENT = 4;  // numbers of a stamp but the last: to link a file changes that

  [[noreturn]] void damaged(const std::string& why) const {
    throw Error{EP_MODEL, "the weights are damaged: " + why, file_.path(), program_.plan_again()};
  }

  const program::Program& program_;
  const File file_;
  mutable Mapped mapped_;
};

struct Load {
  Word step, at, size;  // where in the file, bytes of it
  Word place;           // from the beginning of the arena
  Word after;           // the step that has to end before; NOTHING: none
  Word again;           // with no `after`: the step of the inference before that has to end; the step itself: they stay
  bool halved;          // the file holds half the bytes of each value

  Word read_to() const { return halved ? place + size : place; }  // of halves, the upper half of the place
  Word memory_bytes() const { return halved ? 2 * size : size; }
};

using Widen = void (*)(const char* halves, char* values, Word count);

// Loads the weights of one inference after the other, in order, each as early as its memory is free.
class Loader : Fixed {
 public:
  // Threads are kept to these processors; `widen` is for halves.
  Loader(const WeightsFile& file, Widen widen, const std::vector<int>& processors)
      : file_(file), widen_(widen), chunks_(new Chunk[SLOTS]) {
    reset();
    try {
      for (int k = 0; k < THREADS; ++k) threads_.push_back(std::make_unique<Thread>([this] { work(); }, processors));
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Loader() { stop(); }

  // Load for one inference, as nothing is in memory but the weights of `present` steps, which stay. Reads are paused.
  void start(std::vector<Load> loads, Word steps, char* arena, std::vector<bool> present) {
    Lock lock(mutex_);
    reset();
    present_ = std::move(present);
    loads_ = std::move(loads);
    steps_ = steps;
    arena_ = arena;
    error_.reset();
    failed_ = paused_ = false;
    readers_.notify_all();
  }

  // Begin no reads, and wait for those in flight.
  void pause() {
    Lock lock(mutex_);
    paused_ = true;
    while (first_ < last_) waiting_.wait(lock);
  }

  // Load for so many inferences, counted from the beginning.
  void prepare(Word horizon) {
    Lock lock(mutex_);
    if (horizon <= horizon_) return;
    horizon_ = horizon;
    readers_.notify_all();
  }

  // Wait until nothing more can be loaded before a step ends; Error: of a read.
  void wait_filled() {
    Lock lock(mutex_);
    while (!error_ && (first_ < last_ || ready())) waiting_.wait(lock);
    check();
  }

  // Wait until so many loads are complete, counted from the beginning; Error: of a read.
  void wait_loaded(Word count) {
    if (loaded_ >= count && !failed_) return;  // it only grows
    Lock lock(mutex_);
    while (loaded_ < count && !error_) waiting_.wait(lock);
    check();
  }

  bool has_loaded(Word count) const { return loaded_ >= count; }

  // So many steps have ended since the beginning: what they used is free.
  void ended(Word steps) {
    ended_ = steps;
    if (steps < awaited_) return;  // a reader says what it waits for before it looks at what has ended
    Lock lock(mutex_);
    readers_.notify_all();
  }

  Word bytes_read() const { return bytes_read_; }  // since the beginning

  // Bytes of values; 0 where none were widened.
  double widened_per_ms() {
    Lock lock(mutex_);
    return widening_ns_ == 0 ? 0 : 1e6 * static_cast<double>(widened_bytes_) / static_cast<double>(widening_ns_);
  }

  const std::vector<Load>& loads() const { return loads_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr int THREADS = 2, MOST_PIECES = 512, SLOTS = 6;  // the system takes 1024 pieces
  // A read: how many loads are complete when it, and all before it, are.
  struct Chunk {
    Word at, passed;
    bool complete;
    int pieces;
    iovec piece[MOST_PIECES];
    char* values[MOST_PIECES];  // where halves are widened to; null: they are whole
  };

  void stop() {
    {
      Lock lock(mutex_);
      stopped_ = true;
      readers_.notify_all();
    }
    threads_.clear();
  }

  void reset() {
    inference_ = load_ = offset_ = passed_ = widened_bytes_ = widening_ns_ = 0;
    loaded_ = ended_ = awaited_ = bytes_read_ = 0;
    horizon_ = 1;
  }

  // Steps that have to end before the next load may begin, counted from the beginning.
  Word needed() const {
    const Load& load = loads_[size(load_)];
    if (load.after >= 0) return inference_ * steps_ + load.after + 1;
    return inference_ == 0 ? 0 : (inference_ - 1) * steps_ + load.again + 1;
  }

  void skip() {
    while (inference_ < horizon_ && offset_ == 0) {
      const Load& load = loads_[size(load_)];
      const bool stays = load.after < 0 && load.again == load.step;
      if (!stays || (inference_ == 0 && !present_[size(load.step)])) return;
      next_load();
    }
  }

  void next_load() {
    ++passed_;
    offset_ = 0;
    if (++load_ == static_cast<Word>(loads_.size())) load_ = 0, ++inference_;
    if (first_ == last_) {
      loaded_ = passed_;
      waiting_.notify_all();
    }
  }

  bool ready() {
    awaited_ = std::numeric_limits<Word>::max();
    if (paused_ || loads_.empty()) return false;
    skip();
    if (inference_ >= horizon_) return false;
    awaited_ = offset_ > 0 ? 0 : needed();
    return awaited_ <= ended_;
  }

  // The next read: neighbours in the file that may be loaded now, wherever they go.
  Chunk& take() {
    Chunk& chunk = chunks_[last_ % SLOTS];
    chunk.complete = false;
    chunk.pieces = 0;
    Word end = chunk.at = loads_[size(load_)].at + offset_;
    ++last_;  // what `next_load` counts is in flight
    do {
      const Load& load = loads_[size(load_)];
      if (load.at + offset_ != end) break;
      const Word bytes = std::min(load.size - offset_, CHUNK_BYTES - (end - chunk.at));
      chunk.piece[chunk.pieces] = {arena_ + load.read_to() + offset_, size(bytes)};
      chunk.values[chunk.pieces++] = load.halved ? arena_ + load.place + 2 * offset_ : nullptr;
      end += bytes;
      offset_ += bytes;
      if (offset_ == load.size) next_load();
    } while (end - chunk.at < CHUNK_BYTES && chunk.pieces < MOST_PIECES && ready());
    chunk.passed = passed_;
    bytes_read_ += end - chunk.at;
    return chunk;
  }

  Chunk& front() { return chunks_[first_ % SLOTS]; }

  void work() {
    iovec pieces[MOST_PIECES];  // reading moves them on
    Lock lock(mutex_);
    for (;;) {
      while (!stopped_ && (last_ - first_ == SLOTS || !ready())) readers_.wait(lock);
      if (stopped_) return;
      Chunk& chunk = take();
      lock.unlock();
      std::copy_n(chunk.piece, chunk.pieces, pieces);
      std::optional<Error> error;
      try {
        file_.read(chunk.at, pieces, chunk.pieces);
      } catch (const Error& raised) {
        error = raised;
      }
      lock.lock();
      complete(chunk, std::move(error), lock);
    }
  }

  // A read has ended: count the loads that are complete now, in order, so that one thread at a time widens, and no read
  // before its turn.
  void complete(Chunk& chunk, std::optional<Error> error, Lock& lock) {
    if (error) {  // known before loads count as complete: nobody takes what was not read
      error_ = std::move(error);
      failed_ = paused_ = true;
    }
    chunk.complete = true;
    while (first_ < last_ && front().complete && !widens_) {
      if (!error_) widen(front(), lock);
      const Word passed = front().passed;
      ++first_;
      if (!error_) loaded_ = first_ < last_ ? passed : passed_;
    }
    waiting_.notify_all();
    readers_.notify_all();
  }

  // Widen what was read, while others go on; values of a load take the place of its halves from the lowest on.
  void widen(const Chunk& chunk, Lock& lock) {
    Word begun = 0;
    for (int k = 0; k < chunk.pieces; ++k) {
      if (chunk.values[k] == nullptr) continue;
      if (begun == 0) {
        widens_ = true;
        lock.unlock();
        begun = loops::now_ns();
      }
      widen_(static_cast<const char*>(chunk.piece[k].iov_base), chunk.values[k], static_cast<Word>(chunk.piece[k].iov_len / 2));
    }
    if (begun == 0) return;
    const Word took = loops::now_ns() - begun;
    lock.lock();
    widens_ = false;
    widening_ns_ += took;
    for (int k = 0; k < chunk.pieces; ++k)
      if (chunk.values[k] != nullptr) widened_bytes_ += 2 * static_cast<Word>(chunk.piece[k].iov_len);
  }

  void check() const {
    if (error_) throw *error_;
  }

  const WeightsFile& file_;
  const Widen widen_;
  std::mutex mutex_;
  std::condition_variable readers_, waiting_;
  std::vector<Load> loads_;
  std::vector<bool> present_;
  Word steps_ = 0;
  char* arena_ = nullptr;
  bool stopped_ = false, paused_ = true, widens_ = false;
  std::optional<Error> error_;
  std::atomic<bool> failed_{false};
  Word inference_, load_, offset_;  // what is read next
  Word passed_;                     // loads that reads were begun for, since the beginning
  std::atomic<Word> loaded_{0};     // that are complete
  std::atomic<Word> ended_{0};      // steps
  std::atomic<Word> awaited_{0};    // steps that readers wait for: nobody is woken before
  Word horizon_;                    // inferences that weights are loaded for
  std::atomic<Word> bytes_read_{0};
  Word widened_bytes_, widening_ns_;
  std::unique_ptr<Chunk[]> chunks_;
  Word first_ = 0, last_ = 0;  // numbers of the chunks in flight
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace session
