// Words that other threads see in order, the clock, and how a thread waits for another one.
#pragma once

#include <ctime>
#include <unistd.h>

#include "../base.h"

namespace loops {

// Read a word; what was written before it was put there is seen afterwards.
template <class T>
T load(const T* place) {
  return __atomic_load_n(place, __ATOMIC_ACQUIRE);
}

// Put a word somewhere, for `load`.
template <class T>
void put(T* place, T value) {
  __atomic_store_n(place, value, __ATOMIC_RELEASE);
}

// Put a word where another one stands, for one thread only; what stood there.
inline Word claim(Word* place, Word before, Word value) {
  __atomic_compare_exchange_n(place, &before, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return before;
}

// Add 1 to a word; what stood there.
inline Word next_number(Word* place) { return __atomic_fetch_add(place, 1, __ATOMIC_ACQ_REL); }

inline Word nanoseconds(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

// The clock of `time.perf_counter_ns`.
inline Word now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return nanoseconds(now);
}

// Leave the processor for a moment. Not by `sched_yield`: beside a process that is busy it gives up the rest
// of the thread's share, and the core comes back after 12 ms; a nap ends after less than 1 (Linux 6.18).
inline void nap() { usleep(50); }

// Most waits between lanes are shorter. Longer awake, a thread that shares its core uses its share of it up.
constexpr Word AWAKE_NS = 100'000;

// A moment of a wait that began then: awake at first, then asleep.
inline void rest(Word begun) {
  if (now_ns() - begun > AWAKE_NS) nap();
}

// Wait for a moment to come, asleep until shortly before; the time then.
inline Word wait_until(Word end) {
  Word now = now_ns();
  for (; now < end; now = now_ns())
    if (end - now > 2 * AWAKE_NS) nap();  // a nap takes longer than it says
  return now;
}

}  // namespace loops
