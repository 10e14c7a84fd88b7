// What two contexts with transports and channels of their own say of a link between them, by each other's offers.
#include <catch2/catch.hpp>

#include <optional>
#include <string>
#include <vector>

#include "backend/tensorpipe/tensorpipe_context.h"
#include "backend/transport/loop.h"

using namespace torchwire;

namespace {

using Names = std::optional<std::vector<std::string>>;

/// Without a key, torchwire's own transports cannot be made; with one, they are.
class Side {
 public:
  explicit Side(
      Names transports = {}, Names channels = {}, bool hasKey = true,
      Encryption encryption = Encryption::automatic) {
    TensorPipeOptions options;
    options.encryption = encryption;
    options.workerName = "worker";
    options.bindAddress = "127.0.0.1";
    options.transports = std::move(transports);
    options.channels = std::move(channels);
    if (hasKey) {
      options.keys =
          std::make_shared<const KeyRing>(GroupKey(7, "a secret of sixteen bytes or more"));
    }
    options.loop = loop_;
    context_ = makeTensorPipeContext(
        std::move(options), std::make_shared<BufferPool>(size_t{1} << 20, timer_), timer_);
  }
  ~Side() {
    timer_.stop();
    context_->join();
    context_.reset();
    loop_->stopAside();
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  LinkContext& operator*() {
    return *context_;
  }

 private:
  Timer timer_;
  const std::shared_ptr<Loop> loop_ = Loop::start("test_io");
  std::unique_ptr<LinkContext> context_;
};

LinkDescription between(Side& here, Side& there) {
  return (*here).describe((*there).offer());
}

LinkDescription betweenHosts(Side& here, Side& there) {
  std::vector<char> offer = (*there).offer();
  offer.back() = offer.back() == '0' ? '1' : '0'; // of the boot's id
  return (*here).describe(offer);
}

std::vector<std::string> textsOf(const std::vector<NotTaken>& notTaken) {
  std::vector<std::string> texts;
  for (const auto& [name, reason, remedy] : notTaken) {
    texts.push_back(name + ": " + reason);
  }
  return texts;
}

} // namespace

TEST_CASE("nothing comes before what two in one process use", "[described_link]") {
  Side here;
  Side there;
  const LinkDescription link = between(here, there);
  CHECK(link.transport == "wire_shm");
  REQUIRE(link.alternatives);
  CHECK(link.alternatives->transports.empty());
}

TEST_CASE("what an option leaves out is told on both sides", "[described_link]") {
  Side here({{"wire_tcp"}}, {{"basic"}});
  Side there;
  const LinkDescription ours = between(here, there);
  CHECK(ours.transport == "wire_tcp");
  CHECK(ours.channel == "basic");
  CHECK(
      textsOf(ours.alternatives->transports) ==
      std::vector<std::string>{"wire_shm: the option _transports leaves it out"});
  CHECK(textsOf(ours.alternatives->channels).front() == "cma: the option _channels leaves it out");
  const LinkDescription theirs = between(there, here);
  CHECK(theirs.transport == "wire_tcp");
  CHECK(
      textsOf(theirs.alternatives->transports) ==
      std::vector<std::string>{"wire_shm: the other worker's options leave it out"});
}

TEST_CASE(
    "what does not work for one worker is told to the other, with its reason", "[described_link]") {
  Side here({{"wire_shm", "uv"}}, {{"basic"}}, /*hasKey=*/false);
  Side there({{"wire_shm", "uv"}}, {{"basic"}});
  const LinkDescription ours = between(here, there);
  CHECK(ours.transport == "uv");
  const std::string reason =
      "there is no group key, by which it could tell workers from unknown peers";
  CHECK(textsOf(ours.alternatives->transports).front() == "wire_shm: " + reason);
  CHECK(
      textsOf(between(there, here).alternatives->transports).front() ==
      "wire_shm: it does not work for the other worker: " + reason);
}

TEST_CASE("the order of an option is the order of preference", "[described_link]") {
  Side here({{"wire_tcp", "wire_shm"}});
  Side there({{"wire_tcp", "wire_shm"}});
  const LinkDescription link = between(here, there);
  CHECK(link.transport == "wire_tcp");
  CHECK(link.alternatives->transports.empty());
}

TEST_CASE("nothing goes to another host by what cannot be encrypted", "[described_link]") {
  Side uv({{"uv"}}, {{"basic"}}, false);
  CHECK(between(uv, uv).objection.empty());
  CHECK(
      betweenHosts(uv, uv).objection ==
      "it is on another host, and its transport with this worker, 'uv', cannot be encrypted: leave "
      "it out of _transports, or set encryption=False, on all workers");
  Side lanes({}, {{"mpt_uv"}});
  CHECK(between(lanes, lanes).objection.empty());
  CHECK(
      betweenHosts(lanes, lanes).objection.find("its channel with this worker, 'mpt_uv'") !=
      std::string::npos);
  Side sealed({{"wire_tcp"}}, {{"basic"}});
  CHECK(betweenHosts(sealed, sealed).objection.empty());
  Side plain({{"uv"}}, {{"basic"}}, false, Encryption::off);
  CHECK(betweenHosts(plain, plain).objection.empty());
}
