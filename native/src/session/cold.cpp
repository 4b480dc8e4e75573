// A cold start: preparation starts when a plan is opened, in the threads that it names; the first run is the cold start
// that was planned, later ones are warm (NNV12 section 3).
#include <algorithm>
#include <cmath>
#include <future>

#include "../loops/threads.h"
#include "lanes.h"
#include "processors.h"
#include "reading_ahead.h"
#include "session.h"

using namespace session;
using library::Onednn;

namespace {

constexpr double NS_PER_MS = 1e6;

// Processors that execute, and those that only prepare, as asymmetric chips have them.
struct Processors {
  std::vector<int> executing, preparing;

  std::vector<int> all() const {
    std::vector<int> together = executing;
    together.insert(together.end(), preparing.begin(), preparing.end());
    return together;
  }
};

Processors chosen(const Program& program, const ep_options& options) {
  const format::Facts& facts = program.facts();
  const auto lanes = size(program.rows<Word>(format::BOUNDS).length / 2);
  const auto executing = size(facts.threads);
  const std::size_t preparing = facts.equal_cores != 0 ? 0 : lanes - 1;
  const std::size_t count = options.processors != nullptr ? options.processor_count : 0;
  const std::vector<int> named(options.processors, options.processors + count);
  const std::vector<int> found = named.empty() ? processors_of(0) : named;
  if (found.size() < executing + preparing) {
    const std::size_t first = std::min(found.size(), executing);
    throw Error{
        EP_DEVICE,
        "the plan needs " + std::to_string(executing) + " processors to execute and " + std::to_string(preparing) +
            " beside them to prepare, there are " + std::to_string(first) + " and " +
            std::to_string(found.size() - first),
        named.empty() ? "processors that this process may use" : "the processors named",
        "name the device that it was planned for with --device, allow more processors, or plan the model again"};
  }
  const auto middle = found.begin() + static_cast<std::ptrdiff_t>(executing);
  Processors all{{found.begin(), middle}, {middle, middle + static_cast<std::ptrdiff_t>(preparing)}};
  std::sort(all.executing.begin(), all.executing.end());  // cores of one class stand for each other
  std::sort(all.preparing.begin(), all.preparing.end());
  return all;
}

class Cold final : public Session {
 public:
  Cold(const std::string& folder, std::unique_ptr<Program> program, const ep_options& options, Word begun_ns);

  const Program& program() const override { return *program_; }
  void* place(const format::Border& border) override { return memory_.data() + border.offset; }
  void run(const ep_buffer* inputs) override;
  void ended() override;
  void prepare_later() override;
  std::vector<ep_span> trace() const override { return lanes_.spans(); }
  double fact(const std::string& name) const override;

 private:
  template <class Work>
  void starting(Work work);
  void run_cold();
  void run_later();
  void require_started() const;

  std::unique_ptr<Program> program_;
  const format::Facts& facts_;
  const std::string folder_;
  const Word begun_ns_;
  const bool continuous_;
  std::future<Onednn*> loading_;
  Processors processors_;
  Pinned kept_;  // the thread that opens the plan, until it is closed
  Weights weights_;
  Word arrived_ = 0, opened_ns_ = 0, ended_ns_ = 0;
  ReadingAhead reading_;
  Region memory_;
  const std::string machine_;
  Onednn& library_;
  Objects objects_;
  Preparation preparation_;
  mutable Lanes lanes_;
  bool ran_ = false;
  std::string failed_;
};

// The library is loaded beside all that does not need it.
std::future<Onednn*> loading(const Program& program, const ep_options& options) {
  return std::async(std::launch::async,
                    [&] { return &Onednn::load(options.library, program.text(program.facts().library)); });
}

Cold::Cold(const std::string& folder, std::unique_ptr<Program> program, const ep_options& options, Word begun_ns)
    : program_(std::move(program)),
      facts_(program_->facts()),
      folder_(folder),
      begun_ns_(begun_ns),
      continuous_(options.continuous < 0 ? facts_.continuous != 0 : options.continuous != 0),
      loading_(loading(*program_, options)),
      processors_(chosen(*program_, options)),
      kept_(processors_.all()),
      weights_(*program_, folder),
      reading_(weights_, facts_.steps, arrived_),
      memory_(facts_.arena_bytes + facts_.weights_bytes),
      machine_(library::machine()),
      library_(*loading_.get()),
      objects_(library_, *program_, memory_.data()),
      preparation_(library_, *program_, objects_, weights_, memory_.data() + facts_.arena_bytes),
      lanes_(library_, *program_, preparation_, options.fixed == 0, processors_.preparing) {
  if (!kept_.done())
    throw Error{EP_DEVICE, "the processors named cannot be used", folder, "name some that this machine has"};
  library_.require(*program_, folder, machine_);
  lanes_.start(arrived_);
  opened_ns_ = loops::now_ns();
}

// A part of the cold start; where it fails, nothing goes on.
template <class Work>
void Cold::starting(Work work) {
  try {
    work();
  } catch (const Error& error) {
    failed_ = error.what;
    lanes_.stop();
    throw;
  } catch (...) {
    failed_ = "something unknown was thrown";
    lanes_.stop();
    throw;
  }
}

void Cold::run(const ep_buffer* inputs) {
  require_started();
  copy_in(inputs);
  if (ran_)
    run_later();
  else
    starting([this] { run_cold(); });
  weights_.require_unchanged();
}

void Cold::require_started() const {
  if (!failed_.empty())
    throw Error{EP_MODEL, "the cold start of this session failed: " + failed_, folder_, "open the plan again"};
}

void Cold::run_cold() {
  weights_.require_unchanged();  // to touch what was cut off would end the process
  const Word steps = facts_.steps, preparing = program_->rows<Word>(format::BOUNDS).length / 2 - 1;
  const bool equal = facts_.equal_cores != 0;
  const Word narrow = equal ? std::max<Word>(1, facts_.threads - preparing) : facts_.threads;
  const Pinned pinned(equal ? std::vector<int>{} : processors_.executing);
  library_.set_threads(static_cast<int>(narrow));
  lanes_.execute(0, std::min(facts_.widen_from, steps), narrow);
  if (facts_.widen_from < steps) {
    lanes_.finish_cold();
    pinned.release();  // threads that OpenMP starts from here on inherit it
    library_.set_threads(static_cast<int>(facts_.threads));
    lanes_.execute(facts_.widen_from, steps, narrow);
  }
  ran_ = true;
}

void Cold::run_later() {
  weights_.require_unchanged();
  lanes_.finish_later();
  library_.set_threads(static_cast<int>(facts_.threads));
  lanes_.execute_later();
}

// Last, so that outputs do not wait for kernels of later runs.
void Cold::ended() {
  if (ended_ns_ == 0) ended_ns_ = loops::now_ns();
  if (continuous_) lanes_.begin_later();
}

void Cold::prepare_later() {
  require_started();
  if (!ran_) starting([this] { lanes_.finish_cold(); });
  lanes_.finish_later();
  weights_.require_unchanged();
}

double Cold::fact(const std::string& name) const {
  const auto since = [this](Word then) { return then == 0 ? 0 : static_cast<double>(then - begun_ns_) / NS_PER_MS; };
  const std::pair<const char*, double> known[] = {
      {"threads", static_cast<double>(facts_.threads)}, {"steps", static_cast<double>(facts_.steps)},
      {"cold_ms", since(ended_ns_)},                    {"opened_ms", since(opened_ns_)},
      {"begun_ns", static_cast<double>(begun_ns_)},     {"checked", weights_.checks()},
      {"cache_bytes", static_cast<double>(facts_.cache_bytes)},
      {"continuous", continuous_},                      {"widened", static_cast<double>(facts_.widen_from)}};
  for (const auto& [known_name, value] : known)
    if (name == known_name) return value;
  return std::nan("");
}

}  // namespace

std::unique_ptr<Session> session::open_cold(const std::string& folder, std::unique_ptr<Program> program,
                                            const ep_options& options, Word begun_ns) {
  return std::make_unique<Cold>(folder, std::move(program), options, begun_ns);
}
