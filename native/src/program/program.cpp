#include "program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../session/error.h"

using namespace program;
using format::Header;
using format::Section;

void Checksum::add(const void* bytes, std::size_t count) {
  loops::mix(static_cast<const std::uint64_t*>(bytes), static_cast<Word>(count / 8), states_);
  std::memcpy(&rest_, static_cast<const char*>(bytes) + count / 8 * 8, count % 8);
  count_ += count;
}

std::uint64_t Checksum::ended() const {
  const std::uint64_t found[] = {states_[1], states_[2], states_[3], rest_, count_};
  std::uint64_t result[loops::LANES] = {states_[0], 0, 0, 0};
  for (const std::uint64_t& word : found) loops::mix(&word, 1, result);
  return result[0];
}

std::uint64_t program::checksum(const void* bytes, std::size_t count) {
  Checksum found;
  found.add(bytes, count);
  return found.ended();
}

EP_EXPORT std::uint64_t ep_checksum(const void* bytes, Word count) {
  return checksum(bytes, static_cast<std::size_t>(count));
}

Program::Program(const std::string& path, const std::string& plan_again) : path_(path), plan_again_(plan_again) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0)
    throw Error{EP_FORMAT, "cannot read the plan: " + system_says(), path, plan_again};
  bytes_ = static_cast<std::size_t>(status.st_size);
  void* mapped = bytes_ < sizeof(Header) ? MAP_FAILED : mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) damaged("it is too short");
  from_ = mapped;
  mapped_ = true;
  try {
    check();
  } catch (...) {
    munmap(mapped, bytes_);
    throw;
  }
}

Program::Program(const void* bytes, std::size_t count) : from_(bytes), bytes_(count) {
  if (count < sizeof(Header)) damaged("it is too short");
  check();
}

Program::~Program() {
  if (mapped_) munmap(const_cast<void*>(from_), bytes_);
}

void Program::damaged(const char* why) const {
  throw Error{EP_FORMAT, std::string("the plan is damaged: ") + why, path_, plan_again_};
}

void Program::drop_pages() const {
  if (mapped_) madvise(const_cast<void*>(from_), bytes_, MADV_DONTNEED);
}

void Program::check() {
  check_sections();
  adopt();
  switch (header().kind) {
    case format::COLD_START: return check_cold(*this);
    case format::MEMORY: return check_memory(*this);
    default: damaged("it is of no kind");
  }
}

void Program::check_sections() const {
  const Header& head = header();
  if (std::memcmp(head.magic, format::MAGIC, sizeof head.magic) != 0) damaged("it is no program");
  if (head.version != format::VERSION || head.byte_order != format::ORDER)
    throw Error{EP_FORMAT, "the plan has another format: another version of edgeplan made it", path_, plan_again_};
  const std::size_t table = sizeof(Header) + head.sections * sizeof(Section);
  if (head.bytes != bytes_ || head.sections > 256 || table > bytes_) damaged("it has another size");
  if (checksum(static_cast<const char*>(from_) + sizeof(Header), bytes_ - sizeof(Header)) != head.checksum)
    damaged("it was changed after it was written");
  const auto* sections = reinterpret_cast<const Section*>(&head + 1);
  for (std::uint32_t k = 0; k < head.sections; ++k) {
    const Section& one = sections[k];
    const bool fits = one.offset % format::ALIGNMENT == 0 && one.offset >= table && one.offset <= bytes_ &&
                      one.row_bytes > 0 && one.count <= (bytes_ - one.offset) / one.row_bytes;
    if (!fits) damaged("a section lies outside of it");
  }
}

Program::Found Program::section(format::Id id, std::size_t row_bytes) const {
  const Header& head = header();
  const auto* sections = reinterpret_cast<const Section*>(&head + 1);
  for (std::uint32_t k = 0; k < head.sections; ++k) {
    if (sections[k].id != id) continue;
    if (sections[k].row_bytes != row_bytes) damaged("rows have another size");
    return {static_cast<const char*>(from_) + sections[k].offset, static_cast<Word>(sections[k].count)};
  }
  return {nullptr, 0};
}

void Program::adopt() {
  const auto text = rows<char>(format::TEXT);
  const auto facts = rows<format::Facts>(format::FACTS);
  if (facts.length != 1 || text.length < 1 || text[0] != 0 || text[text.length - 1] != 0) damaged("it says nothing of itself");
  facts_ = facts.from;
  text_ = text.from;
  const auto held = [&](Word offset) { return 0 <= offset && offset < text.length; };
  const format::Facts& f = *facts_;
  for (const Word offset : {f.model, f.machine, f.version, f.commit, f.isa, f.layout, f.library})
    if (!held(offset)) damaged("a text lies outside of it");
  for (const auto id : {format::FUNCTIONS, format::KERNELS, format::STEP_NAMES}) {
    const auto names = rows<Word>(id);
    for (Word k = 0; k < names.length; ++k)
      if (!held(names[k])) damaged("a text lies outside of it");
  }
  for (const auto id : {format::INPUTS, format::OUTPUTS}) {
    const auto borders = rows<format::Border>(id);
    for (Word k = 0; k < borders.length; ++k) {
      const format::Border& border = borders[k];
      Word bytes = 0;
      constexpr Word SIZES[] = {4, 4, 8, 1, 1, 1};
      bool fits = held(border.name) && 0 <= border.rank && border.rank <= format::DIMS && 0 <= border.dtype && border.dtype < 6;
      if (fits) bytes = SIZES[border.dtype];
      for (Word axis = 0; fits && axis < border.rank; ++axis)
        fits = border.dims[axis] >= 0 && !__builtin_mul_overflow(bytes, border.dims[axis], &bytes);
      if (!fits || bytes != border.bytes) damaged("an input or output has no size");
    }
  }
  const auto files = rows<format::File>(format::FILES);
  for (Word k = 0; k < files.length; ++k)
    if (!held(files[k].path)) damaged("a text lies outside of it");
}
