#include "backend/base/library_slots.h"

#if defined(__linux__) && defined(__x86_64__)

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "backend/base/log.h"

namespace torchwire {
namespace {

/// Where the dynamic linker finds the slots of a library.
class LoadedLibrary final : public LoadedImage {
 public:
  explicit LoadedLibrary(const dl_phdr_info& info) : info_(info) {
    const auto* const dynamic = segment<ElfW(Dyn)>(PT_DYNAMIC);
    for (const auto* entry = dynamic; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
      note(*entry);
    }
  }

  std::string file() const override {
    const std::string_view path = info_.dlpi_name;
    return std::string(path.substr(path.rfind('/') + 1));
  }

  bool contains(const void* address) const override {
    const auto offset = reinterpret_cast<uintptr_t>(address) - info_.dlpi_addr;
    const auto* const end = info_.dlpi_phdr + info_.dlpi_phnum;
    return std::any_of(info_.dlpi_phdr, end, [offset](const ElfW(Phdr) & header) {
      return header.p_type == PT_LOAD && offset >= header.p_vaddr &&
          offset < header.p_vaddr + header.p_memsz;
    });
  }

  /// The slot through which it calls that function, if it is known to: one that is filled at its first call may not be yet.
  /// Looks at no symbol. libtorch has a hundred thousand, which are not in the processor's caches.
  std::optional<uintptr_t> filledSlotOf(const SlotReplacement& replacement) const {
    for (size_t i = 0; i < calls_.count(); ++i) {
      const uintptr_t slot = info_.dlpi_addr + calls_.first[i].r_offset;
      if (ELF64_R_TYPE(calls_.first[i].r_info) == R_X86_64_JUMP_SLOT &&
          __atomic_load_n(reinterpret_cast<const void* const*>(slot), __ATOMIC_RELAXED) ==
              replacement.original) {
        return slot;
      }
    }
    return std::nullopt;
  }

  /// Calls onSlot(symbol, slot) for each slot through which it calls functions. If onSlot has returned true for none, also
  /// for those that hold other addresses, of which libtorch has ten times as many.
  template <typename OnSlot>
  void forEachSlot(OnSlot onSlot) const {
    if (symbols_ != nullptr && names_ != nullptr && !anySlot(calls_, onSlot)) {
      anySlot(others_, onSlot);
    }
  }

  // Names are looked at last.
  bool isOf(const ElfW(Sym) & symbol, const SlotReplacement& replacement) const {
    const bool mayBe = symbol.st_shndx == SHN_UNDEF ||
        info_.dlpi_addr + symbol.st_value == reinterpret_cast<uintptr_t>(replacement.original);
    return mayBe && std::strcmp(names_ + symbol.st_name, replacement.name) == 0;
  }

  void fill(uintptr_t slot, void* function) const {
    const auto size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    auto* const page = reinterpret_cast<void*>(slot / size * size);
    if (::mprotect(page, size, PROT_READ | PROT_WRITE) != 0) {
      log(LogLevel::warning,
          "a slot of " + file() + " cannot be changed: it calls what it always has");
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

    size_t count() const {
      return first == nullptr ? 0 : bytes / sizeof(ElfW(Rela));
    }
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
  template <typename OnSlot>
  bool anySlot(const Relocations& relocations, OnSlot& onSlot) const {
    bool any = false;
    for (size_t i = 0; i < relocations.count(); ++i) {
      const ElfW(Rela) & relocation = relocations.first[i];
      const auto type = ELF64_R_TYPE(relocation.r_info);
      if (type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT || type == R_X86_64_64) {
        any |=
            onSlot(symbols_[ELF64_R_SYM(relocation.r_info)], info_.dlpi_addr + relocation.r_offset);
      }
    }
    return any;
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

struct Search {
  const std::vector<SlotReplacement>& replacements;
  const std::function<bool(const LoadedImage&)>& isWanted;
  std::map<std::string, std::vector<std::string>> found;
};

int searchLibrary(dl_phdr_info* info, size_t /*size*/, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  const LoadedLibrary library(*info);
  if (!search.isWanted(library)) {
    return 0;
  }
  auto& functions = search.found[library.file()];
  const auto fill = [&](uintptr_t slot, const SlotReplacement& replacement) {
    library.fill(slot, replacement.function);
    functions.emplace_back(replacement.name);
  };
  std::vector<SlotReplacement> left;
  for (const SlotReplacement& replacement : search.replacements) {
    if (const auto slot = library.filledSlotOf(replacement)) {
      fill(*slot, replacement);
    } else {
      left.push_back(replacement);
    }
  }
  if (left.empty()) {
    return 0;
  }
  library.forEachSlot([&](const ElfW(Sym) & symbol, uintptr_t slot) {
    for (const SlotReplacement& replacement : left) {
      if (library.isOf(symbol, replacement)) {
        fill(slot, replacement);
        return true;
      }
    }
    return false;
  });
  return 0;
}

} // namespace

const bool kSlotsCanBeReplaced = true;

std::map<std::string, std::vector<std::string>> replaceSlots(
    const std::vector<SlotReplacement>& replacements,
    const std::function<bool(const LoadedImage&)>& isWanted) {
  Search search{replacements, isWanted, {}};
  ::dl_iterate_phdr(searchLibrary, &search);
  return std::move(search.found);
}

} // namespace torchwire

#else

namespace torchwire {

const bool kSlotsCanBeReplaced = false;

std::map<std::string, std::vector<std::string>> replaceSlots(
    const std::vector<SlotReplacement>& /*replacements*/,
    const std::function<bool(const LoadedImage&)>& /*isWanted*/) {
  return {};
}

} // namespace torchwire

#endif
