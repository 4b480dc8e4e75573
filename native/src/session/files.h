// A file that weights come from, open to be read.
#pragma once

#include <sys/uio.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "../base.h"

namespace session {

class File {
 public:
  // How it is read: by way of the page cache, or leaving nothing of it there.
  enum Cache { KEPT, PASSED };
  static constexpr Word ALL = 5;  // numbers of a stamp: device, number, size, times of modification and change

  File() = default;
  explicit File(const std::string& path, Cache cache = KEPT);  // `open` tells whether it could be opened; errno why not
  File(File&& other) noexcept { *this = std::move(other); }
  File& operator=(File&& other) noexcept;
  ~File();

  bool open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  Word bytes() const { return bytes_; }
  // Whether it is read by direct I/O, if it is to pass the page cache; else that is told to drop what was read.
  bool direct() const { return direct_; }
  // Tell whether it is the one that a plan knows, by so many numbers of its stamp.
  bool is(const Word* stamp, Word numbers = ALL) const;
  std::uint64_t checksum() const;
  // Tell whether its contents changed since it was opened.
  bool changed() const;
  // Tell whether all of it seems to be in the page cache: a few bytes can be had without waiting.
  bool in_memory() const;
  // Read a part, also into several pieces, which it moves on; "" or what went wrong.
  std::string read(void* target, Word bytes, Word offset) const;
  std::string read(iovec* pieces, int count, Word offset) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  bool passed_ = false, direct_ = false;
  Word bytes_ = 0, modified_ = 0;
};

// Call something with each line of a file, without its end, until it wants no more: it returns whether to go on, or
// nothing. With none where the file cannot be read.
template <class Work>
void each_line(const std::string& path, Work work) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return;
  char* line = nullptr;
  std::size_t room = 0;
  for (bool more = true; more && getline(&line, &room, file) > 0;) {
    line[std::strcspn(line, "\n")] = 0;
    if constexpr (std::is_void_v<decltype(work(line))>) work(line);
    else more = work(line);
  }
  std::free(line);
  std::fclose(file);
}

}  // namespace session
