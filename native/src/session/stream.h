// Running a program of memory: one arena, weights loaded into it while steps run. The schedule can be changed between two
// inferences.
#pragma once

#include "bound.h"

namespace session {

struct StreamOptions {
  std::vector<int> readers;  // processors of the reading threads; none: any
  bool debug = false;        // memory that becomes free is filled with NaN, so that using it shows
  bool gives_back = false;   // it goes back to the system, as an allocator does with large blocks
  bool mapped = false;       // weights are used where their file is mapped: nothing is read by threads
  bool ahead = true;         // where inferences follow each other, one more is expected at each, unless it was told how many
};

// Memory on huge pages that can be resized: pages that are in memory stay there, to get others takes time.
class Arena : Fixed {
 public:
  void resize(Word bytes);  // Error: std::bad_alloc, and it is as before
  char* from() const { return memory_.get(); }
  Word bytes() const { return memory_.get_deleter().bytes; }

 private:
  Mapped memory_;
};

class Stream : Fixed {
 public:
  // Error: EP_MODEL, EP_DEVICE, or there is not enough memory.
  Stream(const library::Onednn& onednn, const program::Program& program, std::unique_ptr<WeightsFile> file,
         LibraryPages pages, const StreamOptions& options, Schedule schedule);

  // Run by another schedule from the next inference on. Weights are loaded anew, but for those that stay where they are.
  void apply(Schedule schedule);
  const Schedule& schedule() const { return schedule_; }
  char* at(Word buffer, Word offset) const { return arena_.from() + schedule_.buffers[size(buffer)] + offset; }

  void fill();  // load what memory has room for before the next inference begins
  // One inference, of which `write` writes the inputs to their places; outputs are taken before `taken`. Error: EP_MODEL, EP_DEVICE.
  template <class Write>
  void run(Write write) {
    begin();
    write();
    execute();
  }
  void taken();
  void expect(Word inferences);  // so many follow: weights may be loaded for them while one runs
  void wait_touched();           // until the whole arena is in memory
  void settle();                 // give up what was read around code that ran in the first inference alone

  double stream_ms();  // to read all weights while nothing else runs; the next run begins anew
  double read_ms();    // of a small load that nothing else is read beside; the next run begins anew
  LibraryPages& pages() { return pages_; }
  const std::vector<Word>& times() const { return calls_.times; }
  bool ran() const { return executed_; }
  Word began_ns() const { return began_ns_; }
  Word waited_ns() const;  // of the last inference, in which no step ran
  Word bytes_read() const { return loader_.bytes_read(); }
  Word streamed_bytes() const;  // of all weights that are loaded, as memory holds them
  double widened_per_ms() { return loader_.widened_per_ms(); }
  bool direct() const { return file_->direct(); }

  std::vector<Word> slowed;  // ns by which each step is prolonged, awake: a slower processor is stood for so; none: by none

 private:
  struct Range {
    Word begin, end;
  };
  void begin();
  void execute();
  void after(Word step);
  void free(Word step);
  void restart(std::vector<bool> present);
  std::vector<Load> loads() const;
  std::vector<bool> staying(const Schedule& next) const;
  void mark_stops();
  void note_freed();

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
