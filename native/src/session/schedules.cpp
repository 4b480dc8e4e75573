#include "schedules.h"

#include <algorithm>
#include <numeric>

using program::Program;
using session::Schedule;

namespace {

constexpr double AS_FAST = 1.001;  // of predicted times: no difference

// Of weights, as memory holds them, that are read in each inference: those that do not stay.
Word read_bytes(const Program& program, const Schedule& schedule) {
  const auto steps = program.rows<format::Step>(format::STEPS);
  Word found = 0;
  for (Word k = 0; k < steps.length; ++k) {
    const auto step = static_cast<std::size_t>(k);
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
    const auto step = static_cast<std::size_t>(k);
    const Word at = rounded(schedule.arena_bytes, PAGE);
    if (schedule.weights[step] < 0 || schedule.stays(step) || at + steps[k].weight_bytes > most) continue;
    schedule.weights[step] = at;
    schedule.after[step] = format::NOTHING;
    schedule.again[step] = k;
    schedule.arena_bytes = at + steps[k].weight_bytes;
  }
}

}  // namespace

bool Schedule::operator==(const Schedule& other) const {
  return back_to_back == other.back_to_back && arena_bytes == other.arena_bytes && buffers == other.buffers &&
         weights == other.weights && after == other.after && again == other.again;
}

Schedule session::stored(const Program& program, Word row) {
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

std::optional<session::Chosen> session::fitting(const Program& program, Word budget) {
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

Word session::least_budget(const Program& program) {
  const auto rows = program.rows<format::Schedule>(format::SCHEDULES);
  return rows[rows.length > 1 ? 1 : 0].budget_bytes;  // by ascending budget
}
