#include "rref/own_value.h"

#include <algorithm>
#include <future>
#include <memory>
#include <string>

#include "backend/base/call_error.h"
#include "backend/base/thread_pool.h"
#include "backend/serve/signals.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;

// How often a thread that handles signals looks for them.
constexpr milliseconds kLook{100};

} // namespace

void awaitOwnValue(rpc::OwnerRRef& rref, std::optional<milliseconds> timeout) {
  const auto there = std::make_shared<std::promise<void>>();
  rref.getFuture()->addCallback([there](rpc::JitFuture&) { there->set_value(); });
  const auto wait = there->get_future();
  const auto end = timeout ? std::chrono::steady_clock::now() + *timeout
                           : std::chrono::steady_clock::time_point::max();
  const ThreadPool::BlockingScope blocking;
  while (wait.wait_until(std::min(end, std::chrono::steady_clock::now() + kLook)) !=
         std::future_status::ready) {
    if (handlesSignals() && runSignalHandlers()) {
      return;
    }
    if (std::chrono::steady_clock::now() >= end) {
      throw CallError(Error(
          ErrorCode::timeout,
          "the wait for its value timed out after " + std::to_string(timeout->count()) +
              " ms on the RRef's owner, this worker: the RRef has no value yet, since its creation "
              "has not come or its function still runs"));
    }
  }
}

} // namespace torchwire
