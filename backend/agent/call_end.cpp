#include "backend/agent/call_end.h"

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <future>
#include <stdexcept>
#include <string>
#include <utility>

#include "backend/base/call_error.h"
#include "backend/base/resource_limits.h"
#include "backend/serve/own_messages.h"
#include "backend/wire/failure.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;

namespace {

const std::shared_future<at::ThreadLocalState>& futureFreshState() {
  static const std::shared_future<at::ThreadLocalState> state = [] {
    std::packaged_task<at::ThreadLocalState()> make([] { return at::ThreadLocalState(); });
    std::shared_future<at::ThreadLocalState> made = make.get_future();
    startThread(std::move(make)).detach();
    return made;
  }();
  return state;
}

} // namespace

void beginFreshState() {
  futureFreshState();
}

const at::ThreadLocalState& freshState() {
  return futureFreshState().get();
}

// Only by the type of an error libtorch knows that an RRef may never come to be. At any other its callback throws, the
// RRef stays a pending user, and shutdown waits for it for ever.
std::exception_ptr toException(const Error& error, bool mayCreate) {
  const bool typed = error.message().starts_with("RPCErr:"); // as makeRPCError begins
  const bool timedOut =
      error.code() == ErrorCode::timeout || error.code() == ErrorCode::overloaded || mayCreate;
  return std::make_exception_ptr(
      timedOut && !typed
          ? CallError(error.saying(rpc::makeRPCError(error.message(), rpc::RPCErrorType::TIMEOUT)))
          : CallError(error));
}

DecodedMessage responseIn(Outcome outcome, bool mayCreate, bool creates) {
  if (outcome.error) {
    std::rethrow_exception(toException(outcome.error, mayCreate));
  }
  DecodedMessage decoded;
  Error error;
  try {
    decoded = decodeMessage(std::move(outcome.response));
    if (decoded.message->type() == own_messages::kFailed) {
      error = decodeFailure(std::as_const(*decoded.message).payload());
    }
  } catch (const std::exception& e) {
    throw std::runtime_error(std::string("cannot read the response: ") + e.what());
  }
  if (error) {
    std::rethrow_exception(
        creates ? toException(error, creates) : std::make_exception_ptr(CallError(error)));
  }
  if (decoded.message->type() == rpc::MessageType::EXCEPTION) {
    const auto& payload = std::as_const(*decoded.message).payload();
    const std::string text(payload.begin(), payload.end());
    // What a function raised that makes an RRef would be the RRef's value: there is none.
    throw std::runtime_error(
        creates && !text.starts_with("RPCErr:")
            ? rpc::makeRPCError(text, rpc::RPCErrorType::TIMEOUT)
            : text);
  }
  return decoded;
}

void expectTimeLeft(
    const std::string& worker, std::chrono::milliseconds timeout,
    std::chrono::steady_clock::time_point begun) {
  if (timeout != std::chrono::milliseconds(0) &&
      std::chrono::steady_clock::now() - begun >= timeout) {
    std::rethrow_exception(
        toException(timeoutError(timeout).notSent().to(worker), /* mayCreate */ false));
  }
}

} // namespace torchwire
