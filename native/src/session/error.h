// What goes wrong on purpose: what, where, and what to do next.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "../../include/edgeplan.h"

struct Error {
  ep_status status;
  std::string what, where, next;
};

enum Stage : std::int32_t { READ, CREATE, TRANSFORM, EXECUTE };  // of spans

inline std::string system_says(int number = errno) { return std::strerror(number); }
