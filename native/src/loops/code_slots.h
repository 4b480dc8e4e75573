// Memory for generated code, as a library takes it (code_pool.cpp).
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "../base.h"

// Has a loaded library take memory for code from the region, for good; whether it does.
EP_EXPORT int ep_pool_code(const char* library);
EP_EXPORT void* ep_code_region();
EP_EXPORT void* ep_code_map(void* place, std::size_t size, int permissions, int flags, int file, off_t at);
EP_EXPORT int ep_code_protect(void* place, std::size_t size, int permissions);
EP_EXPORT int ep_code_unmap(void* place, std::size_t size);
