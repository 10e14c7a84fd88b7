// The slots through which a library calls functions of others.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace torchwire {

/// A library in memory, or the program itself. Valid during the call that hands it over.
class LoadedImage {
 public:
  virtual ~LoadedImage() = default;
  /// Its file's name without the folder; empty for the program.
  virtual std::string file() const = 0;
  virtual bool contains(const void* address) const = 0;
};

struct SlotReplacement {
  const char* name; // of the function
  const void* original; // the function itself
  void* function; // to be called in its place
};

/// Whether replaceSlots() does anything here: on x86-64 Linux.
extern const bool kSlotsCanBeReplaced;

/// Makes the wanted libraries call other functions in place of those of other libraries that have these names. Other
/// threads may be calling meanwhile. Returns, for each wanted library by its file's name, the functions that it calls.
std::map<std::string, std::vector<std::string>> replaceSlots(
    const std::vector<SlotReplacement>& replacements,
    const std::function<bool(const LoadedImage&)>& isWanted);

} // namespace torchwire
