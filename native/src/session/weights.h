// What the weights of a cold start come from: the file weights.cache, and the model's files for raw ones.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>

#include "error.h"
#include "files.h"
#include "recipes.h"

namespace session {

class Weights : Fixed {
 public:
  // Of a plan folder. Error: EP_MODEL where weights that the cold start itself needs are not there, or the model
  // changed.
  Weights(const program::Program& program, const std::string& folder)
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

  // For measuring: `cache` is taken as it is, "" for none.
  Weights(const program::Program& program, const std::string& folder, const std::string& cache)
      : program_(program),
        raw_(program.rows<format::Raw>(format::RAW)),
        files_(size(program.rows<format::File>(format::FILES).length)) {
    for (Word k = 0; k < program.facts().steps; ++k) {
      maps_ = maps_ || program.record(k).source == loops::MAPPED;
      has_raw_ = has_raw_ || program.record(k).source == loops::RAW;
    }
    if (raw_.length > 0) open_model(folder);
    if (cache.empty()) return;
    cache_ = File(cache);
    if (maps_) map();
  }

  // Weights from the cache: those that are copied go to `target`. Where they lie; Error: EP_MODEL.
  char* cached(const loops::Head& record, Word number, char* target) {
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
    if (checks_ && number < checksums.length && program::checksum(found, size(record.bytes)) != checksums[number])
      damaged(std::string("those of step '") + program_.text(program_.rows<Word>(format::STEP_NAMES)[number]) +
              "' were changed");
    return found;
  }

  char* mapped(const loops::Head& record) const { return map_.get() + record.segment; }
  // Have the cache mapped anew: pages that were seen before cost nothing.
  void map() {
    map_.reset();
    if (!cache_.open() || cache_.bytes() == 0) return;
    map_ = session::mapped(cache_.descriptor(), cache_.bytes(), MAP_PRIVATE);
    if (!map_) damaged("they cannot be mapped: " + system_says());
  }

  // Read what the recipes of a record need; Error: EP_MODEL.
  std::vector<char*> read(Word record, Staging& staging) {
    std::vector<char*> found;
    each_part(record, [&](const RecipePart& part, const ModelFile& model) {
      if (model.problem) throw *model.problem;
      found.push_back(staging.take(part.bytes));
      const std::string problem = model.file.read(found.back(), part.bytes, part.offset);
      if (!problem.empty())
        throw Error{EP_MODEL, "cannot read the weights: " + problem, model.file.path(),
                    "check the disk, or copy the model again"};
      model.used = true;
    });
    return found;
  }

  // The weights of a record that are made by recipes.
  loops::Array<const format::Raw> raw_of(Word record) const {
    const auto before = [](const format::Raw& raw, Word number) { return raw.record < number; };
    const auto* first = std::lower_bound(raw_.begin(), raw_.end(), record, before);
    return {first, std::lower_bound(first, raw_.end(), record + 1, before) - first};
  }

  // What is to be read before the cold start's steps have their weights, in order.
  struct Part {
    int file;
    Word first, last, step;
  };
  std::vector<Part> parts() const {
    std::vector<Part> found;
    for (Word step = 0; step < program_.facts().steps; ++step) {
      const loops::Head& record = program_.record(step);
      if (record.source == loops::COPIED || record.source == loops::MAPPED)
        found.push_back({cache_.descriptor(), record.segment, record.segment + record.bytes, step});
      if (record.source != loops::RAW) continue;
      each_part(step, [&](const RecipePart& part, const ModelFile& model) {
        found.push_back({model.file.descriptor(), part.offset, part.offset + part.bytes, step});
      });
    }
    return found;
  }

  bool in_memory() const {
    if (cache_.open() && !cache_.in_memory()) return false;
    return !has_raw_ ||
           std::all_of(files_.begin(), files_.end(), [](const ModelFile& model) { return model.file.in_memory(); });
  }

  // Error: EP_MODEL where files that are mapped, or were read since this was asked, are not as when they were opened.
  void require_unchanged() {
    const File* changed = nullptr;
    if ((copied_.exchange(false) || map_ != nullptr) && cache_.changed()) changed = &cache_;
    for (ModelFile& model : files_)
      if (model.used.exchange(false) && model.file.changed()) changed = &model.file;
    if (changed != nullptr)
      throw Error{EP_MODEL, "weights were changed while they were in use: outputs may be wrong", changed->path(),
                  "open the plan again; put other files in place by renaming, never write into those in use"};
  }

  bool checks() const { return checks_; }

 private:
  struct ModelFile {
    File file;
    mutable std::atomic<bool> used{false};
    std::optional<Error> problem;
  };

  // Beside the plan, else where the model was when it was planned. What is wrong is told when it is needed.
  void open_model(const std::string& folder) {
    auto model = files_.begin();
    for (const format::File& known : program_.rows<format::File>(format::FILES)) {
      const std::string path = program_.text(known.path);
      auto& [file, used, problem] = *model++;
      file = File(folder + "/" + path.substr(path.rfind('/') + 1));
      if (!file.open()) file = File(path);
      if (!file.open())
        problem = {EP_MODEL, "cannot open the model: " + system_says(), path, "put the model back, or plan again"};
      else if (!file.is(known.stamp) && !(file.bytes() == known.bytes && file.checksum() == known.checksum))
        problem = {EP_MODEL, "the model changed since the plan was made", file.path(), program_.plan_again()};
    }
  }

  // Parts of the model's files that the recipes of a record read, in order.
  template <class Work>
  void each_part(Word record, Work work) const {
    const auto recipes = program_.rows<format::Recipe>(format::RECIPES);
    for (const format::Raw& raw : raw_of(record))
      for (Word k = raw.first; k < raw.end; ++k)
        if (const RecipePart part = part_of(recipes[k]); part.bytes > 0) work(part, files_[size(part.file)]);
  }

  [[noreturn]] void damaged(const std::string& why) const {
    throw Error{EP_MODEL, "the weights are damaged: " + why, cache_.path(), program_.plan_again()};
  }

  // What cannot be read is told: a touch would end the process. Part by part: meanwhile the address space is locked, and
  // whoever generates a kernel needs to change it.
  void populate(const loops::Head& record, Word number) const {
    constexpr Word AT_ONCE = 2 << 20;
    const Word end = record.segment + record.bytes;
    for (Word part = record.segment / PAGE * PAGE; part < end; part += AT_ONCE) {
      if (madvise(map_.get() + part, size(std::min(AT_ONCE, end - part)), POPULATE_READ) == 0) continue;
      if (errno == EINVAL) return;  // a kernel without it: the first touch brings the pages
      damaged("those of record " + std::to_string(number) + " cannot be read: " + system_says());
    }
  }

  const program::Program& program_;
  loops::Array<const format::Raw> raw_;
  File cache_;
  std::atomic<bool> copied_{false};
  Mapped map_;
  bool maps_ = false, checks_ = false, has_raw_ = false;  // of the cold start's own steps
  std::vector<ModelFile> files_;
};

}  // namespace session
