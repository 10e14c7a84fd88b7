#include "backend/agent/device_messages.h"

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

using Body = std::vector<char>;
using Done = std::function<void(const std::string& error)>;

/// `done` runs on a thread that may block.
void tell(
    const SendRequest& send, rpc::MessageType type, WorkerId to, Body body, const Done& done) {
  try {
    const auto answer = send(to, messageOf(std::move(body), type));
    answer->addCallback([done](rpc::JitFuture& future) {
      done(future.hasError() ? future.tryRetrieveErrorMessage() : std::string());
    });
  } catch (const std::exception& e) { // the peer has left, or this worker shuts down
    done(e.what());
  }
}

cuda::Transfers::SendAndHear telling(SendRequest send, rpc::MessageType type) {
  return [send = std::move(send), type](WorkerId to, Body body, const Done& done) {
    tell(send, type, to, std::move(body), done);
  };
}

using OnMessage = void (cuda::Transfers::*)(WorkerId from, const Body& body);

void serve(
    Dispatcher& dispatcher, cuda::Transfers& transfers, rpc::MessageType type,
    OnMessage onMessage) {
  dispatcher.handleOwn(type, [&transfers, onMessage](WorkerId caller, rpc::Message& request) {
    (transfers.*onMessage)(caller, std::as_const(request).payload());
    return completed(messageOf({}, own_messages::kNoted));
  });
}

void serveTrials(
    Dispatcher& dispatcher, cuda::Transfers& transfers, const std::shared_ptr<ThreadPool>& copies,
    rpc::MessageType type, OnMessage onTrial) {
  dispatcher.handleOwn(type, [&transfers, copies, onTrial](WorkerId caller, rpc::Message& request) {
    auto answer = c10::make_intrusive<rpc::JitFuture>(messageType());
    Task task([&transfers, onTrial, caller, answer, body = std::as_const(request).payload()] {
      try {
        (transfers.*onTrial)(caller, body);
        complete(*answer, messageOf({}, own_messages::kNoted));
      } catch (const std::exception&) {
        answer->setErrorIfNeeded(std::current_exception());
      }
    });
    if (!copies->run(std::move(task))) {
      throw std::runtime_error("this worker shuts down");
    }
    return answer;
  });
}

} // namespace

void connectDeviceMessages(
    cuda::Transfers& transfers, Dispatcher& dispatcher, const std::shared_ptr<ThreadPool>& copies,
    SendRequest send) {
  transfers.connect(
      {[send](WorkerId to, Body body) {
         tell(send, own_messages::kBlocksDone, to, std::move(body), [](const std::string&) {});
       },
       telling(send, own_messages::kMemoryTrial), telling(send, own_messages::kLaneTrial),
       telling(send, own_messages::kLaneMessage)});
  serve(dispatcher, transfers, own_messages::kBlocksDone, &cuda::Transfers::onDone);
  serve(dispatcher, transfers, own_messages::kLaneMessage, &cuda::Transfers::onLaneMessage);
  serveTrials(dispatcher, transfers, copies, own_messages::kMemoryTrial, &cuda::Transfers::onTrial);
  serveTrials(
      dispatcher, transfers, copies, own_messages::kLaneTrial, &cuda::Transfers::onLaneTrial);
}

} // namespace torchwire
