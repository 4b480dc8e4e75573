#include "onednn.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "../session/error.h"

// Has a loaded library take memory for code from one region, for good; whether it does (code_pool.cpp).
EP_EXPORT int ep_pool_code(const char* library);

using namespace library;
using loops::Four;
using loops::Function;

namespace {

constexpr const char* INSTALL = "pip install 'edgeplan[runtime]', or name oneDNN's library with EDGEPLAN_ONEDNN";
constexpr int MAJOR = 3, CPU = 1, IN_ORDER = 1, UNIMPLEMENTED = 3, IMPLEMENTATION_NAME = 8;
constexpr const char* STATUSES[] = {"success",       "out of memory", "invalid arguments",
                                    "unimplemented", "last implementation reached", "runtime error", "not required"};

// `dnnl_version_t`.
struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};

// `dnnl_cpu_isa_t`; its bits accumulate.
constexpr struct {
  int bits;
  const char* name;
} ISAS[] = {{0x1, "sse41"},           {0x3, "avx"},
            {0x7, "avx2"},            {0xF, "avx2_vnni"},
            {0x1F, "avx2_vnni_2"},    {0x27, "avx512_core"},
            {0x67, "avx512_core_vnni"}, {0xE7, "avx512_core_bf16"},
            {0x1EF, "avx512_core_fp16"}, {0xFEF, "avx512_core_amx"},
            {0x1FEF, "avx512_core_amx_fp16"}};

std::string isa_name(int bits) {
  for (const auto& isa : ISAS)
    if (isa.bits == bits) return isa.name;
  char text[16];
  std::snprintf(text, sizeof text, "0x%x", static_cast<unsigned>(bits));
  return text;
}

// libgomp reads its environment once, when it is loaded: threads wait for each other awake for about as long as
// waking takes, then asleep. Waiting awake takes a shared core's time from the thread itself (docs/runtime.md).
class BoundedWaits : Fixed {
 public:
  BoundedWaits() : sets_(std::getenv(NAME) == nullptr && std::getenv("OMP_WAIT_POLICY") == nullptr) {
    if (sets_) setenv(NAME, "1000", 0);
  }
  ~BoundedWaits() {
    if (sets_) unsetenv(NAME);
  }

 private:
  static constexpr const char* NAME = "GOMP_SPINCOUNT";
  bool sets_;
};

// In place of a function that the library lacks and does without.
loops::Status nothing(Word, Word, Word, Word) { return 0; }

std::mutex loading;
std::map<std::string, std::unique_ptr<Onednn>>& loaded() {
  static auto* all = new std::map<std::string, std::unique_ptr<Onednn>>;  // never freed: its threads stay
  return *all;
}

}  // namespace

Onednn& Onednn::load(const char* given, const std::string& planned) {
  const std::lock_guard<std::mutex> locked(loading);
  std::string problems;
  const char* named = std::getenv("EDGEPLAN_ONEDNN");
  const std::string chosen = given != nullptr ? given : named != nullptr ? named : "";
  for (const std::string& path : chosen.empty() ? std::vector<std::string>{planned, "libdnnl.so.3"} : std::vector{chosen}) {
    if (path.empty()) continue;
    if (const auto found = loaded().find(path); found != loaded().end()) return *found->second;
    try {
      std::unique_ptr<Onednn> made(new Onednn(path));
      return *(loaded()[path] = std::move(made));
    } catch (const Error& error) {
      problems += (problems.empty() ? "" : "; ") + error.what;
    }
  }
  throw Error{EP_DEVICE, "oneDNN is not installed", problems, INSTALL};
}

Onednn::Onednn(const std::string& path) : path_(path) {
  const BoundedWaits waits;
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) throw Error{EP_DEVICE, dlerror(), path, INSTALL};
  ep_pool_code(path.c_str());
  const auto version_of = function<const Version* (*)()>("dnnl_version");
  const auto isa_of = function<int (*)()>("dnnl_get_effective_cpu_isa");
  if (version_of == nullptr || isa_of == nullptr) throw Error{EP_DEVICE, path + ": it is no oneDNN", path, INSTALL};
  inside_ = reinterpret_cast<const void*>(version_of);
  const Version& version = *version_of();
  version_ = std::to_string(version.major) + "." + std::to_string(version.minor) + "." + std::to_string(version.patch);
  if (version.major != MAJOR) throw Error{EP_DEVICE, path + ": version " + version_ + ", not 3.x", path, INSTALL};
  commit_ = version.hash;
  isa_ = isa_name(isa_of());
  threads_ = function("omp_set_num_threads");
  call("dnnl_engine_create", loops::address(&engine_), CPU, 0);
}

void* Onednn::symbol(const char* name) const { return dlsym(handle_, name); }

void Onednn::call(const char* name, Word a, Word b, Word c, Word d, Word e, Word f, Word g) const {
  const auto found = function<Function>(name);
  const auto status = static_cast<loops::Status>(
      found != nullptr ? found(a, b, c, d, e, f, g, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) : UNIMPLEMENTED);
  if (status != 0) failed(name, status);
}

Word Onednn::stream() const {
  Word made = 0;
  call("dnnl_stream_create", loops::address(&made), engine_, IN_ORDER);
  return made;
}

void Onednn::end_stream(Word stream) const {
  if (stream != 0) function("dnnl_stream_destroy")(stream, 0, 0, 0);
}

void Onednn::set_threads(int count) const {
  if (threads_ != nullptr) threads_(count, 0, 0, 0);
}

void Onednn::require(const program::Program& program, const std::string& where, const std::string& machine) const {
  const format::Facts& facts = program.facts();
  std::string wrong;
  const auto differ = [&](const char* name, const std::string& here, const std::string& planned) {
    if (here != planned) wrong += (wrong.empty() ? "" : "; ") + (name + (" is " + here) + ", the plan is for " + planned);
  };
  if (machine != program.text(facts.machine)) wrong = "it was made on another machine";
  differ("library", version_, program.text(facts.version));
  differ("commit", commit_, program.text(facts.commit));
  differ("isa", isa_, program.text(facts.isa));
  if (!wrong.empty()) throw Error{EP_FORMAT, "the plan cannot be run here: " + wrong, where, program.plan_again()};
}

std::vector<Function> Onednn::functions_of(const program::Program& program) const {
  std::vector<Function> found;
  for (const Word offset : program.rows<Word>(format::FUNCTIONS)) {
    const std::string name = program.text(offset);
    const bool of_threads = name == "omp_set_num_threads";
    void* address = of_threads || name.rfind("dnnl_", 0) == 0 ? symbol(name.c_str()) : nullptr;
    if (address == nullptr && !of_threads) throw Error{EP_DEVICE, "this oneDNN has no function " + name, path_, INSTALL};
    found.push_back(reinterpret_cast<Function>(address != nullptr ? address : reinterpret_cast<void*>(nothing)));
  }
  return found;
}

std::vector<Four> Onednn::kernels_of(const program::Program& program) {
  static void* own = [] {
    Dl_info about;
    return dladdr(reinterpret_cast<const void*>(ep_abi_version), &about) != 0 ? dlopen(about.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  }();
  std::vector<Four> found;
  for (const Word offset : program.rows<Word>(format::KERNELS)) {
    const std::string name = program.text(offset);
    const bool rows = name.rfind("rows_by_", 0) == 0;
    void* address = rows || own == nullptr ? nullptr : dlsym(own, ("ep_kernel_" + name).c_str());
    if (address == nullptr && !rows)
      throw Error{EP_FORMAT, "there is no kernel '" + name + "'", "the compiled steps of the program", program.plan_again()};
    found.push_back(reinterpret_cast<Four>(address));
  }
  return found;
}

loops::Places Onednn::places() const {
  loops::Places found{};
  found.at_engine = engine_;
  found.fn_query = function("dnnl_primitive_desc_query");
  found.fn_next = function("dnnl_primitive_desc_next_impl");
  found.fn_memory = function("dnnl_memory_create");
  found.fn_execute = function("dnnl_primitive_execute");
  found.fn_place = function("dnnl_memory_set_data_handle");
  found.what_name = IMPLEMENTATION_NAME;
  return found;
}

void Onednn::failed(const std::string& function, Word status) const {
  const auto number = static_cast<std::size_t>(status);
  const char* why = number < std::size(STATUSES) ? STATUSES[number] : "an unknown status";
  throw Error{EP_DEVICE, function + " failed: " + why, "oneDNN " + version_,
              "report the model; ONEDNN_VERBOSE=all prints what the library was asked"};
}

void Onednn::failed_execution(Word status) const {
  if (status == INVALID_INDEX)
    throw Error{EP_MODEL, "an index lies outside the axis that it picks from", "the model, run", "correct the inputs"};
  failed("dnnl_primitive_execute", status);
}
