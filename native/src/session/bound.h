// The calls of a program's steps bound to memory: kernels made once, and of each step the addresses of its operands alone.
//
// The memories that a primitive is given belong to its kernel: before each call the loop points them to the operands of
// the step. So another schedule changes a table of addresses, and nothing of the library's.
#pragma once

#include <memory>
#include <vector>

#include "objects.h"
#include "pages.h"
#include "reader.h"
#include "schedules.h"

namespace session {

// Rows of a table in the file of weights, which a step reads as its indices name them.
class Rows : Fixed {
 public:
  // block: where the table begins in the file, its rows, the bytes of one, and how many are picked
  Rows(const WeightsFile& file, const Word* block, bool wide);
  // As a kernel is called, with the addresses of indices and target; Error: EP_MODEL.
  static loops::Status call(Word rows, Word, Word, Word operands);

 private:
  Word index(Word indices, Word place) const;
  void read(Word row);
  const WeightsFile& file_;
  const Word at_, rows_, bytes_, count_;
  const bool wide_;
  const Mapped pages_;  // room for a row where it lies in the file
};

class BoundCalls : Fixed {
 public:
  // Make the kernels; pages of the library that only this needs are dropped again. Error: EP_DEVICE.
  BoundCalls(const library::Onednn& onednn, const program::Program& program, const WeightsFile& file, LibraryPages& pages);
  ~BoundCalls();

  // Give all operands their addresses; weights lie in the arena, or where the file is mapped (else null).
  void place(const Schedule& schedule, const char* arena, const char* mapped);
  // Run steps from one on to before another. Error: EP_DEVICE, EP_MODEL.
  void run(Word first, Word end);

  std::vector<Word> times;  // begin and end of each step, ns

 private:
  void make(Word kernel);
  loops::Call primitive_call(const Word* row, Word count);
  loops::Call kernel_call(Word kernel, const Word* row);
  void require_inside(const format::Step& step) const;
  void bind();
  void destroy();

  const library::Onednn& onednn_;
  const program::Program& program_;
  const WeightsFile& file_;
  Objects objects_;
  const std::vector<loops::Four> kernels_;
  loops::Own own_{};
  std::vector<Word> memories_;
  std::vector<std::unique_ptr<Word[]>> arguments_;
  std::vector<std::unique_ptr<Rows>> rows_;
  std::vector<loops::Call> calls_;
  std::vector<std::size_t> first_call_, first_reach_;  // of each kernel, and the end
  std::vector<Word> reaches_;                          // bytes of memory that arguments of primitives reach
  std::vector<loops::Item> items_;
  std::vector<Word> operands_;
};

}  // namespace session
