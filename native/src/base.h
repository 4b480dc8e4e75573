// What all parts of the library share.
#pragma once

#include <cstddef>
#include <cstdint>

// What the package calls: everything else stays inside.
#define EP_EXPORT extern "C" __attribute__((visibility("default")))

// Compiled for each generation of processors, chosen when the library is loaded; EP_CLONES_256 where vectors of 512 bits gain
// nothing. clang combines it with no visibility.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EP_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define EP_CLONES_256 __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define EP_CLONES
#define EP_CLONES_256
#endif

using Word = std::int64_t;

constexpr Word PAGE = 4096;  // of memory, and of what direct I/O reads

constexpr std::size_t size(Word count) { return static_cast<std::size_t>(count); }
// The least multiple of a unit that is not below so many bytes.
constexpr Word rounded(Word bytes, Word unit) { return (bytes + unit - 1) / unit * unit; }

// What stays where it was made.
struct Fixed {
  Fixed() = default;
  Fixed(const Fixed&) = delete;
  Fixed& operator=(const Fixed&) = delete;
};
