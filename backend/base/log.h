// Log lines of the C++ side, by level, to standard error.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace torchwire {

enum class LogLevel { error = 0, warning = 1, info = 2, debug = 3 };

/// Whether lines of this level are written. The threshold comes from the environment variable
/// TORCHWIRE_LOG_LEVEL (error, warning, info or debug; warning where unset), read once. Thread-safe.
bool logEnabled(LogLevel level);

/// Has a thread of its own write one line `torchwire LEVEL: text`, so that the caller never waits for who reads standard
/// error. Lines of threads do not mix. Thread-safe.
void log(LogLevel level, std::string_view text);

/// Likewise a text of any level that is not torchwire's own, with its newline at the end.
void writeError(std::string text);

/// Waits until all lines so far are written; false if that takes longer. The end of the process does so, for 100 ms; call it
/// before what ends the process without that.
bool flushLog(std::chrono::milliseconds patience = std::chrono::milliseconds(100));

} // namespace torchwire
