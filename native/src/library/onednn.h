// oneDNN, loaded by its file: its C API by the names of its functions, no headers needed.
#pragma once

#include <string>
#include <vector>

#include "../loops/loops.h"
#include "../program/program.h"

namespace library {

constexpr loops::Status INVALID_INDEX = 100;  // of compiled kernels, beside the statuses of oneDNN

// This machine's text, as support/machine.py makes it of the same facts: a plan is not run on another one.
std::string machine();

// The loaded library with one CPU engine; kept until the process ends, as its threads are.
class Onednn {
 public:
  // Load it, once a process for each file. Error: EP_DEVICE.
  //   given: the caller's file, or null; planned: the plan's, or ""
  static Onednn& load(const char* given, const std::string& planned);

  // Error: EP_FORMAT where a plan was made for another version, commit or instruction set.
  void require(const program::Program& program, const std::string& where, const std::string& machine = library::machine()) const;

  template <class Function = loops::Four>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(symbol(name));
  }
  // Call a function of at most so many integer arguments that returns a status; Error: EP_DEVICE where it fails.
  void call(const char* name, Word a = 0, Word b = 0, Word c = 0, Word d = 0, Word e = 0, Word f = 0, Word g = 0) const;
  Word stream() const;                   // a new one, of the calling thread
  void end_stream(Word stream) const;    // nothing for 0
  void set_threads(int count) const;     // of the calling thread
  // The functions of a program's operations, one address each; Error: EP_DEVICE where one is missing.
  std::vector<loops::Function> functions_of(const program::Program& program) const;
  // The addresses of compiled kernels of a program; null for rows that are read from the file. Error: EP_FORMAT.
  static std::vector<loops::Four> kernels_of(const program::Program& program);
  // Words that loops take: its functions, its engine; all else 0.
  loops::Places places() const;
  [[noreturn]] void failed(const std::string& function, Word status) const;
  // Error of a status of `dnnl_primitive_execute` or a compiled kernel.
  [[noreturn]] void failed_execution(Word status) const;

  // An address of its code: to look a function up reads pages of its tables, and others around them.
  const void* inside() const { return inside_; }
  const std::string& path() const { return path_; }
  const std::string& version() const { return version_; }
  const std::string& commit() const { return commit_; }
  const std::string& isa() const { return isa_; }

 private:
  explicit Onednn(const std::string& path);
  void* symbol(const char* name) const;
  std::string path_, version_, commit_, isa_;
  void* handle_ = nullptr;
  const void* inside_ = nullptr;
  Word engine_ = 0;
  loops::Four threads_ = nullptr;
};

}  // namespace library
