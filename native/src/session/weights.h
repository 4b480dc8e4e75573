// What the weights of a cold start come from: the file weights.cache, and the model's files for raw ones.
#pragma once

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
  Weights(const program::Program& program, const std::string& folder);
  // For measuring: `cache` is taken as it is, "" for none.
  Weights(const program::Program& program, const std::string& folder, const std::string& cache);

  // Weights from the cache: those that are copied go to `target`. Where they lie; Error: EP_MODEL.
  char* cached(const loops::Head& record, Word number, char* target);
  // Where mapped ones lie.
  char* mapped(const loops::Head& record) const { return map_.get() + record.segment; }
  // Have the cache mapped anew: pages that were seen before cost nothing.
  void map();

  // Read what the recipes of a record need; Error: EP_MODEL.
  std::vector<char*> read(Word record, Staging& staging);
  // The weights of a record that are made by recipes.
  loops::Array<const format::Raw> raw_of(Word record) const;

  // What is to be read before the cold start's steps have their weights, in order.
  struct Part {
    int file;
    Word first, last, step;
  };
  std::vector<Part> parts() const;
  // Tell whether it is all in the page cache.
  bool in_memory() const;

  // Error: EP_MODEL where files that are mapped, or were read since this was asked, are not as when they were opened.
  void require_unchanged();
  bool checks() const { return checks_; }

 private:
  struct ModelFile {
    File file;
    mutable std::atomic<bool> used{false};
    std::optional<Error> problem;
  };

  void open_model(const std::string& folder);
  template <class Work>
  void each_part(Word record, Work work) const;
  [[noreturn]] void damaged(const std::string& why) const;
  void populate(const loops::Head& record, Word number) const;

  const program::Program& program_;
  loops::Array<const format::Raw> raw_;
  File cache_;
  std::atomic<bool> copied_{false};
  Mapped map_;
  bool maps_ = false, checks_ = false, has_raw_ = false;  // of the cold start's own steps
  std::vector<ModelFile> files_;
};

}  // namespace session
