// What the engines of a group say to each other about a backward pass.
//
// | request   | carries                       | answer                                                      |
// | --------- | ----------------------------- | ----------------------------------------------------------- |
// | gradients | GradientsHead, tensors        | Report; the one that woke its worker is answered only when  |
// |           |                               | the worker is idle again, any other one at once             |
// | discover  | DiscoverRequest               | Discovered, once all that it led to has been answered       |
// | resume    | PassId                        | Report, once the worker is idle again                       |
// | endPass   | EndRequest                    | PassEnded, once all that it was passed on to have answered  |
//
// docs/backward.md has the algorithms.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "backend/base/error.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// One backward pass. A later pass from the same root has the greater number.
struct PassId {
  int64_t context = 0;
  WorkerId root = 0;
  uint64_t number = 0;

  auto operator<=>(const PassId&) const = default;
};

/// What the root of a pass decides for all workers.
struct PassOptions {
  bool smart = true;
  bool retainGraph = false;
};

/// Stands before the tensors of a gradients request. `send`: the message id that names the send function.
struct GradientsHead {
  PassId pass;
  PassOptions options;
  int64_t send = 0;
};

/// By how much the number of send functions that wait for gradients has changed, on the worker that
/// answers and on those that answered it, since they last reported. Over all reports that reach a root
/// that is the number of those that wait now.
struct Report {
  int64_t waiting = 0;
};

/// `limit`: how long whoever sends it waits for the answer.
struct EndRequest {
  PassId pass;
  std::chrono::milliseconds limit{};
};

struct DiscoverRequest {
  PassId pass;
  std::vector<int64_t> sends; // reached by the pass
};

struct Discovered {
  std::vector<WorkerId> workers; // who walked; each once
};

/// A send function that got no gradients in a pass that failed.
struct WaitingSend {
  WorkerId worker = 0;
  int64_t send = 0;
  std::string function; // the autograd function behind it, "MulBackward0"
};

struct PassEnded {
  std::vector<WaitingSend> waiting;
};

std::vector<char> encode(const PassId& id);
std::vector<char> encode(const GradientsHead& head);
std::vector<char> encode(const EndRequest& request);
std::vector<char> encode(const Report& report);
std::vector<char> encode(const DiscoverRequest& request);
std::vector<char> encode(const Discovered& discovered);
std::vector<char> encode(const PassEnded& ended);

/// These throw FormatError for bytes that have another form.
PassId decodePassId(const std::vector<char>& bytes);
GradientsHead decodeGradientsHead(const std::vector<char>& bytes);
EndRequest decodeEndRequest(const std::vector<char>& bytes);
Report decodeReport(const std::vector<char>& bytes);
DiscoverRequest decodeDiscoverRequest(const std::vector<char>& bytes);
Discovered decodeDiscovered(const std::vector<char>& bytes);
PassEnded decodePassEnded(const std::vector<char>& bytes);

/// The same without a throw: for answers, whose readers have nobody to throw to.
template <typename T>
Error read(const std::vector<char>& bytes, T (*decode)(const std::vector<char>&), T& out) {
  try {
    out = decode(bytes);
    return {};
  } catch (const std::exception& e) {
    return Error(
        ErrorCode::badFrame,
        std::string("cannot read an answer about a backward pass: ") + e.what());
  }
}

} // namespace torchwire
