// A plan that is open: what sessions of all kinds have in common. `abi.cpp` guards every call: one thread at a time,
// no fork, exceptions turned into statuses.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../../include/edgeplan.h"
#include "../library/onednn.h"
#include "../program/program.h"
#include "error.h"

namespace session {

using program::Program;
class Stream;
struct StreamOptions;

class Session {
 public:
  virtual ~Session() = default;
  virtual const Program& program() const = 0;
  virtual void* place(const format::Border& border) = 0;
  // Error: EP_MODEL, EP_DEVICE. Inputs are copied in (`begin`), then steps run; outputs lie at their places afterwards.
  virtual void run(const ep_buffer* inputs) = 0;
  // Outputs were copied: their memory may be used again. Where one was not, this is called before the next run.
  virtual void taken() {}
  // The end of a run, behind all that the caller waits for.
  virtual void ended() {}
  virtual double set_budget(std::uint64_t bytes);  // predicted ms; Error: EP_INFEASIBLE
  virtual Stream& stream();                            // of a plan of memory; Error: EP_INPUT
  virtual void prepare_later() = 0;
  virtual std::vector<ep_span> trace() const = 0;
  virtual double fact(const std::string& name) const = 0;  // NaN where it knows none

 protected:
  void copy_in(const ep_buffer* inputs);
};

std::unique_ptr<Session> open_cold(const std::string& folder, std::unique_ptr<Program> program, const ep_options& options,
                                   Word begun_ns);
std::unique_ptr<Session> open_memory(const std::string& folder, std::unique_ptr<Program> program, const ep_options& options);
std::unique_ptr<Session> open_memory(const std::string& folder, std::unique_ptr<Program> program, StreamOptions options);

}  // namespace session
