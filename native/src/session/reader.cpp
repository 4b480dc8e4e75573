#include "reader.h"

#include <algorithm>
#include <limits>

#include "../loops/threads.h"

using namespace session;

namespace {

constexpr Word NEVER = std::numeric_limits<Word>::max();

constexpr Word CONTENT = 4;  // numbers of a stamp but the last: to link a file changes that

}  // namespace

WeightsFile::WeightsFile(const std::string& folder, const program::Program& program)
    : program_(program), file_(folder + "/weights.bin", File::PASSED) {
  const format::Facts& facts = program.facts();
  if (!file_.open()) damaged("cannot open them: " + system_says());
  if (file_.bytes() != facts.weights_bytes)
    damaged(std::to_string(file_.bytes()) + " bytes, not " + std::to_string(facts.weights_bytes));
  if (!file_.is(facts.stamp, CONTENT) && file_.checksum() != facts.checksum) damaged("they are not those that were planned");
}

void WeightsFile::damaged(const std::string& why) const {
  throw Error{EP_MODEL, "the weights are damaged: " + why, file_.path(), program_.plan_again()};
}

void WeightsFile::read(Word offset, iovec* pieces, int count) const {
  const std::string problem = file_.read(pieces, count, offset);
  if (!problem.empty())
    throw Error{EP_MODEL, "cannot read the weights: " + problem, file_.path(), "check the disk, then run again"};
}

void WeightsFile::require_unchanged() const {
  if (file_.changed())
    throw Error{EP_MODEL, "the weights were changed while they were in use", file_.path(), program_.plan_again()};
}

const char* WeightsFile::mapped() const {
  if (!mapped_ && file_.bytes() > 0) {
    mapped_ = session::mapped(file_.descriptor(), file_.bytes(), MAP_SHARED);
    if (!mapped_) throw Error{EP_MODEL, "cannot map the weights: " + system_says(), file_.path(), "free memory"};
  }
  return mapped_.get();
}

Loader::Loader(const WeightsFile& file, Widen widen, const std::vector<int>& processors)
    : file_(file), widen_(widen), chunks_(new Chunk[SLOTS]) {
  reset();
  try {
    for (int k = 0; k < THREADS; ++k) threads_.push_back(std::make_unique<Thread>([this] { work(); }, processors));
  } catch (...) {
    stop();
    throw;
  }
}

Loader::~Loader() { stop(); }

void Loader::stop() {
  {
    Lock lock(mutex_);
    stopped_ = true;
    readers_.notify_all();
  }
  threads_.clear();
}

void Loader::reset() {
  inference_ = load_ = offset_ = passed_ = widened_bytes_ = widening_ns_ = 0;
  loaded_ = ended_ = awaited_ = bytes_read_ = 0;
  horizon_ = 1;
}

void Loader::start(std::vector<Load> loads, Word steps, char* arena, std::vector<bool> present) {
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

void Loader::pause() {
  Lock lock(mutex_);
  paused_ = true;
  while (first_ < last_) waiting_.wait(lock);
}

void Loader::prepare(Word horizon) {
  Lock lock(mutex_);
  if (horizon <= horizon_) return;
  horizon_ = horizon;
  readers_.notify_all();
}

void Loader::wait_filled() {
  Lock lock(mutex_);
  while (!error_ && (first_ < last_ || ready())) waiting_.wait(lock);
  check();
}

void Loader::wait_loaded(Word count) {
  if (loaded_ >= count && !failed_) return;  // it only grows
  Lock lock(mutex_);
  while (loaded_ < count && !error_) waiting_.wait(lock);
  check();
}

void Loader::ended(Word steps) {
  ended_ = steps;
  if (steps < awaited_) return;  // a reader says what it waits for before it looks at what has ended
  Lock lock(mutex_);
  readers_.notify_all();
}

double Loader::widened_per_ms() {
  Lock lock(mutex_);
  return widening_ns_ == 0 ? 0 : 1e6 * static_cast<double>(widened_bytes_) / static_cast<double>(widening_ns_);
}

void Loader::check() const {
  if (error_) throw *error_;
}

// Steps that have to end before the next load may begin, counted from the beginning.
Word Loader::needed() const {
  const Load& load = loads_[size(load_)];
  if (load.after >= 0) return inference_ * steps_ + load.after + 1;
  return inference_ == 0 ? 0 : (inference_ - 1) * steps_ + load.again + 1;
}

// Pass by weights that stay in memory.
void Loader::skip() {
  while (inference_ < horizon_ && offset_ == 0) {
    const Load& load = loads_[size(load_)];
    const bool stays = load.after < 0 && load.again == load.step;
    if (!stays || (inference_ == 0 && !present_[size(load.step)])) return;
    next_load();
  }
}

void Loader::next_load() {
  ++passed_;
  offset_ = 0;
  if (++load_ == static_cast<Word>(loads_.size())) load_ = 0, ++inference_;
  if (first_ == last_) {
    loaded_ = passed_;
    waiting_.notify_all();
  }
}

// Whether the next piece may be read.
bool Loader::ready() {
  awaited_ = NEVER;
  if (paused_ || loads_.empty()) return false;
  skip();
  if (inference_ >= horizon_) return false;
  awaited_ = offset_ > 0 ? 0 : needed();
  return awaited_ <= ended_;
}

// The next read: neighbours in the file that may be loaded now, wherever they go.
Loader::Chunk& Loader::take() {
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

void Loader::work() {
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
void Loader::complete(Chunk& chunk, std::optional<Error> error, Lock& lock) {
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
void Loader::widen(const Chunk& chunk, Lock& lock) {
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
