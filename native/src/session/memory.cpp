// A plan of memory, opened: its weights come from the disk while it runs, and its budget can be changed.
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "session.h"
#include "stream.h"

using namespace session;

namespace {

constexpr Word MIB = 1 << 20;

Word budget_of(std::uint64_t bytes) { return static_cast<Word>(std::min<std::uint64_t>(bytes, std::uint64_t{1} << 60)); }

Error too_small(Word budget, Word least) {
  char text[128];
  std::snprintf(text, sizeof text, "%.2f MiB is not enough: the least is %.2f MiB over idle for the slices of this plan",
                static_cast<double>(budget) / MIB, static_cast<double>(least) / MIB);
  const std::string enough = std::to_string((least + MIB - 1) / MIB);
  return {EP_INFEASIBLE, text, "--budgets",
          "give " + enough + "MiB or more, or plan the model again with finer slices: edgeplan plan memory"};
}

Runs runs_of(const Program& program, format::Id id) {
  const auto rows = program.rows<Word>(id);
  return Runs(rows.begin(), rows.end());
}

struct Chosen {
  Word row;  // of SCHEDULES
  Schedule schedule;
};

constexpr double AS_FAST = 1.001;  // of predicted times: no difference

// Of weights, as memory holds them, that are read in each inference: those that do not stay.
Word read_bytes(const Program& program, const Schedule& schedule) {
  const auto steps = program.rows<format::Step>(format::STEPS);
  Word found = 0;
  for (Word k = 0; k < steps.length; ++k) {
    const auto step = size(k);
    if (schedule.weights[step] >= 0 && !schedule.stays(step)) found += steps[k].weight_bytes;
  }
  return found;
}

// Keep weights that are read in each inference in more memory, the largest first; they lie behind the arena.
void fill(const Program& program, Schedule& schedule, Word room) {
  const auto steps = program.rows<format::Step>(format::STEPS);
  std::vector<Word> order(schedule.weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](Word a, Word b) { return steps[a].weight_bytes > steps[b].weight_bytes; });
  const Word most = schedule.arena_bytes + room;
  for (const Word k : order) {
    const auto step = size(k);
    const Word at = rounded(schedule.arena_bytes, PAGE);
    if (schedule.weights[step] < 0 || schedule.stays(step) || at + steps[k].weight_bytes > most) continue;
    schedule.weights[step] = at;
    schedule.after[step] = format::NOTHING;
    schedule.again[step] = k;
    schedule.arena_bytes = at + steps[k].weight_bytes;
  }
}

// A stored schedule; row 0 is the plan's own.
Schedule stored(const Program& program, Word row) {
  const Word steps = program.facts().steps, buffers = program.rows<format::Buffer>(format::BUFFERS).length;
  const std::int32_t* from = program.rows<std::int32_t>(format::PLACES).from + row * (buffers + 3 * steps);
  const auto cut = [&from](Word count, Word unit) {
    std::vector<Word> found(from, from + count);
    for (Word& value : found) value = value < 0 ? value : unit * value;
    from += count;
    return found;
  };
  Schedule found;
  found.back_to_back = program.facts().isolated == 0;
  found.arena_bytes = program.rows<format::Schedule>(format::SCHEDULES)[row].arena_bytes;
  found.buffers = cut(buffers, format::UNIT);
  found.weights = cut(steps, format::UNIT);
  found.after = cut(steps, 1);
  found.again = cut(steps, 1);
  return found;
}

// The fastest schedule stored for a budget (bytes over idle), or less; of those as fast the one that reads least once
// what the budget leaves is filled with weights that it would read in each inference.
std::optional<Chosen> fitting(const Program& program, Word budget) {
  const auto rows = program.rows<format::Schedule>(format::SCHEDULES);
  const auto fits = [&](Word row) { return rows[row].budget_bytes <= budget; };
  double fastest = 0;
  for (Word row = 1, found = 0; row < rows.length; ++row)
    if (fits(row)) fastest = found++ == 0 ? rows[row].predicted_ms : std::min(fastest, rows[row].predicted_ms);
  std::optional<Chosen> best;
  Word least = 0;
  for (Word row = 1; row < rows.length; ++row) {
    if (!fits(row) || rows[row].predicted_ms > fastest * AS_FAST) continue;
    Schedule schedule = stored(program, row);
    const Word bytes = read_bytes(program, schedule) + rows[row].budget_bytes;
    if (best && bytes >= least) continue;
    best = Chosen{row, std::move(schedule)};
    least = bytes;
  }
  if (best) fill(program, best->schedule, budget - rows[best->row].budget_bytes);
  return best;
}

// The least budget that a schedule is stored for.
Word least_budget(const Program& program) {
  const auto rows = program.rows<format::Schedule>(format::SCHEDULES);
  return rows[rows.length > 1 ? 1 : 0].budget_bytes;  // by ascending budget
}

class Memory final : public Session {
 public:
  // Error: EP_FORMAT, EP_DEVICE, EP_MODEL, EP_INFEASIBLE.
  Memory(const std::string& folder, std::unique_ptr<Program> program, StreamOptions options)
      : options_(std::move(options)),
        onednn_(library::Onednn::load(options_.library, program->text(program->facts().library))) {
    add(folder, std::move(program));
    if (options_.budget > 0)
      use(choose(budget_of(options_.budget)));
    else
      schedule_ = options_.schedule ? *options_.schedule : stored(this->program(), 0);
    stream();
  }

  const Program& program() const override { return *plans_[plan_].program; }
  void* place(const format::Border& border) override { return stream().at(border.buffer, border.offset); }
  void run(const ep_buffer* inputs) override { stream().run([&] { copy_in(inputs); }); }
  void taken() override {
    if (stream_ != nullptr) stream_->taken();
  }

  double set_budget(std::uint64_t bytes) override {
    Found found = choose(budget_of(bytes));
    if (found.plan != plan_) {
      auto file = weights(found.plan);
      stream_.reset();  // both at once would take too much
      use(std::move(found));
      make(std::move(file));
    } else {
      if (!(found.chosen.schedule == stream().schedule())) stream().apply(found.chosen.schedule);
      use(std::move(found));
    }
    return program().rows<format::Schedule>(format::SCHEDULES)[row_].predicted_ms;
  }

  void prepare_later() override { stream().fill(); }

  std::vector<ep_span> trace() const override {
    std::vector<ep_span> found;
    if (stream_ == nullptr || !stream_->ran()) return found;
    const std::vector<Word>& times = stream_->times();
    for (std::size_t k = 0; k < times.size(); k += 2)
      found.push_back({0, static_cast<std::int32_t>(k / 2), EXECUTE, 0, times[k], times[k + 1]});
    return found;
  }

  double fact(const std::string& name) const override {
    const format::Facts& facts = program().facts();
    const format::Schedule& schedule = program().rows<format::Schedule>(format::SCHEDULES)[row_];
    const auto number = [](Word value) { return static_cast<double>(value); };
    if (name == "threads") return number(facts.threads);
    if (name == "steps") return number(facts.steps);
    if (name == "budget_bytes") return number(schedule.budget_bytes);
    if (name == "predicted_ms") return schedule.predicted_ms;
    if (name == "bytes_per_ms") return facts.bytes_per_ms;
    if (name == "others") return facts.others;
    if (name == "limit_bytes") return number(std::max<Word>(0, narrow_limit(program())));
    if (name == "isolated") return number(facts.isolated);
    if (stream_ == nullptr) return std::nan("");
    if (name == "bytes_read") return number(stream_->bytes_read());
    if (name == "waited_ns") return number(stream_->waited_ns());
    if (name == "direct") return stream_->direct();
    if (name == "streamed_bytes") return number(stream_->streamed_bytes());
    if (name == "widened_per_ms") return stream_->widened_per_ms();
    if (name == "run_ns") return number(stream_->began_ns());
    if (name == "ended_ns") return stream_->ran() && facts.steps > 0 ? number(stream_->times().back()) : 0;
    return std::nan("");
  }

  // Made anew where making another one failed.
  Stream& stream() override {
    if (stream_ == nullptr) make(weights(plan_));
    return *stream_;
  }

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

  // The fastest stored schedule that a budget is enough for, of the coarsest plan that has any.
  Found choose(Word budget) {
    Word least = budget_of(~std::uint64_t{0});
    for (std::size_t plan = 0; plan == 0 || (plan == 1 && has_finer()); ++plan) {
      if (auto chosen = fitting(*plans_[plan].program, budget)) return {plan, std::move(*chosen)};
      least = std::min(least, least_budget(*plans_[plan].program));
    }
    throw too_small(budget, least);
  }

  bool has_finer() {
    const std::string folder = plans_.front().folder + "/finer";
    struct stat found;
    if (plans_.size() > 1) return true;
    if (stat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) return false;
    add(folder, std::make_unique<Program>(folder + "/program.bin"));
    return true;
  }

  void add(const std::string& folder, std::unique_ptr<Program> program) {
    if (program->header().kind != format::MEMORY) program->damaged("it is of no plan of memory");
    plans_.push_back({folder, std::move(program)});
  }

  LibraryPages library_pages() const {
    const void* inside = onednn_.inside();
    Runs running = runs_of(program(), format::PAGES_RUNNING);
    if (options_.records || running.empty() || narrow_limit(program()) == format::NOTHING)
      return LibraryPages(inside, options_.records);
    return LibraryPages(inside, runs_of(program(), format::PAGES_MAKING), std::move(running));
  }

  std::unique_ptr<WeightsFile> weights(std::size_t plan) const {
    onednn_.require(*plans_[plan].program, plans_[plan].folder);
    return std::make_unique<WeightsFile>(plans_[plan].folder, *plans_[plan].program);
  }

  // Pages of the program that checking it and making kernels have mapped are given back.
  void make(std::unique_ptr<WeightsFile> file) {
    program().drop_pages();
    stream_ = std::make_unique<Stream>(onednn_, program(), std::move(file), library_pages(), options_, schedule_);
    program().drop_pages();
  }

  void use(Found found) {
    plan_ = found.plan;
    row_ = found.chosen.row;
    schedule_ = std::move(found.chosen.schedule);
  }

  StreamOptions options_;
  std::vector<Plan> plans_;  // by coarseness
  library::Onednn& onednn_;
  std::size_t plan_ = 0;  // that runs
  Word row_ = 0;          // of its schedules
  Schedule schedule_;     // with which the next stream is made
  std::unique_ptr<Stream> stream_;
};

}  // namespace

std::unique_ptr<session::Session> session::open_memory(const std::string& folder, std::unique_ptr<Program> program,
                                                       StreamOptions options) {
  return std::make_unique<Memory>(folder, std::move(program), std::move(options));
}

std::unique_ptr<session::Session> session::open_memory(const std::string& folder, std::unique_ptr<Program> program,
                                                       const ep_options& given) {
  StreamOptions options;
  options.library = given.library;
  options.budget = given.budget;
  for (const Word reader : program->rows<Word>(format::READERS)) options.readers.push_back(static_cast<int>(reader));
  return open_memory(folder, std::move(program), std::move(options));
}
