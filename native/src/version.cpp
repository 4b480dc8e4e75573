#include "base.h"

// Raised with whatever changes between the library and the package's modules: edgeplan/native.py expects the same number.
EP_EXPORT int ep_abi_version() { return 1; }
