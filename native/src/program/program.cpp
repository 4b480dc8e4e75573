#include "program.h"

#include <algorithm>

#include "../session/error.h"
#include "../session/files.h"

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

Program::Program(const std::string& path) : path_(path) {
  const session::File file(path);
  if (!file.open()) throw Error{EP_FORMAT, "cannot read the plan: " + system_says(), path, plan_again_};
  bytes_ = size(file.bytes());
  from_ = session::mapped(file.descriptor(), file.bytes(), MAP_PRIVATE | MAP_POPULATE);
  check();
}

Program::Program(const void* bytes, std::size_t count)
    : from_(session::zeroed(static_cast<Word>(std::max(count, sizeof(Header))))), bytes_(count) {
  std::memcpy(from_.get(), bytes, count);
  check();
}

void Program::damaged(const char* why) const {
  throw Error{EP_FORMAT, std::string("the plan is damaged: ") + why, path_, plan_again_};
}

void Program::drop_pages() const {
  if (!path_.empty()) madvise(from_.get(), bytes_, MADV_DONTNEED);  // others come from nowhere
}

void Program::check() {
  check_sections();
  adopt();
  const std::uint32_t kind = header().kind;
  if (kind != format::COLD_START && kind != format::MEMORY) damaged("it is of no kind");
  plan_again_ = std::string("plan the model again: edgeplan plan ") + (kind == format::COLD_START ? "cold-start" : "memory");
  kind == format::COLD_START ? check_cold(*this) : check_memory(*this);
}

void Program::check_sections() const {
  if (!from_ || bytes_ < sizeof(Header)) damaged("it is too short");
  const Header& head = header();
  if (std::memcmp(head.magic, format::MAGIC, sizeof head.magic) != 0) damaged("it is no program");
  if (head.version != format::VERSION || head.byte_order != format::ORDER)
    throw Error{EP_FORMAT, "the plan has another format: another version of edgeplan made it", path_, plan_again_};
  const std::size_t table = sizeof(Header) + head.sections * sizeof(Section);
  if (head.bytes != bytes_ || head.sections > 256 || table > bytes_) damaged("it has another size");
  if (checksum(&head + 1, bytes_ - sizeof(Header)) != head.checksum)
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
    return {from_.get() + sections[k].offset, static_cast<Word>(sections[k].count)};
  }
  return {nullptr, 0};
}

void Program::adopt() {
  const auto text = rows<char>(format::TEXT);
  const auto facts = rows<format::Facts>(format::FACTS);
  if (facts.length != 1 || text.length < 1 || text[0] != 0 || text[text.length - 1] != 0) damaged("it says nothing of itself");
  facts_ = facts.from;
  text_ = text.from;
  records_ = rows<Word>(format::RECORDS);
  record_starts_ = rows<Word>(format::RECORD_STARTS);
  const auto require = [&](bool fits, const char* why) {
    if (!fits) damaged(why);
  };
  const auto require_text = [&](Word offset) { require(0 <= offset && offset < text.length, "a text lies outside of it"); };
  const format::Facts& f = *facts_;
  for (const Word offset : {f.model, f.machine, f.version, f.commit, f.isa, f.layout, f.library}) require_text(offset);
  for (const auto id : {format::FUNCTIONS, format::KERNELS, format::STEP_NAMES})
    for (const Word name : rows<Word>(id)) require_text(name);
  for (const format::File& file : rows<format::File>(format::FILES)) require_text(file.path);
  for (const auto id : {format::INPUTS, format::OUTPUTS}) {
    for (const format::Border& border : rows<format::Border>(id)) {
      require_text(border.name);
      bool fits = 0 <= border.rank && border.rank <= format::DIMS && 0 <= border.dtype && border.dtype < 6;
      Word bytes = fits ? format::SIZES[border.dtype] : 0;
      for (Word axis = 0; fits && axis < border.rank; ++axis)
        fits = border.dims[axis] >= 0 && !__builtin_mul_overflow(bytes, border.dims[axis], &bytes);
      require(fits && bytes == border.bytes, "an input or output has no size");
    }
  }
}
