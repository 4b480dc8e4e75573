// Sessions of plans of memory as measuring needs them: by any schedule, with slower steps, rates of reading.
#include "../../include/measure.h"

#include "../session/guarded.h"
#include "../session/stream.h"

using program::Program;
using session::Stream;

namespace {

// Addresses lie in the arena, and steps that are waited for are there.
void require_fitting(const Program& program, const session::Schedule& schedule) {
  const auto steps = program.rows<format::Step>(format::STEPS);
  const auto buffers = program.rows<format::Buffer>(format::BUFFERS);
  const auto inside = [&](Word at, Word bytes) { return at >= 0 && at <= schedule.arena_bytes - bytes; };
  const auto step = [&](Word number) { return -1 <= number && number < steps.length; };
  bool fits = true;
  for (Word k = 0; k < buffers.length; ++k) fits &= inside(schedule.buffers[size(k)], buffers[k].bytes);
  for (Word k = 0; k < steps.length; ++k) {
    const auto at = size(k);
    fits &= steps[k].weight_bytes == 0 || inside(schedule.weights[at], steps[k].weight_bytes);
    fits &= step(schedule.after[at]) && step(schedule.again[at]);
  }
  if (!fits) throw Error{EP_INPUT, "the schedule does not fit the program", program.model(), "make it anew"};
}

session::Schedule schedule_of(const Program& program, const ep_schedule& given) {
  const Word steps = program.facts().steps, buffers = program.rows<format::Buffer>(format::BUFFERS).length;
  const auto values = [](const std::int64_t* from, Word count) { return std::vector<Word>(from, from + count); };
  session::Schedule found{given.back_to_back != 0,      given.arena_bytes,           values(given.buffers, buffers),
                          values(given.weights, steps), values(given.after, steps), values(given.again, steps)};
  require_fitting(program, found);
  return found;
}

template <class Work>
ep_status on(ep_session* session, Work work) {
  return guarding::with(session, [&](Session& opened) { work(opened.stream(), opened.program()); });
}

}  // namespace

EP_EXPORT ep_status ep_measure_stream(const char* folder, const ep_stream_options* options, const ep_schedule* schedule,
                                      std::uint64_t budget, ep_session** session) {
  return guarding::open_as(session, folder, [&](const std::string& named) {
    auto program = std::make_unique<Program>(named + "/program.bin");
    session::StreamOptions chosen;
    chosen.library = options->library;
    if (options->readers != nullptr) chosen.readers.assign(options->readers, options->readers + options->reader_count);
    chosen.debug = options->debug != 0;
    chosen.gives_back = options->gives_back != 0;
    chosen.records = options->records != 0;
    chosen.mapped = options->mapped != 0;
    if (chosen.mapped && program->facts().halves != 0)
      throw Error{EP_INPUT, "halves cannot be used where they are mapped", named, "plan with whole weights"};
    chosen.ahead = false;
    chosen.budget = budget;
    if (schedule != nullptr) chosen.schedule = schedule_of(*program, *schedule);
    return session::open_memory(named, std::move(program), std::move(chosen));
  });
}

EP_EXPORT ep_status ep_measure_apply(ep_session* session, const ep_schedule* schedule) {
  return on(session, [&](Stream& stream, const Program& program) { stream.apply(schedule_of(program, *schedule)); });
}

EP_EXPORT ep_status ep_measure_fill(ep_session* session) {
  return on(session, [](Stream& stream, const Program&) { stream.fill(); });
}

EP_EXPORT ep_status ep_measure_expect(ep_session* session, std::int64_t inferences) {
  return on(session, [&](Stream& stream, const Program&) { stream.expect(inferences); });
}

EP_EXPORT ep_status ep_measure_touched(ep_session* session) {
  return on(session, [](Stream& stream, const Program&) { stream.wait_touched(); });
}

EP_EXPORT ep_status ep_measure_settle(ep_session* session) {
  return on(session, [](Stream& stream, const Program&) { stream.settle(); });
}

EP_EXPORT ep_status ep_measure_slow(ep_session* session, const std::int64_t* nanoseconds, std::size_t steps) {
  return on(session, [&](Stream& stream, const Program& program) {
    if (steps != 0 && steps != size(program.facts().steps))
      throw Error{EP_INPUT, "times of " + std::to_string(steps) + " steps were given", "ep_measure_slow", "give one of each"};
    stream.slowed.assign(nanoseconds, nanoseconds + steps);
  });
}

EP_EXPORT ep_status ep_measure_stream_ms(ep_session* session, double* ms) {
  return on(session, [&](Stream& stream, const Program&) { *ms = stream.stream_ms(); });
}

EP_EXPORT ep_status ep_measure_read_ms(ep_session* session, double* ms) {
  return on(session, [&](Stream& stream, const Program&) { *ms = stream.read_ms(); });
}

EP_EXPORT ep_status ep_measure_pages(ep_session* session, int running, std::int64_t* runs, std::size_t* count) {
  return on(session, [&](Stream& stream, const Program&) {
    const session::Runs found = stream.pages().found(running != 0);
    std::copy_n(found.begin(), std::min(found.size(), *count), runs);
    *count = found.size();
  });
}
