// Memory for generated code, mapped once for all kernels: functions of the C types of `mmap`, `mprotect` and `munmap` hand
// out slots of one region, and call the C library's for all else. A library that generates code is pointed to them. Where
// the system does not let it, the same is computed, in more time.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>

#include <cstring>

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

namespace {

// Where a loaded library keeps the addresses of functions that it imports.
class Imports {
 public:
  explicit Imports(const link_map& library) : base_(library.l_addr) {
    for (const auto* tag = library.l_ld; tag->d_tag != DT_NULL; ++tag) {
      if (tag->d_tag >= 0 && tag->d_tag < KNOWN) tags_[tag->d_tag] = tag->d_un.d_val;
    }
  }

  // The word that holds the address of a function; null where there is none.
  ElfW(Addr)* slot(const char* name) const {
    auto* found = slot(name, DT_JMPREL, DT_PLTRELSZ);
    return found != nullptr ? found : slot(name, DT_RELA, DT_RELASZ);
  }

 private:
  static constexpr int KNOWN = 32;
  ElfW(Addr) base_, tags_[KNOWN] = {};

  template <class T>
  const T* at(int tag) const {  // glibc has made addresses of offsets, others have not
    return reinterpret_cast<const T*>(tags_[tag] >= base_ ? tags_[tag] : tags_[tag] + base_);
  }

  ElfW(Addr)* slot(const char* name, int table, int bytes) const {
    if (!tags_[table] || !tags_[DT_SYMTAB] || !tags_[DT_STRTAB]) return nullptr;
    const auto *first = at<ElfW(Rela)>(table), *end = first + tags_[bytes] / sizeof *first;
    for (const auto* entry = first; entry != end; ++entry) {
      const auto symbol = ELF64_R_SYM(entry->r_info);
      if (symbol == 0) continue;
      if (std::strcmp(at<char>(DT_STRTAB) + at<ElfW(Sym)>(DT_SYMTAB)[symbol].st_name, name) == 0) {
        return reinterpret_cast<ElfW(Addr)*>(base_ + entry->r_offset);
      }
    }
    return nullptr;
  }
};

// The part of a library that is not writable once it is loaded.
struct Sealed {
  ElfW(Addr) base, begin = 0, end = 0;
};

int find_sealed(dl_phdr_info* library, std::size_t, void* given) {
  auto* sealed = static_cast<Sealed*>(given);
  if (library->dlpi_addr != sealed->base) return 0;
  for (int k = 0; k < library->dlpi_phnum; ++k) {
    const auto& part = library->dlpi_phdr[k];
    if (part.p_type != PT_GNU_RELRO) continue;
    sealed->begin = sealed->base + part.p_vaddr;
    sealed->end = sealed->begin + part.p_memsz;
  }
  return 1;
}

// Has a library call another function from here on; its page is writable meanwhile.
bool replace(ElfW(Addr)* slot, const void* function, const Sealed& sealed) {
  const auto place = reinterpret_cast<ElfW(Addr)>(slot), bytes = static_cast<ElfW(Addr)>(getpagesize());
  auto* page = reinterpret_cast<void*>(place & -bytes);
  const bool closed = place >= sealed.begin && place < sealed.end;
  if (closed && mprotect(page, bytes, PROT_READ | PROT_WRITE)) return false;
  put(slot, reinterpret_cast<ElfW(Addr)>(function));
  if (closed) mprotect(page, bytes, PROT_READ);
  return true;
}

}  // namespace

// Has a loaded library take memory for generated code from the region of `ep_code_region`; whether it does.
//
// oneDNN maps 256 KiB that can be written and executed for each kernel that it generates, and unmaps them with
// the primitive. Every such change of the address space interrupts the other cores of the process: threads that
// generate kernels slow each other down. The library offers no hook, so its imports are pointed elsewhere.
EP_EXPORT int ep_pool_code(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  link_map* found = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &found) != 0) return false;
  dlclose(handle);
  const Imports imports(*found);
  // what hands slots out comes last
  const struct {
    ElfW(Addr)* slot;
    const void* function;
  } ours[] = {{imports.slot("munmap"), reinterpret_cast<const void*>(ep_code_unmap)},
              {imports.slot("mprotect"), reinterpret_cast<const void*>(ep_code_protect)},
              {imports.slot("mmap"), reinterpret_cast<const void*>(ep_code_map)}};
  for (const auto& one : ours)
    if (one.slot == nullptr) return false;
  if (ep_code_region() == nullptr) return false;
  Sealed sealed{found->l_addr};
  dl_iterate_phdr(find_sealed, &sealed);
  for (const auto& one : ours)
    if (!replace(one.slot, one.function, sealed)) return false;
  return true;
}
