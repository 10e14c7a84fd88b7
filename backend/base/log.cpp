#include "backend/base/log.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "backend/base/line_writer.h"
#include "backend/base/one_line.h"

namespace torchwire {
namespace {

constexpr std::array<const char*, 4> kLevelNames = {"error", "warning", "info", "debug"};
constexpr std::chrono::milliseconds kLastPatience{10};
constexpr size_t kMaxWaiting = size_t{256} << 10; // bytes

std::atomic<LineWriter*> currentWriter{nullptr}; // of this process
std::atomic<bool> isEnding{false};

void registerHandlers() {
  static std::atomic<bool> registered{false};
  if (registered.exchange(true)) {
    return;
  }
  // A forked child has none of the parent's threads; what waited there is written there.
  pthread_atfork(nullptr, nullptr, [] { currentWriter.store(nullptr); });
  std::atexit([] {
    isEnding.store(true);
    flushLog();
  });
}

LineWriter& writer() {
  LineWriter* found = currentWriter.load();
  if (found == nullptr) {
    registerHandlers();
    LineWriter& made = LineWriter::make(STDERR_FILENO, kMaxWaiting);
    if (currentWriter.compare_exchange_strong(found, &made)) {
      return made;
    }
  }
  return *found;
}

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
  writer().add(
      std::string("torchwire warning: TORCHWIRE_LOG_LEVEL is '") + wanted +
      "'; use error, warning, info or debug\n");
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
  line.append(kLevelNames[static_cast<size_t>(level)])
      .append(": ")
      .append(printableLines(text))
      .append("\n");
  writeError(std::move(line));
}

void writeError(std::string text) {
  writer().add(std::move(text));
  if (isEnding.load()) { // nobody waits any more, and there may be no other chance
    flushLog(kLastPatience);
  }
}

bool flushLog(std::chrono::milliseconds patience) {
  LineWriter* const current = currentWriter.load();
  return current == nullptr || current->flush(patience);
}

} // namespace torchwire
