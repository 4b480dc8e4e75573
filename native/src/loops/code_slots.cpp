// Memory for generated code, mapped once for all kernels (code_pool.cpp): functions of the C types
// of `mmap`, `mprotect` and `munmap` that hand out slots of a region, and call the C library's for all else.
#include <sys/mman.h>

#include "code_slots.h"
#include "loops.h"
#include "threads.h"

using namespace loops;

namespace {

constexpr std::size_t SLOT_BYTES = 256 << 10, SLOTS = 512;  // oneDNN 3 asks for so many bytes
constexpr int READ_WRITE = PROT_READ | PROT_WRITE, ALL = READ_WRITE | PROT_EXEC;
constexpr int ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS;

enum State : Word { FREE, TAKEN, SPENT };  // spent: of other permissions now

char* region;
Word states[SLOTS];

// The state of the slot at an address; null where there is none.
Word* state_of(void* place) {
  const auto offset = static_cast<std::size_t>(address(place) - address(region));
  return region != nullptr && offset < SLOTS * SLOT_BYTES ? &states[offset / SLOT_BYTES] : nullptr;
}

}  // namespace

// Map the region, once; pages are taken when they are written to. Null where the system forbids it.
EP_EXPORT void* ep_code_region() {
  if (region == nullptr) {
    void* found = mmap(nullptr, SLOTS * SLOT_BYTES, ALL, ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return nullptr;
    madvise(found, SLOTS * SLOT_BYTES, MADV_NOHUGEPAGE);  // a kernel needs few pages; huge ones are cleared
    region = static_cast<char*>(found);
  }
  return region;
}

// How many slots hold code.
EP_EXPORT Word ep_code_used() {
  Word used = 0;
  for (const Word& state : states) used += load(&state) != FREE;
  return used;
}

// The first free slot for what a kernel asks for, the system's answer for all else.
EP_EXPORT void* ep_code_map(void* place, std::size_t size, int permissions, int flags, int file, off_t at) {
  const bool memory = place == nullptr && flags == ANONYMOUS && file == -1;
  if (region != nullptr && memory && size == SLOT_BYTES && permissions == READ_WRITE)
    for (std::size_t slot = 0; slot < SLOTS; ++slot)
      if (claim(&states[slot], FREE, TAKEN) == FREE) return region + slot * SLOT_BYTES;
  return mmap(place, size, permissions, flags, file, at);
}

// Nothing to do to write and execute, nor to write only, as asked for before a slot is given back; else the
// slot is spent.
EP_EXPORT int ep_code_protect(void* place, std::size_t size, int permissions) {
  if (Word* state = state_of(place)) {
    if (load(state) == TAKEN && (permissions == ALL || permissions == READ_WRITE)) return 0;
    put<Word>(state, SPENT);
  }
  return mprotect(place, size, permissions);
}

// Pages go back to the system, as they would, and the slot can be taken again, with zeroed pages.
EP_EXPORT int ep_code_unmap(void* place, std::size_t size) {
  Word* state = state_of(place);
  if (state == nullptr) return munmap(place, size);
  madvise(place, size, MADV_DONTNEED);
  claim(state, TAKEN, FREE);
  return 0;
}
