// Bringing weights into memory before they are fetched: they come in the order of execution while kernels are made.
//
// One part after the other, so that the kernel's own reading ahead asks the disk for no more than its window at once,
// in large pages. Asking for everything by POSIX_FADV_WILLNEED is no good: a disk with a long queue serves all of it at
// the same time, what is needed first comes late, and small pages take two to three times the processor time. Reading
// into a buffer copies every byte: 100 MB cost 20 ms of a core, where the same bytes sent to the null device cost 3 ms.
#pragma once

#include <fcntl.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "../loops/threads.h"
#include "threads.h"
#include "weights.h"

namespace session {

class ReadingAhead : Fixed {
 public:
  // Begin, where weights are not in memory yet. `arrived`: steps before it have their weights; the last number in the
  // end.
  ReadingAhead(const Weights& weights, Word steps, Word& arrived) : steps_(steps), arrived_(arrived) {
    loops::put(&arrived, steps);
    if (weights.in_memory()) return;
    parts_ = joined(weights.parts());
    try {
      loops::put<Word>(&arrived, 0);
      thread_.emplace([this] { run(); }, std::vector<int>{});
    } catch (const Error&) {  // no thread can be started: the start does without
      loops::put(&arrived, steps);
    }
  }
  ~ReadingAhead() {
    ended_ = true;
    thread_.reset();
  }

 private:
  using Part = Weights::Part;
  static constexpr Word AT_ONCE_BYTES = 256 << 10;

  // Pieces that lie next to each other joined, as long as none grows beyond what is read at once.
  static std::vector<Part> joined(const std::vector<Part>& parts) {
    std::vector<Part> found;
    for (const Part& part : parts) {
      const Word apart = found.empty() || found.back().file != part.file ? -1 : part.first - found.back().last;
      if (0 <= apart && apart < AT_ONCE_BYTES && part.last - found.back().first <= AT_ONCE_BYTES) {
        found.back().last = part.last;
        found.back().step = part.step;
      } else {
        found.push_back(part);
      }
    }
    return found;
  }

  void run() {
    sink_ = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (std::size_t k = 0; k < parts_.size(); ++k) {
      const Part& part = parts_[k];
      // what cannot be read is told by whoever fetches it
      for (Word at = part.first, got = 1; at < part.last && got > 0 && !ended_; at += got)
        got = bring(part.file, at, std::min(part.last - at, AT_ONCE_BYTES));
      const bool whole = k + 1 == parts_.size() || parts_[k + 1].step != part.step;
      loops::put(&arrived_, part.step + whole);
    }
    close(sink_);
    loops::put(&arrived_, steps_);  // nobody waits for what nobody reads
  }

  // Have bytes of a file in memory, and wait for them; how many it were.
  Word bring(int file, Word first, Word bytes) {
    off_t at = first;
    if (buffer_.empty()) {
      const ssize_t sent = sendfile(sink_, file, &at, size(bytes));
      if (sent >= 0 || (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)) return sent;
      buffer_.resize(AT_ONCE_BYTES);  // a file system whose files cannot be sent: copy
    }
    return pread(file, buffer_.data(), size(bytes), first);
  }

  int sink_ = -1;
  const Word steps_;
  Word& arrived_;
  std::vector<char> buffer_;
  std::vector<Part> parts_;
  std::atomic<bool> ended_{false};
  std::optional<Thread> thread_;
};

}  // namespace session
