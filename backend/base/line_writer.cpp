#include "backend/base/line_writer.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

namespace torchwire {

LineWriter& LineWriter::make(int file, size_t maxBytes) {
  return *new LineWriter(
      file, maxBytes); // NOLINT(cppcoreguidelines-owning-memory): never destroyed
}

void LineWriter::add(std::string line) {
  if (line.size() > maxBytes_) {
    line.resize(maxBytes_ - 1);
    line.push_back('\n');
  }
  MutexLock lock(mutex_);
  if (bytes_ + line.size() > maxBytes_) {
    ++dropped_;
    return;
  }
  bytes_ += line.size();
  lines_.push_back(std::move(line));
  if (!hasThread_) {
    startThread();
  }
  added_.notify_one();
}

bool LineWriter::flush(std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  return written_.wait_for(lock, patience, [this]() REQUIRES(mutex_) { return isIdle(); });
}

bool LineWriter::isIdle() const {
  return lines_.empty() && dropped_ == 0 && !isWriting_;
}

// Signals are for other threads: a handler that waits for this one's file would wait for itself.
void LineWriter::startThread() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this] { loop(); }).detach();
    hasThread_ = true;
  } catch (const std::system_error&) { // no thread is to be had: the next line tries again
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void LineWriter::loop() {
  pthread_setname_np(pthread_self(), "torchwire_log");
  MutexLock lock(mutex_);
  for (;;) {
    isWriting_ = false;
    if (isIdle()) {
      written_.notify_all();
      added_.wait(lock);
      continue;
    }
    const std::string line = takeLine();
    isWriting_ = true;
    lock.unlock();
    write(line);
    lock.lock();
  }
}

/// What was dropped came after all lines that wait, as a rule: it found no room.
std::string LineWriter::takeLine() {
  if (lines_.empty()) {
    return "torchwire warning: " + std::to_string(std::exchange(dropped_, 0)) +
        " lines were dropped, since those before had not been written in time\n";
  }
  std::string line = std::move(lines_.front());
  lines_.pop_front();
  bytes_ -= line.size();
  return line;
}

/// In a single write where the file takes it, so that lines of several processes do not mix.
void LineWriter::write(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = ::write(file_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd asked{file_, POLLOUT, 0};
      ::poll(&asked, 1, -1);
    } else if (errno != EINTR) {
      return; // there is no file any more, or it is full
    }
  }
}

} // namespace torchwire
