// How Membership uses the rendezvous store. For its own sources only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/membership/clock.h"
#include "backend/membership/proven_store.h"
#include "backend/membership/shutdown_store.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Below the group's prefix: the Roster, changed by compare-and-set only.
inline const std::string kRosterKey = "roster";

inline std::vector<uint8_t> toStore(const std::vector<char>& bytes) {
  return std::vector<uint8_t>(bytes.begin(), bytes.end());
}

inline std::vector<uint8_t> toStore(const std::string& text) {
  return std::vector<uint8_t>(text.begin(), text.end());
}

inline std::vector<char> fromStore(const std::vector<uint8_t>& bytes) {
  return std::vector<char>(bytes.begin(), bytes.end());
}

/// Runs a store operation; a failure says what could not be done.
template <typename Operation>
auto asking(const WorkerRecord& self, const std::string& what, Operation operation) {
  try {
    return operation();
  } catch (const StoreMoved&) { // that is no failure
    throw;
  } catch (const UnprovenEntry& e) {
    throw std::runtime_error(self.describe() + " could not " + what + ": " + e.what());
  } catch (const std::exception& e) {
    const std::string reason = e.what(); // PyTorch's errors append a stack trace
    throw std::runtime_error(
        self.describe() + " could not " + what +
        ": the rendezvous store (init_method, MASTER_ADDR and MASTER_PORT) did not answer: " +
        reason.substr(0, reason.find('\n')));
  }
}

/// Asks `ready` ever less often until it says yes; false after the time-out. The pause is a small part of
/// the time waited so far: short waits end promptly, long ones (a server that waits for hours for its
/// clients to shut down) cost next to nothing.
template <typename Ready>
bool poll(Clock& clock, std::chrono::milliseconds timeout, Ready ready) {
  constexpr std::chrono::microseconds kMinPause{500};
  constexpr std::chrono::milliseconds kMaxPause{200};
  const auto start = clock.now();
  while (!ready()) {
    const auto waited = clock.now() - start;
    if (waited >= timeout) {
      return false;
    }
    clock.sleepFor(std::clamp<std::chrono::nanoseconds>(waited / 20, kMinPause, kMaxPause));
  }
  return true;
}

} // namespace torchwire
