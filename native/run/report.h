// What a run is told by: lines, or one object of JSON with the same.
#pragma once

#include "process.h"

namespace run {

// Inferences within one budget of memory.
struct Phase {
  double budget, predicted_ms;
  double replan_ms, pause_ms;  // to choose another schedule (0: none), and until the first inference could begin
  double read_bytes;
  List<double> run_ms, wait_ms;  // of each inference, and how long steps waited for weights in it
};

struct Report {
  const char *model = "", *layout = "";
  double steps = 0, threads = 0;
  // of a cold start
  bool continuous = false;  // there are kernels of their own for later inferences
  double cache_bytes = 0, cold_ms = 0;
  List<double> warm_ms{};
  double opened_ms = 0, stages_ms[4] = {};  // as ep_span numbers them
  // of a plan of memory
  bool of_memory = false;
  List<Phase> phases{};
  double others = 0, bytes_per_ms = 0, limit_bytes = 0;  // limit 0: it leaves room, or there is none
  std::int64_t waited_pages = 0, start_peak = 0;
  Memory idle{}, peak{};
  // outputs that were written: names and files
  List<const char*> names{}, files{};
};

Text lines_of(const Report& report);
Text json_of(const Report& report);

}  // namespace run
