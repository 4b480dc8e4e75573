#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "../loops/threads.h"
#include "../program/program.h"
#include "error.h"

using session::File;
using loops::nanoseconds;

namespace {

constexpr Word PROBES = 8, PART_BYTES = 1 << 20;

}  // namespace

// Not waiting for whoever writes to it, if it is none.
File::File(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status;
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) return;
  bytes_ = status.st_size;
  modified_ = nanoseconds(status.st_mtim);
}

File::File(File&& other) noexcept { *this = std::move(other); }

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  std::swap(modified_, other.modified_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

// The time of change is set by the kernel alone: a file whose time of modification was put back is noticed, too.
bool File::is(const Word* stamp) const {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) return false;
  const Word found[] = {static_cast<Word>(status.st_dev), static_cast<Word>(status.st_ino), status.st_size,
                        nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
  return std::equal(std::begin(found), std::end(found), stamp);
}

std::uint64_t File::checksum() const {
  program::Checksum found;
  std::vector<char> part(PART_BYTES);
  for (Word at = 0; at < bytes_; at += PART_BYTES) {
    const Word count = std::min(PART_BYTES, bytes_ - at);
    if (!read(part.data(), count, at).empty()) break;  // what is missing shows
    found.add(part.data(), static_cast<std::size_t>(count));
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
  for (Word done = 0; done < bytes;) {
    const auto got =
        pread(descriptor_, static_cast<char*>(target) + done, static_cast<std::size_t>(bytes - done), offset + done);
    if (got == 0) return "the file ends before byte " + std::to_string(offset + bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_says();
    done += got;
  }
  return "";
}
