// What a process that runs plans sets up once, before it opens one (runtime/process.py): where the system does
// not let it, the same is computed, in more time.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "code_slots.h"
#include "loops.h"
#include "threads.h"

using namespace loops;

namespace {

// Generating a kernel allocates thousands of small blocks. Two threads that share a heap wait for each other's
// turns at it, often in the system; a heap of a thread's own grows by a page or two at a time, and changing the
// address space that often makes all threads wait. So each gets one that is large enough from the start. Its
// pages are taken when they are written to, as ever.
constexpr int HEAP_BYTES = 15 << 20, NEVER = 0x7fffffff;
constexpr int APART_BYTES = 128 << 10;  // from here on a block is mapped on its own, and given back when freed
constexpr Word MOST_HEAPS = 64;

struct Growing {
  Word grown = 0, released = 0;
};

// While `HEAP_BYTES` are no block apart.
void grow() {
  void* volatile block = std::malloc(HEAP_BYTES);  // or compilers leave both calls out
  std::free(block);
}

// A thread takes over the heap of one that has ended: none ends before all have grown theirs.
void* grow_beside(void* given) {
  auto* all = static_cast<Growing*>(given);
  grow();
  next_number(&all->grown);
  while (load(&all->released) == 0) nap();
  return nullptr;
}

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

template <class Function>
const void* pointer(Function* function) {
  return reinterpret_cast<const void*>(function);
}

}  // namespace

// Grows the heap of the calling thread, unless it has room.
EP_EXPORT void ep_grow_heap() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 2 * HEAP_BYTES);
  grow();
  mallopt(M_MMAP_THRESHOLD, APART_BYTES);
#endif
}

// Grows the first heap, and heaps for so many threads that start from here on, for good; whether all grew.
// What is freed on a heap stays with the process; large blocks are not on heaps.
EP_EXPORT int ep_grow_heaps(Word threads) {
#ifdef __GLIBC__
  if (!mallopt(M_MMAP_THRESHOLD, 2 * HEAP_BYTES) || !mallopt(M_TRIM_THRESHOLD, NEVER)) return false;
  grow();
  const Word wanted = threads < MOST_HEAPS ? threads : MOST_HEAPS;
  pthread_t growing[MOST_HEAPS];
  Growing all;
  Word started = 0;
  while (started < wanted && pthread_create(&growing[started], nullptr, grow_beside, &all) == 0) ++started;
  while (load(&all.grown) < started) nap();
  put<Word>(&all.released, 1);
  for (Word k = 0; k < started; ++k) pthread_join(growing[k], nullptr);
  mallopt(M_MMAP_THRESHOLD, APART_BYTES);
  return started == wanted;
#else
  return threads < 0;  // what was freed would be given back at once
#endif
}

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
  } ours[] = {{imports.slot("munmap"), pointer(ep_code_unmap)},
              {imports.slot("mprotect"), pointer(ep_code_protect)},
              {imports.slot("mmap"), pointer(ep_code_map)}};
  for (const auto& one : ours)
    if (one.slot == nullptr) return false;
  if (ep_code_region() == nullptr) return false;
  Sealed sealed{found->l_addr};
  dl_iterate_phdr(find_sealed, &sealed);
  for (const auto& one : ours)
    if (!replace(one.slot, one.function, sealed)) return false;
  return true;
}
