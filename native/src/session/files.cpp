#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "../loops/threads.h"
#include "../program/program.h"
#include "error.h"
#include "region.h"

using namespace session;
using loops::nanoseconds;

namespace {

constexpr Word PROBES = 8, PART_BYTES = 1 << 20;

}  // namespace

// Not waiting for whoever writes to it, if it is none.
File::File(const std::string& path, Cache cache) : path_(path), passed_(cache == PASSED) {
  constexpr int FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  descriptor_ = passed_ ? ::open(path.c_str(), FLAGS | O_DIRECT) : -1;
  direct_ = descriptor_ >= 0;
  if (!passed_ || (!direct_ && (errno == EINVAL || errno == EOPNOTSUPP))) descriptor_ = ::open(path.c_str(), FLAGS);
  struct stat status;
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) return;
  bytes_ = status.st_size;
  modified_ = nanoseconds(status.st_mtim);
}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(passed_, other.passed_);
  std::swap(direct_, other.direct_);
  std::swap(bytes_, other.bytes_);
  std::swap(modified_, other.modified_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

// The time of change is set by the kernel alone: a file whose time of modification was put back is noticed, too.
bool File::is(const Word* stamp, Word numbers) const {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) return false;
  const Word found[] = {static_cast<Word>(status.st_dev), static_cast<Word>(status.st_ino), status.st_size,
                        nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
  return std::equal(found, found + numbers, stamp);
}

std::uint64_t File::checksum() const {
  program::Checksum found;
  const Mapped part = zeroed(PART_BYTES);
  for (Word at = 0; at < bytes_; at += PART_BYTES) {
    const Word count = std::min(PART_BYTES, bytes_ - at);
    if (!read(part.get(), count, at).empty()) break;  // what is missing shows
    found.add(part.get(), size(count));
  }
  return found.ended();
}

bool File::changed() const {
  struct stat status;
  return fstat(descriptor_, &status) != 0 || status.st_size != bytes_ || nanoseconds(status.st_mtim) != modified_;
}

bool File::in_memory() const {
  char byte;
  iovec target{&byte, 1};
  for (Word at = 0; at < bytes_; at += std::max<Word>(1, bytes_ / PROBES))
    if (preadv2(descriptor_, &target, 1, at, RWF_NOWAIT) != 1) return false;  // or the file system cannot tell
  return true;
}

std::string File::read(void* target, Word bytes, Word offset) const {
  iovec piece{target, size(bytes)};
  return read(&piece, 1, offset);
}

std::string File::read(iovec* pieces, int count, Word offset) const {
  Word at = offset;
  while (count > 0) {
    const ssize_t got = preadv(descriptor_, pieces, count, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_says();
    if (got == 0 && pieces->iov_len > 0) return "they end before byte " + std::to_string(at);
    at += got;
    auto left = static_cast<std::size_t>(got);  // of what was read, behind the pieces that are full
    for (; count > 0 && left >= pieces->iov_len; --count) left -= pieces++->iov_len;
    if (left > 0) *pieces = {static_cast<char*>(pieces->iov_base) + left, pieces->iov_len - left};
  }
  if (passed_ && !direct_) posix_fadvise(descriptor_, offset, at - offset, POSIX_FADV_DONTNEED);
  return "";
}
