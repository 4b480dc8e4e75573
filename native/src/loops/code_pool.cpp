// A library that generates code is given memory for it from one region. Where the system does not let it, the same is
// computed, in more time.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>

#include <cstring>

#include "code_slots.h"
#include "loops.h"
#include "threads.h"

using namespace loops;

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

template <class Function>
const void* pointer(Function* function) {
  return reinterpret_cast<const void*>(function);
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
