#include "backend/tensorpipe/context.h"

#include <future>
#include <utility>

#include "backend/tensorpipe/connection.h"

namespace torchwire {

TransportContext::TransportContext(std::shared_ptr<Endpoint> port, uint8_t lane)
    : endpoint_(std::move(port)),
      lane_(lane),
      domain_(endpoint_->kind().domain()),
      streams_(std::make_shared<MessageStreams>()) {}

TransportContext::~TransportContext() {
  join();
}

std::shared_ptr<tensorpipe::transport::Connection> TransportContext::connect(std::string address) {
  std::shared_ptr<MessageStream> conversation = streams_->open(endpoint_->loop());
  endpoint_->loop()->post([port = endpoint_, address = std::move(address), conversation] {
    port->dial(address, [conversation](const Error& error, std::unique_ptr<Stream> stream) {
      if (error) {
        conversation->fail(error);
      } else {
        conversation->start(std::move(stream));
      }
    });
  });
  return std::make_shared<Connection>(std::move(conversation));
}

std::shared_ptr<tensorpipe::transport::Listener> TransportContext::listen(std::string) {
  auto acceptQueue = std::make_shared<AcceptQueue>(endpoint_, streams_, lane_);
  auto listener = std::make_shared<Listener>(endpoint_, lane_, acceptQueue);
  bool tooLate = false;
  {
    MutexLock lock(mutex_);
    lobbies_.push_back(std::move(acceptQueue));
    tooLate = closed_;
  }
  if (tooLate) {
    listener->close();
  }
  return listener;
}

bool TransportContext::isViable() const {
  return true; // else there would be no port
}

const std::string& TransportContext::domainDescriptor() const {
  return domain_;
}

void TransportContext::setId(std::string) {}

void TransportContext::close() {
  std::vector<std::shared_ptr<AcceptQueue>> lobbies;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    lobbies.swap(lobbies_);
  }
  for (auto& acceptQueue : lobbies) {
    endpoint_->loop()->post([acceptQueue = std::move(acceptQueue)] { acceptQueue->close(); });
  }
  streams_->closeAll();
}

void TransportContext::join() {
  close();
  streams_->awaitEnd();
  // What was posted before, closing the lobbies for one, has been done when this has.
  std::promise<void> done;
  endpoint_->loop()->post([&done] { done.set_value(); });
  done.get_future().wait();
}

} // namespace torchwire
