#include "backend/base/log.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace torchwire {
namespace {

constexpr std::array<const char*, 4> kLevelNames = {"error", "warning", "info", "debug"};

LogLevel thresholdFromEnvironment() {
  const char* wanted = std::getenv("TORCHWIRE_LOG_LEVEL");
  if (wanted == nullptr) {
    return LogLevel::warning;
  }
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (std::string_view(wanted) == kLevelNames[i]) {
      return static_cast<LogLevel>(i);
    }
  }
  std::fprintf(
      stderr, "torchwire warning: TORCHWIRE_LOG_LEVEL is '%s'; use error, warning, info or debug\n",
      wanted);
  return LogLevel::warning;
}

} // namespace

bool logEnabled(LogLevel level) {
  static const LogLevel threshold = thresholdFromEnvironment();
  return level <= threshold;
}

void log(LogLevel level, std::string_view text) {
  if (!logEnabled(level)) {
    return;
  }
  std::string line = "torchwire ";
  line.append(kLevelNames[static_cast<size_t>(level)]).append(": ").append(text).append("\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

} // namespace torchwire
