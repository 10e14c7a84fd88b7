// A library calls a function of another through a slot, which the dynamic linker fills in; here the slots of Python's
// functions get others in their place. That reaches the functions whether Python is a shared library or part of the
// program, for which preloading a library would not do.
//
//     libtorch_python ── slot ──▶ checked ──▶ Python's function

#include "plugin/gil_watch.h"

#include <Python.h>

#include "backend/base/lock_rank.h"
#include "backend/base/log.h"
#include "backend/base/thread_role.h"

#if defined(__linux__) && defined(__x86_64__)

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#endif

namespace torchwire {

using WatchedLibraries = std::map<std::string, std::vector<std::string>>;

#if defined(__linux__) && defined(__x86_64__)

namespace {

// ---- what is called in place of Python's functions ----------------------------------------------

void check(const char* action) {
  expectFree(action);
  expectUnlocked(action);
}

/// A function of Python's with a check before it.
template <auto function>
struct Checked;

template <typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct Checked<function> {
  // Volatile, or the compiler may put `function` in its place, whose slot in this library leads to call() by then.
  static inline Result (*volatile original)(Arguments...) = nullptr;
  static inline const char* action = nullptr;

  static Result call(Arguments... arguments) {
    check(action);
    return original(arguments...);
  }
};

struct Replacement {
  const char* name;
  void* function;
};

template <auto function>
Replacement replacementOf(const char* name, const char* action) {
  Checked<function>::original = function;
  Checked<function>::action = action;
  return {name, reinterpret_cast<void*>(&Checked<function>::call)};
}

// clang-format off
#define TORCHWIRE_WATCH(function, what) replacementOf<&(function)>(#function, what " (" #function ")"),

const auto& replacements() {
  static const auto all = std::to_array<Replacement>({
      TORCHWIRE_WATCH(PyGILState_Ensure, "taking the GIL")
      TORCHWIRE_WATCH(PyEval_RestoreThread, "taking the GIL")
      TORCHWIRE_WATCH(PyEval_AcquireThread, "taking the GIL")
      // pybind11's gil_scoped_acquire calls none of these where the thread holds the GIL already, but always one of the
      // next two, to find that out.
      TORCHWIRE_WATCH(PyGILState_GetThisThreadState, "taking the GIL")
#if PY_VERSION_HEX >= 0x030D0000
      TORCHWIRE_WATCH(PyThreadState_GetUnchecked, "taking the GIL")
#else
      TORCHWIRE_WATCH(_PyThreadState_UncheckedGet, "taking the GIL")
#endif
      TORCHWIRE_WATCH(_Py_Dealloc, "running a Python destructor")
  });
  return all;
}

#undef TORCHWIRE_WATCH
// clang-format on

// ---- slots --------------------------------------------------------------------------------------

/// A library in memory: where the dynamic linker finds its slots.
class LoadedLibrary {
 public:
  explicit LoadedLibrary(const dl_phdr_info& info) : info_(info) {
    const auto* const dynamic = segment<ElfW(Dyn)>(PT_DYNAMIC);
    for (const auto* entry = dynamic; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
      note(*entry);
    }
  }

  /// Calls onSlot(name, slot) for each slot of a function of another library.
  template <typename OnSlot>
  void forEachSlot(OnSlot onSlot) const {
    if (symbols_ == nullptr || names_ == nullptr) {
      return;
    }
    for (const Relocations& relocations : {calls_, others_}) {
      for (size_t i = 0; relocations.first != nullptr && i < relocations.bytes / sizeof(ElfW(Rela));
           ++i) {
        const ElfW(Rela) & relocation = relocations.first[i];
        const auto type = ELF64_R_TYPE(relocation.r_info);
        if (type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT || type == R_X86_64_64) {
          const auto& symbol = symbols_[ELF64_R_SYM(relocation.r_info)];
          onSlot(names_ + symbol.st_name, info_.dlpi_addr + relocation.r_offset);
        }
      }
    }
  }

  void fill(uintptr_t slot, void* function) const {
    const auto size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    auto* const page = reinterpret_cast<void*>(slot / size * size);
    if (::mprotect(page, size, PROT_READ | PROT_WRITE) != 0) {
      log(LogLevel::warning, "a slot cannot be changed, so that one way to the GIL is not watched");
      return;
    }
    // Other threads may be calling.
    __atomic_store_n(reinterpret_cast<void**>(slot), function, __ATOMIC_RELEASE);
    if (wasReadOnly(slot)) {
      ::mprotect(page, size, PROT_READ);
    }
  }

 private:
  struct Relocations {
    const ElfW(Rela) * first = nullptr;
    size_t bytes = 0;
  };

  const ElfW(Phdr) * find(uint32_t type) const {
    const auto* const end = info_.dlpi_phdr + info_.dlpi_phnum;
    const auto* const found = std::find_if(
        info_.dlpi_phdr, end, [type](const ElfW(Phdr) & header) { return header.p_type == type; });
    return found == end ? nullptr : found;
  }
  template <typename T>
  const T* segment(uint32_t type) const {
    const auto* const header = find(type);
    return header == nullptr ? nullptr : at<T>(header->p_vaddr);
  }
  template <typename T>
  const T* at(uintptr_t offset) const {
    return reinterpret_cast<const T*>(info_.dlpi_addr + offset);
  }
  // glibc has made the entries addresses; other C libraries leave them relative to where the library lies.
  template <typename T>
  const T* pointed(const ElfW(Dyn) & entry) const {
    const bool relative = entry.d_un.d_ptr < info_.dlpi_addr;
    return relative ? at<T>(entry.d_un.d_ptr) : reinterpret_cast<const T*>(entry.d_un.d_ptr);
  }
  void note(const ElfW(Dyn) & entry) {
    switch (entry.d_tag) {
      case DT_SYMTAB:
        symbols_ = pointed<ElfW(Sym)>(entry);
        break;
      case DT_STRTAB:
        names_ = pointed<char>(entry);
        break;
      case DT_JMPREL:
        calls_.first = pointed<ElfW(Rela)>(entry);
        break;
      case DT_PLTRELSZ:
        calls_.bytes = entry.d_un.d_val;
        break;
      case DT_RELA:
        others_.first = pointed<ElfW(Rela)>(entry);
        break;
      case DT_RELASZ:
        others_.bytes = entry.d_un.d_val;
        break;
      default:
        break;
    }
  }
  bool wasReadOnly(uintptr_t slot) const {
    const auto* const header = find(PT_GNU_RELRO);
    const uintptr_t offset = slot - info_.dlpi_addr;
    return header != nullptr && offset >= header->p_vaddr &&
        offset < header->p_vaddr + header->p_memsz;
  }

  const dl_phdr_info& info_;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  Relocations calls_, others_;
};

std::string fileOf(const dl_phdr_info& info) {
  const std::string_view path = info.dlpi_name;
  return std::string(path.substr(path.rfind('/') + 1));
}

bool contains(const dl_phdr_info& info, const void* address) {
  const auto offset = reinterpret_cast<uintptr_t>(address) - info.dlpi_addr;
  const auto* const end = info.dlpi_phdr + info.dlpi_phnum;
  return std::any_of(info.dlpi_phdr, end, [offset](const ElfW(Phdr) & header) {
    return header.p_type == PT_LOAD && offset >= header.p_vaddr &&
        offset < header.p_vaddr + header.p_memsz;
  });
}

// libtorch_cpu takes the GIL by functions of libtorch_python only, so that nothing is found there; should it ever be
// otherwise, it is.
bool isWatched(const dl_phdr_info& info) {
  return fileOf(info).starts_with("libtorch") ||
      contains(info, reinterpret_cast<const void*>(&watchGil));
}

int watchLibrary(dl_phdr_info* info, size_t /*size*/, void* watched) {
  if (!isWatched(*info)) {
    return 0;
  }
  auto& functions = (*static_cast<WatchedLibraries*>(watched))[fileOf(*info)];
  const LoadedLibrary library(*info);
  library.forEachSlot([&](std::string_view name, uintptr_t slot) {
    for (const Replacement& replacement : replacements()) {
      if (name == replacement.name) {
        library.fill(slot, replacement.function);
        functions.emplace_back(name);
      }
    }
  });
  return 0;
}

WatchedLibraries watch() {
  replacements(); // before the slots of this library lead to them
  WatchedLibraries watched;
  ::dl_iterate_phdr(watchLibrary, &watched);
  return watched;
}

} // namespace

#else

namespace {

WatchedLibraries watch() {
  log(LogLevel::warning,
      "TORCHWIRE_CHECK_THREADS: the GIL is not watched, which is for x86-64 Linux only");
  return {};
}

} // namespace

#endif

const WatchedLibraries& watchGil() {
  static const WatchedLibraries watched = kThreadChecks ? watch() : WatchedLibraries();
  return watched;
}

} // namespace torchwire
