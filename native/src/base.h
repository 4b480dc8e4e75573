// What all parts of the library share.
#pragma once

#include <cstdint>

// What the package calls: everything else stays inside.
#define EP_EXPORT extern "C" __attribute__((visibility("default")))

using Word = std::int64_t;
