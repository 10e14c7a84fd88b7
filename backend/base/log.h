// Log lines of the C++ side, by level, to standard error.
#pragma once

#include <string>
#include <string_view>

namespace torchwire {

enum class LogLevel { error = 0, warning = 1, info = 2, debug = 3 };

/// Whether lines of this level are written. The threshold comes from the environment variable
/// TORCHWIRE_LOG_LEVEL (error, warning, info or debug; warning where unset), read once. Thread-safe.
bool logEnabled(LogLevel level);

/// Writes one line `torchwire LEVEL: text` in a single write, so lines of threads do not mix.
/// Thread-safe.
void log(LogLevel level, std::string_view text);

} // namespace torchwire
