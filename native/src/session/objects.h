// The library's objects of one program, each made once, when first needed, by whichever thread needs it.
#pragma once

#include <string>
#include <vector>

#include "../library/onednn.h"

namespace session {

constexpr Word SCRATCHPAD = 80;  // among the arguments of `dnnl_primitive_execute`

class Objects : Fixed {
 public:
  // `memory`: where the session's memory begins, of which operations know offsets. Error: EP_DEVICE.
  Objects(const library::Onednn& library, const program::Program& program, void* memory);
  ~Objects() { free(); }

  const loops::Places& places() const { return places_; }
  Word handle(Word number) const { return handles_[size(number)]; }

  // Make a group's object, or wait for the thread that is at it. What it is made from must be there. Error: EP_DEVICE.
  void ensure(Word group);
  // The same, with all that it is made from, of which groups were met already.
  void make(Word group, std::vector<Word>&& met = {});
  // Handles of a row of primitives: itself, and its descriptor behind it.
  Word primitive(Word row);
  // A memory over bytes, and its end.
  Word memory(Word descriptor, Word address) const;
  // Bytes of an argument that a primitive reaches, by handles: from the beginning of a memory to the end of what the
  // primitive says of it, or else the descriptor of the memory.
  Word reach(Word primitive, Word argument, Word descriptor) const;
  // What a primitive needs to work in, by its handle: descriptor and bytes.
  std::pair<Word, Word> scratchpad(Word primitive) const;
  // A primitive that needs memory to work in is given some, among pairs of an argument's number and something; Error:
  // EP_FORMAT.
  void require_scratchpad(Word primitive, const Word* pairs, Word count) const;
  // Of an operation that makes a memory: the handle of its descriptor, its offset.
  std::pair<Word, Word> memory_of(Word handle) const;
  void destroy_memory(Word memory) const { destroy_memory_(memory, 0, 0, 0); }
  // Free all objects; then they can be made again.
  void free();
  // Free all but primitives and memories, of what nothing else will be asked any more.
  void free_makings();

 private:
  Word argument(loops::Role role, Word value);
  loops::Status operate(Word operation);
  loops::Status walk(Word described, const char* wanted) const;
  void destroy(const char* kind, Word first, Word last, Word apart);
  [[noreturn]] void fail(Word operation, Word status) const;
  std::string implementation(Word operation) const;
  Word reach(Word described) const;

  const library::Onednn& library_;
  const program::Program& program_;
  const program::Layout layout_;
  loops::Places places_;
  const loops::Array<const Word> kinds_, function_of_, made_, values_, starts_;
  const loops::Array<const loops::Role> roles_;
  const loops::Array<const float> floats_;
  const std::vector<loops::Function> functions_;
  std::vector<Word> handles_, states_, scratch_;
  loops::Four destroy_memory_, query_;
  Word (*query_argument_)(Word, Word, Word);
  std::size_t (*bytes_of_)(Word), (*bytes_of_type_)(Word);
};

}  // namespace session
