#include "backend/tensorpipe/advertised_transport.h"

#include <tensorpipe/transport/listener.h>

#include <utility>

#include "backend/base/address.h"

namespace torchwire {
namespace {

namespace transport = tensorpipe::transport;

class AdvertisingListener final : public transport::Listener {
 public:
  AdvertisingListener(std::shared_ptr<transport::Listener> inner, const std::string& host)
      : inner_(std::move(inner)), address_(withPort(host, portOf(inner_->addr()))) {}

  void accept(accept_callback_fn fn) override {
    inner_->accept(std::move(fn));
  }
  std::string addr() const override {
    return address_;
  }
  void setId(std::string id) override {
    inner_->setId(std::move(id));
  }
  void close() override {
    inner_->close();
  }

 private:
  const std::shared_ptr<transport::Listener> inner_;
  const std::string address_;
};

class AdvertisingContext final : public transport::Context {
 public:
  AdvertisingContext(std::shared_ptr<transport::Context> inner, std::string host)
      : inner_(std::move(inner)), host_(std::move(host)) {}

  std::shared_ptr<transport::Connection> connect(std::string address) override {
    return inner_->connect(std::move(address));
  }
  std::shared_ptr<transport::Listener> listen(std::string address) override {
    return std::make_shared<AdvertisingListener>(inner_->listen(std::move(address)), host_);
  }
  bool isViable() const override {
    return inner_->isViable();
  }
  const std::string& domainDescriptor() const override {
    return inner_->domainDescriptor();
  }
  bool canCommunicateWithRemote(const std::string& remote) const override {
    return inner_->canCommunicateWithRemote(remote);
  }
  void setId(std::string id) override {
    inner_->setId(std::move(id));
  }
  void close() override {
    inner_->close();
  }
  void join() override {
    inner_->join();
  }

 private:
  const std::shared_ptr<transport::Context> inner_;
  const std::string host_;
};

} // namespace

std::shared_ptr<transport::Context> advertise(
    std::shared_ptr<transport::Context> inner, std::string host) {
  return std::make_shared<AdvertisingContext>(std::move(inner), std::move(host));
}

} // namespace torchwire
