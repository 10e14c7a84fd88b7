#include "backend/wire/inline_limit.h"

#include <cstdlib>
#include <string>

#include "backend/base/log.h"

namespace torchwire {
namespace {

constexpr size_t kDefaultInlineLimit = 256 * 1024;

} // namespace

size_t inlineLimit() {
  static const size_t limit = [] {
    const char* text = std::getenv("TORCHWIRE_INLINE_LIMIT");
    if (text == nullptr) {
      return kDefaultInlineLimit;
    }
    const bool number =
        *text != '\0' && std::string(text).find_first_not_of("0123456789") == std::string::npos;
    if (!number) {
      log(LogLevel::warning,
          std::string("TORCHWIRE_INLINE_LIMIT is '") + text +
              "' and ignored: it is a number of bytes");
      return kDefaultInlineLimit;
    }
    return static_cast<size_t>(std::strtoull(text, nullptr, 10));
  }();
  return limit;
}

} // namespace torchwire
