#include "run.h"

#include <cmath>

using namespace run;

namespace {

constexpr double MIB = 1 << 20, MB = 1e6;
constexpr const char* STAGES[] = {"read", "create", "transform", "execute"};
constexpr std::size_t TABLE_ROWS = 10;  // inferences that are shown one by one
constexpr int READY_INFERENCES = 2;
// Share of the processors' time that other work had, from which on a prediction is unsure.
constexpr double DISTURBED = .1;
// Share of waiting, and of what was predicted, from which on a run is told to be late.
constexpr double LATE = .5, SLOWER = 1.5;

double sum(const List<double>& values) {
  double found = 0;
  for (const double value : values) found += value;
  return found;
}

double least(const List<double>& values) {
  double found = values[0];
  for (const double value : values) found = value < found ? value : found;
  return found;
}

double median(const List<double>& values) {
  List<double> sorted;
  for (const double value : values) sorted.add(value);
  std::qsort(sorted.from, sorted.length, sizeof(double), [](const void* a, const void* b) {
    const double x = *static_cast<const double*>(a), y = *static_cast<const double*>(b);
    return x < y ? -1 : x > y ? 1 : 0;
  });
  const std::size_t half = sorted.length / 2;
  return sorted.length % 2 != 0 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// Milliseconds with two decimals, or as many as two digits other than leading zeros take.
const char* milliseconds(double ms) {
  int digits = 2;
  for (double left = ms; 0 < left && left < .1; left *= 10) ++digits;
  return text("%.*f ms", digits, ms);
}

void add_times(Text& lines, const char* what, const List<double>& times) {
  if (times.length == 0) return;
  lines.add("%s: %s", what, milliseconds(least(times)));
  if (times.length > 1) lines.add(", median %s of %zu", milliseconds(median(times)), times.length);
  lines.add("\n");
}

// How long each inference of a plan with kernels for later runs took.
void add_table(Text& lines, const Report& report) {
  lines.add("inference        ms  kernels\n%9d  %8.2f  cold\n", 1, report.cold_ms);
  const std::size_t shown = report.warm_ms.length < TABLE_ROWS - 1 ? report.warm_ms.length : TABLE_ROWS - 1;
  for (std::size_t k = 0; k < shown; ++k)
    lines.add(k > 0 ? "%9zu  %8.2f  warm\n" : "%9zu  %8.2f  warm, what was left of them prepared first\n", k + 2,
              report.warm_ms[k]);
  if (report.warm_ms.length > shown) lines.add("          and %zu more, warm\n", report.warm_ms.length - shown);
}

void add_cold(Text& lines, const Report& report) {
  lines.add(": %.0f steps, layout %s, %.0f threads, weight cache %.1f MB\n", report.steps, Text().add_escaped(report.layout).ended(),
            report.threads, report.cache_bytes / MB);
  lines.add("cold: %s\ncore-milliseconds: open %.2f", milliseconds(report.cold_ms), report.opened_ms);
  for (int k = 0; k < 4; ++k) lines.add(", %s %.2f", STAGES[k], report.stages_ms[k]);
  lines.add("\n");
  if (report.continuous) add_table(lines, report);
  add_times(lines, "warm", report.warm_ms);
}

void add_phase(Text& lines, const Phase& phase) {
  lines.add("%.1f MiB: %s", phase.budget / MIB, milliseconds(median(phase.run_ms)));
  if (phase.run_ms.length > 1)
    lines.add(" (median of %zu, least %s)", phase.run_ms.length, milliseconds(least(phase.run_ms)));
  lines.add(", predicted %s, %.1f MiB read an inference", milliseconds(phase.predicted_ms),
            phase.read_bytes / static_cast<double>(phase.run_ms.length) / MIB);
  if (phase.replan_ms > 0)
    lines.add("; planned in %.1f ms, ready after %.1f ms more", phase.replan_ms, phase.pause_ms);
  lines.add("\n");
}

// Weights that came late because they were read more slowly than when the plan was made.
void add_lateness(Text& lines, const Phase& phase, double bytes_per_ms) {
  const double ran_ms = sum(phase.run_ms), waited_ms = sum(phase.wait_ms), rate = phase.read_bytes / ran_ms;
  const double expected_ms = phase.predicted_ms * static_cast<double>(phase.run_ms.length);
  if (waited_ms < LATE * ran_ms || ran_ms < SLOWER * expected_ms || rate * SLOWER > bytes_per_ms) return;
  lines.add("weights came late: steps waited for them %.0f %% of the time; they were read at %.0f MB/s, %.0f MB/s when "
            "the plan was made: give more memory, or plan again\n",
            100 * waited_ms / ran_ms, rate / 1e3, bytes_per_ms / 1e3);
}

double most_budget(const Report& report) {
  double most = 0;
  for (const Phase& phase : report.phases) most = phase.budget > most ? phase.budget : most;
  return most;
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / MIB; }

std::int64_t most_of(const Report& report) {
  return report.start_peak > report.peak.peak ? report.start_peak : report.peak.peak;
}

void add_memory(Text& lines, const Report& report) {
  lines.add(": %.0f steps, %.0f threads\n", report.steps, report.threads);
  for (const Phase& phase : report.phases) add_phase(lines, phase);
  if (report.others > DISTURBED)
    lines.add("predictions are unsure: other work had %.0f %% of the processors' time when the plan was made\n",
              100 * report.others);
  for (const Phase& phase : report.phases) add_lateness(lines, phase, report.bytes_per_ms);
  if (report.limit_bytes > 0)
    lines.add("limit %.1f MiB: %lld pages waited for after inference %d\n", report.limit_bytes / MIB,
              static_cast<long long>(report.waited_pages), READY_INFERENCES);
  lines.add("peak %.1f MiB, %.1f before the plan was opened: %.2f over the %.1f of the idle process, budget %.2f; ",
            mib(most_of(report)), mib(report.start_peak), mib(report.peak.peak - report.idle.resident),
            mib(report.idle.resident), most_budget(report) / MIB);
  lines.add("%.1f anonymous, %.1f of files, %.1f of the kernel's tables\n",
            mib(report.peak.anonymous + report.peak.shared), mib(report.peak.of_files), mib(report.peak.tables));
}

// JSON

void add_number(Text& to, double value) { std::isfinite(value) ? to.add("%.10g", value) : to.add("null"); }

void add_numbers(Text& to, const char* name, const List<double>& values) {
  to.add(", \"%s\": [", name);
  for (const double& value : values) {
    if (&value != values.from) to.add(", ");
    add_number(to, value);
  }
  to.add("]");
}

void add_named(Text& to, const char* name, double value) {
  add_number(to.add(", \"%s\": ", name), value);
}

void add_string(Text& to, const char* text) {
  to.add("\"");
  for (; *text != 0; ++text) {
    const auto byte = static_cast<unsigned char>(*text);
    if (byte < 0x20 || byte == 0x7F) to.add("\\u%04x", byte);
    else to.add(byte == '"' || byte == '\\' ? "\\%c" : "%c", byte);
  }
  to.add("\"");
}

void add_phases(Text& to, const Report& report) {
  to.add(", \"phases\": [");
  for (const Phase& phase : report.phases) {
    to.add(&phase == report.phases.from ? "{\"budget_bytes\": %.0f" : ", {\"budget_bytes\": %.0f", phase.budget);
    add_named(to, "predicted_ms", phase.predicted_ms);
    add_named(to, "replan_ms", phase.replan_ms);
    add_named(to, "pause_ms", phase.pause_ms);
    add_named(to, "read_bytes", phase.read_bytes);
    add_numbers(to, "run_ms", phase.run_ms);
    add_numbers(to, "wait_ms", phase.wait_ms);
    to.add("}");
  }
  to.add("]");
}

}  // namespace

void run::tell(const Report& report, Text& lines) {
  lines.add_escaped(report.model);
  report.of_memory ? add_memory(lines, report) : add_cold(lines, report);
}

void run::tell_json(const Report& report, Text& to) {
  add_string(to.add("{\"model\": "), report.model);
  to.add(", \"kind\": \"%s\"", report.of_memory ? "memory" : "cold-start");
  add_named(to, "steps", report.steps);
  add_named(to, "threads", report.threads);
  if (report.of_memory) {
    add_phases(to, report);
    add_named(to, "others", report.others);
    add_named(to, "bytes_per_ms", report.bytes_per_ms);
    add_named(to, "limit_bytes", report.limit_bytes);
    add_named(to, "waited_pages", static_cast<double>(report.waited_pages));
    add_named(to, "start_bytes", static_cast<double>(report.start_peak));
    add_named(to, "idle_bytes", static_cast<double>(report.idle.resident));
  } else {
    add_string(to.add(", \"layout\": "), report.layout);
    to.add(", \"continuous\": %s", report.continuous ? "true" : "false");
    add_named(to, "cache_bytes", report.cache_bytes);
    add_named(to, "cold_ms", report.cold_ms);
    add_numbers(to, "warm_ms", report.warm_ms);
    add_number(to.add(", \"stages_ms\": {\"open\": "), report.opened_ms);
    for (int k = 0; k < 4; ++k) add_named(to, STAGES[k], report.stages_ms[k]);
    to.add("}");
  }
  add_named(to, "peak_bytes", static_cast<double>(report.peak.peak));
  add_named(to, "anonymous_bytes", static_cast<double>(report.peak.anonymous + report.peak.shared));
  add_named(to, "file_bytes", static_cast<double>(report.peak.of_files));
  add_named(to, "table_bytes", static_cast<double>(report.peak.tables));
  to.add(", \"outputs\": {");
  for (std::size_t k = 0; k < report.names.length; ++k) {
    add_string(to.add(k > 0 ? ", " : ""), report.names[k]);
    add_string(to.add(": "), report.files[k]);
  }
  to.add("}}\n");
}
