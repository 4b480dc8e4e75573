// edgeplan-run: runs a plan folder of a cold start or of memory by the library beside it.
#include <fcntl.h>
#include <signal.h>
#include <strings.h>
#include <unistd.h>

#include <cstdio>
#include <initializer_list>

#include "../include/measure.h"
#include "run.h"

using namespace run;

namespace {

constexpr const char* HELP =
    "Usage: edgeplan-run FOLDER [OPTION]...\n\n"
    "Run a plan folder of a cold start or of memory: edgeplan plan makes them.\n\n"
    "  -i, --input NAME=FILE  Values of an input, .npy; of a single one, FILE will do. Default: seeded random values.\n"
    "  -o, --output DIR       Folder to write the outputs of the last inference to, NAME.npy.\n"
    "  --first DIR            Folder to write those of the first inference to.\n"
    "  -b, --budget SIZE      Memory that a plan of memory runs within, over the idle process: 64MiB.\n"
    "  --budgets SIZE,SIZE    Several of them, one after the other.\n"
    "  --repeat N             Number of inferences, of each budget; 1 to 10000. Default: 1.\n"
    "  --processors N,N       Of a cold start: those that execute, then those that only prepare. Default: any.\n"
    "  --library FILE         oneDNN. Default: EDGEPLAN_ONEDNN, the plan's, or the system's.\n"
    "  --gate FILE            Say \"ready\" before the plan is opened, and wait until the file is there.\n"
    "  --json                 Print one object of JSON.\n"
    "  --help, --version\n\n"
    "The exit code is 0, or what went wrong: 1 unexpected, 2 weights, 3 library or processors, 5 plan, 11 inputs or\n"
    "options, 13 a budget that is too small.\n";
constexpr long MOST_RUNS = 10000;
constexpr double MOST_BYTES = 1LL << 50;
constexpr int READY_INFERENCES = 2;  // after them all code has run
constexpr double NS_PER_MS = 1e6;

struct Given {
  const char *folder = nullptr, *output = nullptr, *first = nullptr, *library = nullptr, *gate = nullptr;
  List<const char*> inputs{};
  List<std::uint64_t> budgets{};
  List<int> processors{};
  long repeat = 1;
  bool json = false;
};

[[noreturn]] void refuse_option(const char* what, const char* where, const char* next = "edgeplan-run --help") {
  refuse(EP_INPUT, what, where, next);
}

// Bytes of a size as 64MB or 64MiB; 0 of what is none.
std::uint64_t size_of(const char* given) {
  constexpr struct {
    const char* name;
    double bytes;
  } UNITS[] = {{"", 1},     {"b", 1},         {"kb", 1e3},       {"mb", 1e6},       {"gb", 1e9},
               {"tb", 1e12}, {"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1LL << 40}};
  const std::size_t digits = std::strspn(given, "0123456789.");
  if (digits == 0 || digits > 22) return 0;
  char* rest = nullptr;
  const double number = std::strtod(text("%.*s", static_cast<int>(digits), given), &rest);
  if (*rest != 0) return 0;
  given += digits;
  for (const auto& unit : UNITS)
    if (strcasecmp(given + std::strspn(given, " "), unit.name) == 0) {
      const double bytes = number * unit.bytes;
      return bytes >= 1 && bytes <= MOST_BYTES ? static_cast<std::uint64_t>(bytes) : 0;
    }
  return 0;
}

// The parts of a list by commas.
template <class Work>
void each_part(char* given, Work work) {
  for (char* part = strtok(given, ","); part != nullptr; part = strtok(nullptr, ",")) work(part);
}

long number_of(const char* given, long least, long most, const char* option) {
  char* rest = nullptr;
  const long found = std::strtol(given, &rest, 10);
  if (*given == 0 || *rest != 0 || found < least || found > most)
    refuse_option(text("'%s' is not in the range %ld to %ld", given, least, most), option);
  return found;
}

void take(Given& given, const char* option, char* value) {
  const auto is = [&](const char* name) { return std::strcmp(option, name) == 0; };
  if (is("-i") || is("--input")) given.inputs.add(value);
  else if (is("-o") || is("--output")) given.output = value;
  else if (is("--first")) given.first = value;
  else if (is("--library")) given.library = value;
  else if (is("--gate")) given.gate = value;
  else if (is("--repeat")) given.repeat = number_of(value, 1, MOST_RUNS, option);
  else if (is("--processors"))
    each_part(value, [&](char* part) { given.processors.add(static_cast<int>(number_of(part, 0, 1 << 20, option))); });
  else if (is("-b") || is("--budget") || is("--budgets"))
    each_part(value, [&](char* part) {
      const std::uint64_t size = size_of(part);
      if (size == 0) refuse_option(text("'%s' is no budget of memory", part), option, "give bytes as in 64MB or 64MiB");
      given.budgets.add(size);
    });
  else refuse_option("there is no such option", option);
}

Given parsed(int count, char** words) {
  Given given;
  for (int k = 1; k < count; ++k) {
    char* word = words[k];
    if (std::strcmp(word, "--help") == 0 || std::strcmp(word, "-h") == 0) {
      output.add("%s", HELP);
      end(0);
    }
    if (std::strcmp(word, "--version") == 0) {
      output.add("edgeplan-run %s\n", EDGEPLAN_VERSION);
      end(0);
    }
    if (std::strcmp(word, "--json") == 0) given.json = true;
    else if (*word != '-') {
      if (given.folder != nullptr) refuse_option("one folder is run at a time", word);
      given.folder = word;
    } else {
      char* value = std::strncmp(word, "--", 2) == 0 ? std::strchr(word, '=') : nullptr;
      if (value != nullptr) *value++ = 0;
      else if (k + 1 < count) value = words[++k];
      else refuse_option("the option needs a value", word);
      take(given, word, value);
    }
  }
  if (given.folder == nullptr) refuse_option("no folder was named", "edgeplan-run FOLDER");
  return given;
}

void require_fitting(const Given& given, bool of_memory) {
  if (of_memory && (given.first != nullptr || given.processors.length > 0))
    refuse_option("a plan of memory has no first inference, and names its processors", "--first, --processors");
  if (!of_memory && given.budgets.length > 0) refuse_option("a plan of a cold start has no budget", "--budgets");
  for (const char* folder : {given.output, given.first})
    if (folder != nullptr) require_folder(folder);
}

// A session with what goes in and out of it.
struct Opened {
  ep_session* session = nullptr;
  List<ep_tensor_info> inputs{}, outputs{};
  List<ep_buffer> from{}, to{};

  double fact(const char* name) const { return ep_fact(session, name); }
  void require(ep_status status) const {
    if (status != EP_OK) refuse(status, ep_last_error(session));
  }
};

// Of all: seeded, so that every process draws the same.
double drawn() {
  static std::uint64_t state = 0;
  state += 0x9E3779B97F4A7C15;  // splitmix64
  std::uint64_t found = (state ^ state >> 30) * 0xBF58476D1CE4E5B9;
  found = (found ^ found >> 27) * 0x94D049BB133111EB;
  return static_cast<double>((found ^ found >> 31) >> 11) * 0x1p-53;
}

template <class T>
void fill(void* to, std::size_t bytes, double from, double width) {
  auto* values = static_cast<T*>(to);
  for (std::size_t k = 0; k < bytes / sizeof(T); ++k) values[k] = static_cast<T>(from + width * drawn());
}

void draw(const ep_tensor_info& info, void* values) {
  const double below = info.below > 0 ? static_cast<double>(info.below) : 1;
  const auto is = [&](const char* dtype) { return std::strcmp(info.dtype, dtype) == 0; };
  if (is("float32")) fill<float>(values, info.bytes, .05, .95);  // no zeros, no denormals
  else if (is("int64")) fill<std::int64_t>(values, info.bytes, 0, below);
  else if (is("int32")) fill<std::int32_t>(values, info.bytes, 0, below);
  else fill<std::uint8_t>(values, info.bytes, 0, below);
}

const char* expected(const Opened& opened) {
  Text all;
  for (const auto& info : opened.inputs) all.add("%s%s", &info == opened.inputs.from ? "" : " and ", described(info));
  return text("correct the input: expected %.*s", static_cast<int>(all.length), all.from);
}

// The file that the command line names for an input; null: none.
const char* file_of(const Opened& opened, const Given& given, const ep_tensor_info& info) {
  const std::size_t length = std::strlen(info.name);
  for (const char* word : given.inputs)
    if (std::strncmp(word, info.name, length) == 0 && word[length] == '=') return word + length + 1;
  return opened.inputs.length == 1 && given.inputs.length == 1 ? given.inputs[0] : nullptr;
}

// Inputs lie one behind the other, at multiples of 64 bytes.
std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }
char* input_memory(std::size_t bytes) { return static_cast<char*>(held(std::aligned_alloc(64, bytes + 64))); }

// Fill memory that is held already, where it is, with the inputs.
void bring_inputs(Opened& opened, const Given& given, char* memory) {
  std::size_t bytes = 0;
  for (const auto& info : opened.inputs) bytes += rounded(info.bytes);
  if (memory == nullptr) memory = input_memory(bytes);
  for (const auto& info : opened.inputs) {
    const char* file = file_of(opened, given, info);
    if (file == nullptr && given.inputs.length > 0)
      refuse(EP_INPUT, text("no file was given for input '%s'", info.name), "--input", expected(opened));
    file != nullptr ? read_array(file, info, memory) : draw(info, memory);
    opened.from.add({memory, info.bytes});
    memory += rounded(info.bytes);
  }
  if (given.inputs.length > opened.inputs.length)
    refuse(EP_INPUT, text("%zu files were given for inputs", given.inputs.length), "--input", expected(opened));
}

Opened open_plan(const Given& given, const char*& refused) {
  Opened opened;
  ep_options options{};
  options.size = sizeof options;
  options.library = given.library;
  options.processors = given.processors.from;
  options.processor_count = given.processors.length;
  options.continuous = -1;
  ep_status status = EP_OK;
  std::size_t tried = 0;
  do {  // within the first budget that is enough
    if (tried < given.budgets.length) options.budget = given.budgets[tried];
    status = ep_open(given.folder, &options, &opened.session);
    if (status == EP_INFEASIBLE && refused == nullptr) refused = text("%s", ep_last_error(nullptr));
  } while (status == EP_INFEASIBLE && ++tried < given.budgets.length);
  if (status != EP_OK) refuse(status, status == EP_INFEASIBLE ? refused : ep_last_error(nullptr));
  ep_tensor_info info;
  for (int k = 0; k < ep_input_count(opened.session); ++k) {
    opened.require(ep_input(opened.session, k, &info));
    opened.inputs.add(info);
  }
  for (int k = 0; k < ep_output_count(opened.session); ++k) {
    opened.require(ep_output(opened.session, k, &info));
    opened.outputs.add(info);
    opened.to.add({nullptr, 0});
  }
  return opened;
}

// One inference; outputs are left where they lie.
void infer(Opened& opened) {
  for (ep_buffer& output : opened.to) output = {nullptr, 0};
  opened.require(ep_run(opened.session, opened.from.from, static_cast<int>(opened.from.length), opened.to.from,
                        static_cast<int>(opened.to.length)));
}

void write_outputs(const Opened& opened, const char* folder, Report& report) {
  if (folder == nullptr) return;
  report.names.length = report.files.length = 0;
  for (std::size_t k = 0; k < opened.outputs.length; ++k) {
    report.files.add(write_array(folder, opened.outputs[k], opened.to[k].data));
    report.names.add(opened.outputs[k].name);
  }
}

// Outputs of the first inference, copied: to write them then would give later kernels time.
List<void*> copies(const Opened& opened) {
  List<void*> made;
  for (const ep_buffer& output : opened.to)
    made.add(std::memcpy(held(std::malloc(output.bytes + 1)), output.data, output.bytes));
  return made;
}

void run_cold(Opened& opened, const Given& given, Report& report) {
  infer(opened);
  report.cold_ms = opened.fact("cold_ms");
  const List<void*> first = given.first != nullptr ? copies(opened) : List<void*>{};
  for (long k = 1; k < given.repeat; ++k) {  // nothing in between
    const std::int64_t began = now_ns();
    infer(opened);
    report.warm_ms.add(static_cast<double>(now_ns() - began) / NS_PER_MS);
  }
  report.peak = memory();
  write_outputs(opened, given.output, report);
  for (std::size_t k = 0; k < first.length; ++k) write_array(given.first, opened.outputs[k], first[k]);
  report.opened_ms = opened.fact("opened_ms");
  report.cache_bytes = opened.fact("cache_bytes");
  report.continuous = opened.fact("continuous") > 0;
  report.layout = ep_text(opened.session, "layout");
  std::size_t count = 0;
  opened.require(ep_trace(opened.session, nullptr, &count));
  auto* spans = static_cast<ep_span*>(held(std::calloc(count + 1, sizeof(ep_span))));
  opened.require(ep_trace(opened.session, spans, &count));
  for (std::size_t k = 0; k < count; ++k)
    report.stages_ms[spans[k].stage] += static_cast<double>(spans[k].end_ns - spans[k].begin_ns) / NS_PER_MS;
}

// The inferences of a budget; whether that was enough.
bool run_budget(Opened& opened, const Given& given, std::uint64_t budget, Report& report, const char*& refused) {
  Phase phase{static_cast<double>(budget), opened.fact("predicted_ms"), 0, 0, 0, {}, {}};
  const std::int64_t began = now_ns();
  if (given.budgets.length > 0) {
    const ep_status status = ep_set_budget(opened.session, budget, &phase.predicted_ms);
    if (status == EP_INFEASIBLE) {
      if (refused == nullptr) refused = text("%s", ep_last_error(opened.session));
      return false;
    }
    opened.require(status);
    phase.replan_ms = static_cast<double>(now_ns() - began) / NS_PER_MS;
  }
  opened.require(ep_prepare_later(opened.session));
  phase.pause_ms = static_cast<double>(now_ns() - began) / NS_PER_MS - phase.replan_ms;
  const double read = opened.fact("bytes_read");
  const bool isolated = opened.fact("isolated") > 0;
  if (!isolated) opened.require(ep_measure_expect(opened.session, given.repeat));
  for (long k = 0; k < given.repeat; ++k) {
    if (isolated && k > 0) opened.require(ep_prepare_later(opened.session));
    const auto started = static_cast<double>(now_ns());
    infer(opened);
    phase.run_ms.add((opened.fact("ended_ns") - started) / NS_PER_MS);
    phase.wait_ms.add(opened.fact("waited_ns") / NS_PER_MS);
    if (k < READY_INFERENCES) report.waited_pages = -waited_pages();
  }
  phase.read_bytes = opened.fact("bytes_read") - read;
  report.phases.add(phase);
  write_outputs(opened, given.output, report);
  return true;
}

void run_memory(Opened& opened, const Given& given, Report& report, const char*& refused) {
  report.others = opened.fact("others");
  report.bytes_per_ms = opened.fact("bytes_per_ms");
  if (given.budgets.length == 0)
    run_budget(opened, given, static_cast<std::uint64_t>(opened.fact("budget_bytes")), report, refused);
  for (const std::uint64_t budget : given.budgets) run_budget(opened, given, budget, report, refused);
  report.waited_pages += waited_pages();
  report.peak = memory();
  report.limit_bytes = opened.fact("limit_bytes");
}

// Be what a process is before it opens a plan: one that holds its inputs. Their memory.
char* get_ready(const Given& given, Report& report) {
  std::size_t bytes = 0;
  const ep_status status = ep_measure_ready(given.folder, given.library, given.gate != nullptr, &bytes);
  if (status != EP_OK) refuse(status, ep_last_error(nullptr));
  auto* inputs = static_cast<char*>(std::memset(input_memory(bytes), 1, bytes));
  if (given.gate != nullptr) {
    dprintf(STDERR_FILENO, "ready\n");
    while (access(given.gate, F_OK) != 0) usleep(5000);
  }
  report.start_peak = memory().peak;
  reset_peak();
  report.idle = memory();
  return inputs;
}

}  // namespace

int main(int count, char** words) {
  signal(SIGPIPE, SIG_IGN);
  int file = 0;  // what the caller has closed is no place for other files
  while (0 <= file && file <= STDERR_FILENO) file = open("/dev/null", O_RDWR);
  close(file);
  const Given given = parsed(count, words);
  if (ep_abi_version() != EP_ABI_VERSION)
    refuse(EP_DEVICE, "the library beside this program is of another version", words[0], "make native");
  Report report;
  report.of_memory = access(text("%s/weights.bin", given.folder), F_OK) == 0;
  require_fitting(given, report.of_memory);
  char* inputs = report.of_memory || given.gate != nullptr ? get_ready(given, report) : nullptr;
  const char* refused = nullptr;
  Opened opened = open_plan(given, refused);
  bring_inputs(opened, given, inputs);
  report.model = ep_text(opened.session, "model");
  report.steps = opened.fact("steps");
  report.threads = opened.fact("threads");
  if (report.of_memory) run_memory(opened, given, report, refused);
  else run_cold(opened, given, report);
  given.json ? tell_json(report, output) : tell(report, output);
  if (refused != nullptr) refuse(EP_INFEASIBLE, refused);
  end(EP_OK);
}
