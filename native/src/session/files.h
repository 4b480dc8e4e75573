// A file that weights come from, open to be read.
#pragma once

#include <string>

#include "../base.h"

namespace session {

class File {
 public:
  File() = default;
  explicit File(const std::string& path);  // `open` tells whether it could be opened; errno why not
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  bool open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  Word bytes() const { return bytes_; }
  // Tell whether it is the one that a plan knows: device, number, size, times of modification and change.
  bool is(const Word* stamp) const;
  // The digest of its contents.
  std::uint64_t checksum() const;
  // Tell whether its contents changed since it was opened.
  bool changed() const;
  // Tell whether all of it seems to be in the page cache: a few bytes can be had without waiting.
  bool in_memory() const;
  // Read a part; "" or what went wrong.
  std::string read(void* target, Word bytes, Word offset) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  Word bytes_ = 0, modified_ = 0;
};

}  // namespace session
