// Weights read past the page cache: direct I/O into memory, a few reads in flight, in the order of execution.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

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
  WeightsFile(const std::string& folder, const program::Program& program);

  // Fill memory from an offset on; Error: EP_MODEL.
  void read(Word offset, iovec* pieces, int count) const;
  void require_unchanged() const;  // since it was opened; Error: EP_MODEL
  bool direct() const { return file_.direct(); }
  const char* mapped() const;  // the file, mapped until it is closed

 private:
  [[noreturn]] void damaged(const std::string& why) const;
  const program::Program& program_;
  const File file_;
  mutable Mapped mapped_;
};

// The weights of one step.
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
  Loader(const WeightsFile& file, Widen widen, const std::vector<int>& processors);
  ~Loader();

  // Load for one inference, as nothing is in memory but the weights of `present` steps, which stay. Reads are paused.
  void start(std::vector<Load> loads, Word steps, char* arena, std::vector<bool> present);
  void pause();                  // begin no reads, and wait for those in flight
  void prepare(Word horizon);    // load for so many inferences, counted from the beginning
  void wait_filled();            // until nothing more can be loaded before a step ends; Error: of a read
  void wait_loaded(Word count);  // until so many loads are complete, counted from the beginning; Error: of a read
  bool has_loaded(Word count) const { return loaded_ >= count; }
  void ended(Word steps);  // so many have ended since the beginning: what they used is free

  Word bytes_read() const { return bytes_read_; }  // since the beginning
  double widened_per_ms();                         // bytes of values; 0 where none were
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

  void stop();
  void reset();
  Word needed() const;
  void skip();
  void next_load();
  bool ready();
  Chunk& take();
  Chunk& front() { return chunks_[first_ % SLOTS]; }
  void work();
  void complete(Chunk& chunk, std::optional<Error> error, Lock& lock);
  void widen(const Chunk& chunk, Lock& lock);
  void check() const;

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
