// One part after the other, so that the kernel's own reading ahead asks the disk for no more than its window at once,
// in large pages. Asking for everything by POSIX_FADV_WILLNEED is no good: a disk with a long queue serves all of it at
// the same time, what is needed first comes late, and small pages take two to three times the processor time. Reading
// into a buffer copies every byte: 100 MB cost 20 ms of a core, where the same bytes sent to the null device cost 3 ms.
#include "reading_ahead.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <algorithm>

#include "../loops/threads.h"

using namespace session;
using Part = Weights::Part;

namespace {

constexpr Word AT_ONCE_BYTES = 256 << 10;

class Bringer {
 public:
  Bringer() : sink_(open("/dev/null", O_WRONLY | O_CLOEXEC)) {}
  ~Bringer() { close(sink_); }
  Bringer(const Bringer&) = delete;
  Bringer& operator=(const Bringer&) = delete;

  // Have a part of a file in memory, and wait for it. What cannot be read is told by whoever fetches it.
  void bring(int file, Word first, Word last) {
    for (ssize_t got = 1; first < last && got > 0; first += got)
      got = send(file, first, static_cast<std::size_t>(last - first));
  }

 private:
  ssize_t send(int file, off_t at, std::size_t bytes) {
    const off_t first = at;
    if (buffer_.empty()) {
      const ssize_t sent = sendfile(sink_, file, &at, bytes);
      if (sent >= 0 || (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)) return sent;
      buffer_.resize(AT_ONCE_BYTES);  // a file system whose files cannot be sent: copy
    }
    return pread(file, buffer_.data(), std::min(bytes, buffer_.size()), first);
  }

  int sink_;
  std::vector<char> buffer_;
};

// Pieces that lie next to each other joined, as long as none grows beyond what is read at once.
std::vector<Part> joined(const std::vector<Part>& parts) {
  std::vector<Part> found;
  for (const Part& part : parts) {
    if (!found.empty()) {
      Part& last = found.back();
      const Word apart = part.first - last.last;
      if (last.file == part.file && 0 <= apart && apart < AT_ONCE_BYTES && part.last - last.first <= AT_ONCE_BYTES) {
        last.last = part.last;
        last.step = part.step;
        continue;
      }
    }
    found.push_back(part);
  }
  return found;
}

}  // namespace

ReadingAhead::ReadingAhead(const Weights& weights, Word steps, Word& arrived) {
  loops::put(&arrived, steps);
  if (weights.in_memory()) return;
  parts_ = joined(weights.parts());
  try {
    loops::put<Word>(&arrived, 0);
    thread_.emplace([this, steps, &arrived] { run(steps, arrived); }, std::vector<int>{});
  } catch (const Error&) {  // no thread can be started: the start does without
    loops::put(&arrived, steps);
  }
}

ReadingAhead::~ReadingAhead() {
  ended_ = true;
  thread_.reset();
}

void ReadingAhead::run(Word steps, Word& arrived) {
  Bringer bringer;
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    const Part& part = parts_[k];
    for (Word at = part.first; at < part.last && !ended_; at += AT_ONCE_BYTES)
      bringer.bring(part.file, at, std::min(part.last, at + AT_ONCE_BYTES));
    const bool whole = k + 1 == parts_.size() || parts_[k + 1].step != part.step;
    loops::put(&arrived, part.step + whole);
  }
  loops::put(&arrived, steps);  // nobody waits for what nobody reads
}
