#include "weights.h"

#include <sys/mman.h>

#include <algorithm>

#include "region.h"
#include "session.h"

using namespace session;
using loops::Head;

namespace {

constexpr Word POPULATED_AT_ONCE = 2 << 20;

std::string beside(const std::string& folder, const std::string& path) {
  return folder + "/" + path.substr(path.rfind('/') + 1);
}

}  // namespace

Weights::Weights(const program::Program& program, const std::string& folder)
    : Weights(program, folder, program.facts().cache_bytes > 0 ? folder + "/weights.cache" : "") {
  const format::Facts& facts = program.facts();
  if (facts.cache_bytes > 0) {
    if (!cache_.open()) damaged("they cannot be opened: " + system_says());
    if (cache_.bytes() != facts.cache_bytes)
      damaged("the file has " + std::to_string(cache_.bytes()) + " bytes, not " + std::to_string(facts.cache_bytes));
    checks_ = !cache_.is(facts.stamp);
  }
  if (!has_raw_) return;
  for (const ModelFile& model : files_)
    if (model.problem) throw *model.problem;
}

Weights::Weights(const program::Program& program, const std::string& folder, const std::string& cache)
    : program_(program),
      recipes_(program, folder),
      raw_(program.rows<format::Raw>(format::RAW)),
      files_(static_cast<std::size_t>(program.rows<format::File>(format::FILES).length)) {
  const auto starts = program.rows<Word>(format::RECORD_STARTS), records = program.rows<Word>(format::RECORDS);
  for (Word k = 0; k < program.facts().steps; ++k) {
    const Word source = reinterpret_cast<const Head&>(records[starts[k]]).source;
    maps_ = maps_ || source == loops::MAPPED;
    has_raw_ = has_raw_ || source == loops::RAW;
  }
  if (raw_.length > 0) open_model(folder);
  if (cache.empty()) return;
  cache_ = File(cache);
  if (maps_) map();
}

Weights::~Weights() {
  if (map_ != nullptr) munmap(map_, static_cast<std::size_t>(cache_.bytes()));
}

void Weights::map() {
  if (map_ != nullptr) munmap(map_, static_cast<std::size_t>(cache_.bytes()));
  map_ = nullptr;
  if (!cache_.open() || cache_.bytes() == 0) return;
  void* found = mmap(nullptr, static_cast<std::size_t>(cache_.bytes()), PROT_READ, MAP_PRIVATE, cache_.descriptor(), 0);
  if (found == MAP_FAILED) damaged("they cannot be mapped: " + system_says());
  map_ = static_cast<char*>(found);
}

void Weights::damaged(const std::string& why) const {
  throw Error{EP_MODEL, "the weights are damaged: " + why, cache_.path(), plan_again(format::COLD_START)};
}

// What cannot be read is told: a touch would end the process. Part by part: meanwhile the address space is locked, and
// whoever generates a kernel needs to change it.
void Weights::populate(const Head& record, Word number) const {
  const Word end = record.segment + record.bytes;
  for (Word part = record.segment / PAGE * PAGE; part < end; part += POPULATED_AT_ONCE) {
    const auto length = static_cast<std::size_t>(std::min(POPULATED_AT_ONCE, end - part));
    if (madvise(map_ + part, length, POPULATE_READ) == 0) continue;
    if (errno == EINVAL) return;  // a kernel without it: the first touch brings the pages
    damaged("those of record " + std::to_string(number) + " cannot be read: " + system_says());
  }
}

char* Weights::cached(const Head& record, Word number, char* target) {
  char* found = target;
  if (record.source == loops::MAPPED) {
    found = mapped(record);
    populate(record, number);
  } else {
    const std::string problem = cache_.read(target, record.bytes, record.segment);
    if (!problem.empty()) damaged(problem);
    copied_ = true;
  }
  const auto checksums = program_.rows<std::uint64_t>(format::CHECKSUMS);
  if (checks_ && number < checksums.length &&
      program::checksum(found, static_cast<std::size_t>(record.bytes)) != checksums[number])
    damaged(std::string("those of step '") + program_.text(program_.rows<Word>(format::STEP_NAMES)[number]) +
            "' were changed");
  return found;
}

// Beside the plan, else where the model was when it was planned. What is wrong is told when it is needed.
void Weights::open_model(const std::string& folder) {
  const auto known = program_.rows<format::File>(format::FILES);
  for (Word k = 0; k < known.length; ++k)
    open_file(files_[static_cast<std::size_t>(k)], folder, program_.text(known[k].path), known[k]);
}

void Weights::open_file(ModelFile& model, const std::string& folder, const std::string& path, const format::File& known) {
  model.file = File(beside(folder, path));
  if (!model.file.open()) model.file = File(path);
  if (!model.file.open())
    model.problem = {EP_MODEL, "cannot open the model: " + system_says(), path, "put the model back, or plan again"};
  else if (!model.file.is(known.stamp) && !(model.file.bytes() == known.bytes && model.file.checksum() == known.checksum))
    model.problem = {EP_MODEL, "the model changed since the plan was made", model.file.path(),
                     plan_again(format::COLD_START)};
}

loops::Array<const format::Raw> Weights::raw_of(Word record) const {
  const auto* end = raw_.from + raw_.length;
  const auto before = [](const format::Raw& raw, Word number) { return raw.record < number; };
  const auto* first = std::lower_bound(raw_.from, end, record, before);
  return {first, std::lower_bound(first, end, record + 1, before) - first};
}

std::vector<char*> Weights::read(Word record, Staging& staging) {
  std::vector<char*> found;
  const auto recipes = program_.rows<format::Recipe>(format::RECIPES);
  const auto wanted = raw_of(record);
  for (Word slot = 0; slot < wanted.length; ++slot) {
    for (Word k = wanted[slot].first; k < wanted[slot].end; ++k) {
      const Recipes::Part part = Recipes::part_of(recipes[k]);
      if (part.bytes == 0) continue;
      ModelFile& model = files_[static_cast<std::size_t>(part.file)];
      if (model.problem) throw *model.problem;
      found.push_back(staging.take(part.bytes));
      const std::string problem = model.file.read(found.back(), part.bytes, part.offset);
      if (!problem.empty())
        throw Error{EP_MODEL, "cannot read the weights: " + problem, model.file.path(),
                    "check the disk, or copy the model again"};
      model.used = true;
    }
  }
  return found;
}

std::vector<Weights::Part> Weights::parts() const {
  std::vector<Part> found;
  const auto starts = program_.rows<Word>(format::RECORD_STARTS), records = program_.rows<Word>(format::RECORDS);
  const auto recipes = program_.rows<format::Recipe>(format::RECIPES);
  for (Word step = 0; step < program_.facts().steps; ++step) {
    const Head& record = reinterpret_cast<const Head&>(records[starts[step]]);
    if (record.source == loops::COPIED || record.source == loops::MAPPED)
      found.push_back({cache_.descriptor(), record.segment, record.segment + record.bytes, step});
    if (record.source != loops::RAW) continue;
    const auto wanted = raw_of(step);
    for (Word slot = 0; slot < wanted.length; ++slot)
      for (Word k = wanted[slot].first; k < wanted[slot].end; ++k)
        if (const Recipes::Part part = Recipes::part_of(recipes[k]); part.bytes > 0)
          found.push_back({files_[static_cast<std::size_t>(part.file)].file.descriptor(), part.offset,
                           part.offset + part.bytes, step});
  }
  return found;
}

bool Weights::in_memory() const {
  if (cache_.open() && !cache_.in_memory()) return false;
  return !has_raw_ ||
         std::all_of(files_.begin(), files_.end(), [](const ModelFile& model) { return model.file.in_memory(); });
}

void Weights::require_unchanged() {
  const File* changed = nullptr;
  if ((copied_.exchange(false) || map_ != nullptr) && cache_.changed()) changed = &cache_;
  for (ModelFile& model : files_)
    if (model.used.exchange(false) && model.file.changed()) changed = &model.file;
  if (changed != nullptr)
    throw Error{EP_MODEL, "weights were changed while they were in use: outputs may be wrong", changed->path(),
                "open the plan again; put other files in place by renaming, never write into those in use"};
}
