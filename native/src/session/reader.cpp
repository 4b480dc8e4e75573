#include "reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "../loops/threads.h"
#include "session.h"

using session::Loader;
using session::WeightsFile;
using loops::nanoseconds;

namespace {

constexpr Word NEVER = std::numeric_limits<Word>::max();

// Open past the page cache where the file system takes it.
int opened(const char* path, bool& direct) {
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
  direct = file >= 0;
  return direct || (errno != EINVAL && errno != EOPNOTSUPP) ? file : open(path, O_RDONLY | O_CLOEXEC);
}

// Go on behind what was read; how many pieces are full.
int advance(iovec* pieces, int count, std::size_t got) {
  int full = 0;
  while (full < count && got >= pieces[full].iov_len) got -= pieces[full++].iov_len;
  if (got > 0) pieces[full] = {static_cast<char*>(pieces[full].iov_base) + got, pieces[full].iov_len - got};
  return full;
}

}  // namespace

WeightsFile::WeightsFile(const std::string& folder, const program::Program& program)
    : path_(folder + "/weights.bin"), bytes_(program.facts().weights_bytes) {
  file_ = opened(path_.c_str(), direct_);
  struct stat found;
  if (file_ < 0 || fstat(file_, &found) != 0) damaged("cannot open them: " + system_says());
  changed_ns_ = nanoseconds(found.st_mtim);
  try {
    if (found.st_size != bytes_) damaged(std::to_string(found.st_size) + " bytes, not " + std::to_string(bytes_));
    const format::Facts& facts = program.facts();
    const Word stamp[] = {static_cast<Word>(found.st_dev), static_cast<Word>(found.st_ino), found.st_size, changed_ns_};
    if (!std::equal(std::begin(stamp), std::end(stamp), facts.stamp) && checksum() != facts.checksum)
      damaged("they are not those that were planned");
  } catch (...) {
    close(file_);
    throw;
  }
}

WeightsFile::~WeightsFile() {
  if (mapped_ != nullptr) munmap(mapped_, static_cast<std::size_t>(bytes_));
  close(file_);
}

void WeightsFile::damaged(const std::string& why) const {
  throw Error{EP_MODEL, "the weights are damaged: " + why, path_, plan_again(format::MEMORY)};
}

void WeightsFile::failed(Word at, int code) const {
  if (code == 0) damaged("they end before byte " + std::to_string(at));
  const std::string what = "cannot read the weights at byte " + std::to_string(at) + ": " + system_says(code);
  throw Error{EP_MODEL, what, path_, "check the disk, then run again"};
}

// Of the whole file, of which a part is in memory at a time.
std::uint64_t WeightsFile::checksum() const {
  void* part = mmap(nullptr, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (part == MAP_FAILED) throw std::bad_alloc();
  const std::unique_ptr<void, void (*)(void*)> freed(part, [](void* given) { munmap(given, CHUNK_BYTES); });
  program::Checksum found;
  for (Word at = 0; at < bytes_; at += CHUNK_BYTES) {
    iovec piece{part, static_cast<std::size_t>(std::min(CHUNK_BYTES, bytes_ - at))};
    const std::size_t size = piece.iov_len;
    read(at, &piece, 1);
    found.add(part, size);
  }
  return found.ended();
}

void WeightsFile::read(Word offset, iovec* pieces, int count) const {
  Word at = offset;
  while (count > 0) {
    const ssize_t got = preadv(file_, pieces, count, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) failed(at, got < 0 ? errno : 0);
    at += got;
    const int full = advance(pieces, count, static_cast<std::size_t>(got));
    pieces += full;
    count -= full;
  }
  if (!direct_) posix_fadvise(file_, offset, at - offset, POSIX_FADV_DONTNEED);
}

void WeightsFile::require_unchanged() const {
  struct stat found;
  if (fstat(file_, &found) == 0 && nanoseconds(found.st_mtim) == changed_ns_ && found.st_size == bytes_) return;
  throw Error{EP_MODEL, "the weights were changed while they were in use", path_, plan_again(format::MEMORY)};
}

const char* WeightsFile::mapped() const {
  if (mapped_ == nullptr && bytes_ > 0) {
    void* found = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ, MAP_SHARED, file_, 0);
    if (found == MAP_FAILED) throw Error{EP_MODEL, "cannot map the weights: " + system_says(), path_, "free memory"};
    mapped_ = found;
  }
  return static_cast<const char*>(mapped_);
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
    const Lock lock(mutex_);
    stopped_ = true;
    pthread_cond_broadcast(&readers_);
  }
  threads_.clear();
}

void Loader::reset() {
  inference_ = load_ = offset_ = passed_ = widened_bytes_ = widening_ns_ = 0;
  loaded_ = ended_ = awaited_ = bytes_read_ = 0;
  horizon_ = 1;
}

void Loader::start(std::vector<Load> loads, Word steps, char* arena, std::vector<bool> present) {
  const Lock lock(mutex_);
  reset();
  present_ = std::move(present);
  loads_ = std::move(loads);
  steps_ = steps;
  arena_ = arena;
  error_.reset();
  failed_ = paused_ = false;
  pthread_cond_broadcast(&readers_);
}

void Loader::pause() {
  const Lock lock(mutex_);
  paused_ = true;
  while (first_ < last_) pthread_cond_wait(&waiting_, &mutex_);
}

void Loader::prepare(Word horizon) {
  const Lock lock(mutex_);
  if (horizon <= horizon_) return;
  horizon_ = horizon;
  pthread_cond_broadcast(&readers_);
}

void Loader::wait_filled() {
  const Lock lock(mutex_);
  while (!error_ && (first_ < last_ || ready())) pthread_cond_wait(&waiting_, &mutex_);
  check();
}

void Loader::wait_loaded(Word count) {
  if (loaded_ >= count && !failed_) return;  // it only grows
  const Lock lock(mutex_);
  while (loaded_ < count && !error_) pthread_cond_wait(&waiting_, &mutex_);
  check();
}

void Loader::ended(Word steps) {
  ended_ = steps;
  if (steps < awaited_) return;  // a reader says what it waits for before it looks at what has ended
  const Lock lock(mutex_);
  pthread_cond_broadcast(&readers_);
}

double Loader::widened_per_ms() {
  const Lock lock(mutex_);
  return widening_ns_ == 0 ? 0 : 1e6 * static_cast<double>(widened_bytes_) / static_cast<double>(widening_ns_);
}

void Loader::check() const {
  if (error_) throw *error_;
}

// Steps that have to end before the next load may begin, counted from the beginning.
Word Loader::needed() const {
  const Load& load = loads_[static_cast<std::size_t>(load_)];
  if (load.after >= 0) return inference_ * steps_ + load.after + 1;
  return inference_ == 0 ? 0 : (inference_ - 1) * steps_ + load.again + 1;
}

// Pass by weights that stay in memory.
void Loader::skip() {
  while (inference_ < horizon_ && offset_ == 0) {
    const Load& load = loads_[static_cast<std::size_t>(load_)];
    const bool stays = load.after < 0 && load.again == load.step;
    if (!stays || (inference_ == 0 && !present_[static_cast<std::size_t>(load.step)])) return;
    next_load();
  }
}

void Loader::next_load() {
  ++passed_;
  offset_ = 0;
  if (++load_ == static_cast<Word>(loads_.size())) load_ = 0, ++inference_;
  if (first_ == last_) {
    loaded_ = passed_;
    pthread_cond_broadcast(&waiting_);
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
  Word end = chunk.at = loads_[static_cast<std::size_t>(load_)].at + offset_;
  ++last_;  // what `next_load` counts is in flight
  do {
    const Load& load = loads_[static_cast<std::size_t>(load_)];
    if (load.at + offset_ != end) break;
    const Word size = std::min(load.size - offset_, CHUNK_BYTES - (end - chunk.at));
    chunk.piece[chunk.pieces] = {arena_ + load.read_to() + offset_, static_cast<std::size_t>(size)};
    chunk.values[chunk.pieces++] = load.halved ? arena_ + load.place + 2 * offset_ : nullptr;
    end += size;
    offset_ += size;
    if (offset_ == load.size) next_load();
  } while (end - chunk.at < CHUNK_BYTES && chunk.pieces < MOST_PIECES && ready());
  chunk.passed = passed_;
  bytes_read_ += end - chunk.at;
  return chunk;
}

void Loader::work() {
  iovec pieces[MOST_PIECES];  // reading moves them on
  pthread_mutex_lock(&mutex_);
  for (;;) {
    while (!stopped_ && (last_ - first_ == SLOTS || !ready())) pthread_cond_wait(&readers_, &mutex_);
    if (stopped_) break;
    Chunk& chunk = take();
    pthread_mutex_unlock(&mutex_);
    std::copy_n(chunk.piece, chunk.pieces, pieces);
    std::optional<Error> error;
    try {
      file_.read(chunk.at, pieces, chunk.pieces);
    } catch (const Error& raised) {
      error = raised;
    }
    pthread_mutex_lock(&mutex_);
    complete(chunk, std::move(error));
  }
  pthread_mutex_unlock(&mutex_);
}

// A read has ended: count the loads that are complete now, in order, so that one thread at a time widens, and no read
// before its turn.
void Loader::complete(Chunk& chunk, std::optional<Error> error) {
  if (error) {  // known before loads count as complete: nobody takes what was not read
    error_ = std::move(error);
    failed_ = paused_ = true;
  }
  chunk.complete = true;
  while (first_ < last_ && front().complete && !widens_) {
    if (!error_) widen(front());
    const Word passed = front().passed;
    ++first_;
    if (!error_) loaded_ = first_ < last_ ? passed : passed_;
  }
  pthread_cond_broadcast(&waiting_);
  pthread_cond_broadcast(&readers_);
}

// Widen what was read, while others go on; values of a load take the place of its halves from the lowest on.
void Loader::widen(const Chunk& chunk) {
  Word begun = 0;
  for (int k = 0; k < chunk.pieces; ++k) {
    if (chunk.values[k] == nullptr) continue;
    if (begun == 0) {
      widens_ = true;
      pthread_mutex_unlock(&mutex_);
      begun = loops::now_ns();
    }
    widen_(static_cast<const char*>(chunk.piece[k].iov_base), chunk.values[k], static_cast<Word>(chunk.piece[k].iov_len / 2));
  }
  if (begun == 0) return;
  const Word took = loops::now_ns() - begun;
  pthread_mutex_lock(&mutex_);
  widens_ = false;
  widening_ns_ += took;
  for (int k = 0; k < chunk.pieces; ++k)
    if (chunk.values[k] != nullptr) widened_bytes_ += 2 * static_cast<Word>(chunk.piece[k].iov_len);
}
