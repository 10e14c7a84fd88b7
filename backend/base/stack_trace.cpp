#include "backend/base/stack_trace.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace torchwire {
namespace {

constexpr int kMaxFrames = 64;
constexpr size_t kMaxName = 200; // of a function; templates can have pages

struct Place {
  std::string function;
  size_t offset = 0;
};

/// A file in memory, as long as this lives; empty if it cannot be read.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    struct stat status{};
    if (file >= 0 && ::fstat(file, &status) == 0 && status.st_size > 0) {
      void* const at =
          ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
      if (at != MAP_FAILED) {
        bytes_ = {static_cast<const char*>(at), static_cast<size_t>(status.st_size)};
      }
    }
    if (file >= 0) {
      ::close(file);
    }
  }
  ~MappedFile() {
    if (!bytes_.empty()) {
      ::munmap(const_cast<char*>(bytes_.data()), bytes_.size()); // NOLINT
    }
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// `count` objects at this place; null if the file ends before.
  template <typename T>
  const T* at(size_t offset, size_t count = 1) const {
    const bool fits = offset <= bytes_.size() && count <= (bytes_.size() - offset) / sizeof(T);
    return fits ? reinterpret_cast<const T*>(bytes_.data() + offset) : nullptr;
  }

 private:
  std::string_view bytes_;
};

const ElfW(Shdr) * findSection(const MappedFile& file, const ElfW(Ehdr) & header, uint32_t type) {
  const auto* const sections = file.at<ElfW(Shdr)>(header.e_shoff, header.e_shnum);
  for (size_t i = 0; sections != nullptr && i < header.e_shnum; ++i) {
    if (sections[i].sh_type == type && sections[i].sh_link < header.e_shnum) {
      return &sections[i];
    }
  }
  return nullptr;
}

// dladdr knows exported functions only, and takes any other for the one before it.
std::optional<Place> findInSymbolTable(const Dl_info& object, uintptr_t address) {
  const MappedFile file(object.dli_fname);
  const auto* const header = file.at<ElfW(Ehdr)>(0);
  const auto* const table = header == nullptr ? nullptr : findSection(file, *header, SHT_SYMTAB);
  if (table == nullptr) {
    return std::nullopt;
  }
  const auto* const sections = file.at<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
  const size_t names = sections[table->sh_link].sh_offset;
  const uintptr_t base =
      header->e_type == ET_EXEC ? 0 : reinterpret_cast<uintptr_t>(object.dli_fbase);
  const size_t count = table->sh_size / sizeof(ElfW(Sym));
  const auto* const symbols = file.at<ElfW(Sym)>(table->sh_offset, count);
  for (size_t i = 0; symbols != nullptr && i < count; ++i) {
    const uintptr_t begin = base + symbols[i].st_value;
    const bool inside = address >= begin && address < begin + symbols[i].st_size;
    const auto* const name = inside ? file.at<char>(names + symbols[i].st_name) : nullptr;
    if (name != nullptr) {
      return Place{name, address - begin};
    }
  }
  return std::nullopt;
}

std::string demangled(const std::string& name) {
  int status = 0;
  char* const readable = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = readable == nullptr ? name : readable;
  std::free(readable); // NOLINT: __cxa_demangle's, of malloc
  if (result.size() > kMaxName) {
    result = result.substr(0, kMaxName) + "...";
  }
  return result;
}

std::string describe(void* frame) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(frame) - 1; // in the call, not behind it
  Dl_info object{};
  if (::dladdr(reinterpret_cast<void*>(address), &object) == 0 || object.dli_fname == nullptr) {
    return "?";
  }
  std::optional<Place> place = findInSymbolTable(object, address);
  if (!place && object.dli_sname != nullptr) {
    place = Place{object.dli_sname, address - reinterpret_cast<uintptr_t>(object.dli_saddr)};
  }
  if (!place) {
    place = Place{"?", address - reinterpret_cast<uintptr_t>(object.dli_fbase)};
  }
  const std::string_view path = object.dli_fname;
  std::array<char, 32> offset{};
  std::snprintf(offset.data(), offset.size(), "+0x%zx", place->offset);
  return demangled(place->function) + offset.data() + " in " +
      std::string(path.substr(path.rfind('/') + 1));
}

} // namespace

std::string stackTrace() {
  std::array<void*, kMaxFrames> frames{};
  const int count = ::backtrace(frames.data(), kMaxFrames);
  std::string text;
  for (int i = 1; i < count; ++i) { // without this function
    text += "  #" + std::to_string(i - 1) + " " + describe(frames[static_cast<size_t>(i)]) + "\n";
  }
  return text;
}

} // namespace torchwire
