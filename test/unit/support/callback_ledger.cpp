#include "test/unit/support/callback_ledger.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace torchwire {

void CallbackNote::add(const Error& error) {
  {
    MutexLock lock(mutex_);
    if (calls_++ == 0) {
      error_ = error;
    }
  }
  notifier_.notify();
}

int CallbackNote::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

Error CallbackNote::error() const {
  MutexLock lock(mutex_);
  return error_;
}

CallbackLedger::~CallbackLedger() {
  for (const std::string& complaint : complaints()) {
    FAIL_CHECK(complaint);
  }
}

CallbackNote& CallbackLedger::note(std::string what) {
  MutexLock lock(mutex_);
  return notes_.emplace_back(std::move(what), notifier_);
}

bool CallbackLedger::allCalled() const {
  MutexLock lock(mutex_);
  return std::all_of(notes_.begin(), notes_.end(), [](const auto& note) { return note.called(); });
}

std::vector<std::string> CallbackLedger::complaints() const {
  std::vector<std::string> complaints;
  MutexLock lock(mutex_);
  for (size_t i = firstExpected_; i < notes_.size(); ++i) {
    if (const int calls = notes_[i].calls(); calls != 1) {
      complaints.push_back(
          "the callback of '" + notes_[i].what() + "' was called " + std::to_string(calls) +
          " times, not once");
    }
  }
  return complaints;
}

void CallbackLedger::forgive() {
  MutexLock lock(mutex_);
  firstExpected_ = notes_.size();
}

} // namespace torchwire
