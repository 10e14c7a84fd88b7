#include "backend/tensorpipe/context.h"

#include <future>
#include <utility>

#include "backend/tensorpipe/connection.h"

namespace torchwire {

TransportContext::TransportContext(std::shared_ptr<Endpoint> endpoint, uint8_t lane)
    : endpoint_(std::move(endpoint)),
      lane_(lane),
      domain_(endpoint_->traits().domain()),
      streams_(std::make_shared<MessageStreams>()) {}

TransportContext::~TransportContext() {
  join();
}

std::shared_ptr<tensorpipe::transport::Connection> TransportContext::connect(std::string address) {
  std::shared_ptr<MessageStream> messageStream = streams_->open(endpoint_->loop());
  endpoint_->loop()->post([endpoint = endpoint_, address = std::move(address), messageStream] {
    endpoint->dial(address, [messageStream](const Error& error, std::unique_ptr<Stream> stream) {
      if (error) {
        messageStream->fail(error);
      } else {
        messageStream->start(std::move(stream));
      }
    });
  });
  return std::make_shared<Connection>(std::move(messageStream));
}

std::shared_ptr<tensorpipe::transport::Listener> TransportContext::listen(std::string) {
  auto acceptQueue = std::make_shared<AcceptQueue>(endpoint_, streams_, lane_);
  auto listener = std::make_shared<Listener>(endpoint_, lane_, acceptQueue);
  bool tooLate = false;
  {
    MutexLock lock(mutex_);
    acceptQueues_.push_back(std::move(acceptQueue));
    tooLate = closed_;
  }
  if (tooLate) {
    listener->close();
  }
  return listener;
}

bool TransportContext::isViable() const {
  return true; // else there would be no endpoint
}

const std::string& TransportContext::domainDescriptor() const {
  return domain_;
}

void TransportContext::setId(std::string) {}

void TransportContext::close() {
  std::vector<std::shared_ptr<AcceptQueue>> acceptQueues;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    acceptQueues.swap(acceptQueues_);
  }
  for (auto& acceptQueue : acceptQueues) {
    endpoint_->loop()->post([acceptQueue = std::move(acceptQueue)] { acceptQueue->close(); });
  }
  streams_->closeAll();
}

void TransportContext::join() {
  close();
  streams_->awaitEnd();
  // What was posted before, closing the accept queues for one, has been done when this has.
  std::promise<void> done;
  endpoint_->loop()->post([&done] { done.set_value(); });
  done.get_future().wait();
}

} // namespace torchwire
