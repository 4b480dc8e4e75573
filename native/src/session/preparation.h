// What comes before a step's execution: its objects made, its weights fetched or made, its calls written down.
#pragma once

#include <memory>

#include "objects.h"
#include "weights.h"

namespace session {

// A thread that prepares: what it needs of its own.
struct Preparer : Fixed {
  Preparer(const library::Onednn& used, int number) : library(used), core(number) {}
  ~Preparer() { library.end_stream(stream); }

  const library::Onednn& library;
  const int core;
  Word stream = 0;  // where it has needed one
  Staging staging;
  std::vector<ep_span> spans;  // what was done when
};

// A step's calls, behind which are the memories of its weights and all arguments.
struct Prepared {
  std::unique_ptr<Word[]> words;
  loops::Call *first = nullptr, *end = nullptr;
  Word slots = 0;
};

class Preparation {
 public:
  // `weights_at`: of weights that are copied or made.
  Preparation(const library::Onednn& library, const program::Program& program, Objects& objects, Weights& weights,
              char* weights_at);

  const loops::Places& places() const { return objects_.places(); }
  // Make the objects that a record needs. Error: EP_DEVICE.
  void create(Preparer& preparer, Word number);
  // Prepare a record, its weights at their place, or at another one. Error: EP_DEVICE, EP_MODEL.
  void prepare(Preparer& preparer, Word number, Prepared& into, char* weights = nullptr);
  // Fetch weights from the cache, as a part of that; where they lie, which is `target` for those that are copied.
  char* fetch(Preparer& preparer, const loops::Head& record, Word number, char* target);
  // Where the weights of a record lie once it is prepared.
  char* weights_of(Word number) const;
  // Free the memories of weights.
  void release(Prepared& prepared) const;

 private:
  void make(const loops::Head& record);
  void transform(Preparer& preparer, Word number, char* to);
  void convert(Preparer& preparer, const format::Raw& raw, const Values& values, char* to);
  void write(const loops::Head& record, Prepared& into, char* weights) const;
  void require_inside(const loops::Head& record, Word primitive, Word argument, Word place) const;

  const library::Onednn& library_;
  const program::Program& program_;
  Objects& objects_;
  Weights& weights_;
  char* weights_at_;
  const std::vector<loops::Four> kernels_;
};

}  // namespace session
