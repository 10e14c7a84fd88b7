#include "backend/faults/fault_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "backend/base/log.h"

namespace torchwire::faults {
namespace {

int openToAppend(const std::string& path) {
  if (path.empty()) {
    return -1;
  }
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) {
    throw std::runtime_error("cannot open the fault log " + path + ": " + std::strerror(errno));
  }
  return file;
}

/// Writes one JSON object. Not thread-safe.
class JsonLine {
 public:
  void add(const char* key, std::string_view text) {
    start(key);
    line_ += '"';
    for (const char c : text) {
      addCharacter(c);
    }
    line_ += '"';
  }
  void add(const char* key, uint64_t number) {
    start(key);
    line_ += std::to_string(number);
  }
  void add(const char* key, double number) {
    start(key);
    char digits[32]; // as many as it takes to read the same number again
    const auto end =
        std::to_chars(digits, digits + sizeof(digits), std::isfinite(number) ? number : 0);
    line_.append(digits, end.ptr);
  }
  std::string finish() {
    return line_ + "}\n";
  }

 private:
  void start(const char* key) {
    line_ += line_.size() == 1 ? "\"" : ", \"";
    line_ += key;
    line_ += "\": ";
  }
  void addCharacter(char c) {
    if (c == '"' || c == '\\') {
      line_ += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr char kDigits[] = "0123456789abcdef";
      line_ += {'\\', 'u', '0', '0', kDigits[c >> 4], kDigits[c & 15]};
    } else {
      line_ += c;
    }
  }

  std::string line_ = "{";
};

} // namespace

FaultLog::FaultLog(const std::string& path) : file_(openToAppend(path)) {}

FaultLog::~FaultLog() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

void FaultLog::add(const Entry& entry) {
  if (file_ >= 0) {
    // One write, so that the lines of workers that share a file do not mix.
    const std::string line = toJson(entry);
    ssize_t written = 0;
    do {
      written = ::write(file_, line.data(), line.size());
    } while (written < 0 && errno == EINTR);
    if (written != static_cast<ssize_t>(line.size())) {
      log(LogLevel::warning, std::string("cannot write to the fault log: ") + std::strerror(errno));
    }
  }
  MutexLock lock(mutex_);
  entries_.push_back(entry);
}

std::vector<Entry> FaultLog::entries() const {
  MutexLock lock(mutex_);
  return entries_;
}

std::string toJson(const Entry& entry) {
  JsonLine line;
  line.add("time", entry.time);
  line.add("worker", entry.worker);
  line.add("revision", entry.revision);
  line.add("rule", entry.rule);
  line.add("action", std::string_view(nameOf(entry.action)));
  line.add("phase", std::string_view(nameOf(entry.phase)));
  line.add("from", entry.from);
  line.add("to", entry.to);
  line.add("message", uint64_t{entry.message});
  line.add("call_id", entry.callId);
  line.add("occurrence", entry.occurrence);
  line.add("seconds", entry.seconds);
  line.add("byte", entry.byte);
  return line.finish();
}

} // namespace torchwire::faults
