#include "backend/transport/context.h"

#include <future>
#include <utility>

#include "backend/transport/connection.h"

namespace torchwire {

TransportContext::TransportContext(std::shared_ptr<Port> port, uint8_t lane)
    : port_(std::move(port)),
      lane_(lane),
      domain_(port_->kind().domain()),
      conversations_(std::make_shared<Conversations>()) {}

TransportContext::~TransportContext() {
  join();
}

std::shared_ptr<tensorpipe::transport::Connection> TransportContext::connect(std::string address) {
  std::shared_ptr<Conversation> conversation = conversations_->open(port_->loop());
  port_->loop()->post([port = port_, address = std::move(address), conversation] {
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
  auto lobby = std::make_shared<Lobby>(port_, conversations_, lane_);
  auto listener = std::make_shared<Listener>(port_, lane_, lobby);
  bool tooLate = false;
  {
    MutexLock lock(mutex_);
    lobbies_.push_back(std::move(lobby));
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
  std::vector<std::shared_ptr<Lobby>> lobbies;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    lobbies.swap(lobbies_);
  }
  for (auto& lobby : lobbies) {
    port_->loop()->post([lobby = std::move(lobby)] { lobby->close(); });
  }
  conversations_->closeAll();
}

void TransportContext::join() {
  close();
  conversations_->awaitEnd();
  // What was posted before, closing the lobbies for one, has been done when this has.
  std::promise<void> done;
  port_->loop()->post([&done] { done.set_value(); });
  done.get_future().wait();
}

} // namespace torchwire
