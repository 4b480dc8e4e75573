// A plan of memory, opened: its weights come from the disk while it runs, and its budget can be changed.
#pragma once

#include "session.h"
#include "stream.h"

namespace session {

struct MemoryOptions : StreamOptions {
  const char* library = nullptr;
  bool records = false;  // pages of the library that are needed are written down
  std::uint64_t budget = 0;
  std::optional<Schedule> schedule;  // in place of the plan's own
};

class MemorySession : public Session {
 public:
  // Error: EP_FORMAT, EP_DEVICE, EP_MODEL, EP_INFEASIBLE.
  MemorySession(const std::string& folder, std::unique_ptr<Program> program, MemoryOptions options);

  const Program& program() const override { return *plans_[plan_].program; }
  void* place(const format::Border& border) override { return stream().at(border.buffer, border.offset); }
  void run(const ep_buffer* inputs) override;
  void taken() override;
  double set_budget(std::uint64_t bytes) override;
  void prepare_later() override { stream().fill(); }
  std::vector<ep_span> trace() const override;
  double fact(const std::string& name) const override;

  Stream& stream();  // made anew where making another one failed

 private:
  // The plan, or the one in finer parts beside it.
  struct Plan {
    std::string folder;
    std::unique_ptr<Program> program;
  };
  struct Found {
    std::size_t plan;
    Chosen chosen;
  };
  Found choose(Word budget);
  bool has_finer();
  void add(const std::string& folder, std::unique_ptr<Program> program);
  LibraryPages library_pages() const;
  std::unique_ptr<WeightsFile> weights(std::size_t plan) const;
  void make(std::unique_ptr<WeightsFile> file);
  void use(Found found);

  MemoryOptions options_;
  std::vector<Plan> plans_;  // by coarseness
  library::Onednn& onednn_;
  std::size_t plan_ = 0;  // that runs
  Word row_ = 0;          // of its schedules
  Schedule schedule_;     // with which the next stream is made
  std::unique_ptr<Stream> stream_;
};

}  // namespace session
