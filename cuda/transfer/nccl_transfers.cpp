#include "cuda/transfer/nccl_transfers.h"

#include <stdexcept>

#include "backend/base/log.h"
#include "cuda/error_text.h"
#include "cuda/streams.h"
#include "cuda/transfer/trial_bytes.h"

namespace torchwire::cuda {
namespace {

void endLane(const std::shared_ptr<SendingLane>& lane) {
  lane->abort();
  lane->dropAll();
}

void endLane(const std::shared_ptr<ReceivingLane>& lane) {
  lane->abort();
}

} // namespace

// ---- sending ------------------------------------------------------------------------------------

std::pair<std::shared_ptr<SendingLane>, LaneTrial> NcclTransfers::open(const DeviceRoute& route) {
  LaneTrial trial;
  trial.to = route.to;
  trial.gpu = nccl_.gpuId(route.from.index());
  trial.id = nccl_.newId();
  trial.expected = randomBytes();
  auto communicator = nccl_.begin(route.from.index(), Communicator::Rank::sender, trial.id);
  MutexLock lock(mutex_);
  expectOpen();
  trial.lane = ++lastLane_;
  auto lane = std::make_shared<SendingLane>(trial.lane, std::move(communicator));
  sending_.emplace(trial.lane, Sending{route, lane});
  return {std::move(lane), std::move(trial)};
}

void NcclTransfers::sendTrial(SendingLane& lane, c10::Device from, const LaneTrial& trial) {
  const OwnStreams streams({from});
  lane.sendFirst(tensorOf(trial.expected).to(from));
}

void NcclTransfers::failSending(uint64_t number, const std::string& why, bool tell) {
  std::optional<Sending> failed;
  {
    MutexLock lock(mutex_);
    if (const auto found = sending_.find(number); found != sending_.end()) {
      failed = std::move(found->second);
      sending_.erase(found);
    }
  }
  if (!failed) {
    return; // the connection has been lost, or another thread has been as fast
  }
  failed->lane->fail(why);
  if (tell) {
    this->tell(failed->route.peer, LaneMessage::Kind::senderFailed, number, 0, why);
  }
  hooks_.failed(failed->route, why);
  hooks_.later([lane = std::move(failed->lane)] { endLane(lane); });
}

std::optional<TensorTicket> NcclTransfers::keep(
    const DeviceRoute& route, const at::Tensor& tensor) {
  std::shared_ptr<SendingLane> latest;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, sending] : sending_) {
      if (!(sending.route < route) && !(route < sending.route)) {
        latest = sending.lane;
      }
    }
  }
  return latest ? latest->keep(tensor) : std::nullopt;
}

void NcclTransfers::takeBack(const TensorTicket& ticket) {
  std::shared_ptr<SendingLane> lane;
  {
    MutexLock lock(mutex_);
    const auto found = sending_.find(ticket.lane);
    if (found == sending_.end()) {
      return;
    }
    lane = found->second.lane;
  }
  lane->drop(ticket.number);
}

// ---- receiving ----------------------------------------------------------------------------------

void NcclTransfers::onTrial(WorkerId from, const LaneTrial& trial) {
  const OwnStreams streams({trial.to});
  if (trial.gpu == nccl_.gpuId(trial.to.index())) {
    throw std::runtime_error("both devices are one GPU");
  }
  const auto lane = std::make_shared<ReceivingLane>(
      nccl_.begin(trial.to.index(), Communicator::Rank::receiver, trial.id));
  {
    MutexLock lock(mutex_);
    expectOpen();
    if (!receiving_.emplace(ReceivingKey{from, trial.lane}, lane).second) {
      throw FormatError("a lane is opened twice");
    }
  }
  try {
    const auto receipt = lane->receiveFirst(trial.expected.size(), trial.to);
    lane->await(receipt);
    if (bytesOf(receipt.tensor.cpu()) != trial.expected) {
      throw std::runtime_error("other bytes came than were sent");
    }
  } catch (const std::exception& e) { // which the answer tells the sender
    failReceiving({from, trial.lane}, reasonOf(e), /* tell */ false);
    throw;
  }
}

NcclTransfers::Received NcclTransfers::receive(
    WorkerId from, const TensorTicket& ticket, c10::Device to) {
  const ReceivingKey key{from, ticket.lane};
  const auto lane = receivingLane(key);
  if (!lane) {
    throw std::runtime_error("its lane of NCCL's has ended");
  }
  std::optional<ReceivingLane::Receipt> receipt;
  try {
    receipt = lane->receive(ticket, to);
  } catch (const std::exception& e) {
    if (lane->hasFailed()) {
      failReceiving(key, reasonOf(e), /* tell */ true);
    } else {
      discard(from, ticket);
    }
    throw;
  }
  LaneMessage fetch;
  fetch.lane = ticket.lane;
  fetch.kept = ticket.number;
  fetch.sequence = receipt->sequence;
  hooks_.send(from, fetch, [lane](const std::string& error) {
    if (!error.empty()) {
      lane->fail(error); // who waits for the tensor does the rest
    }
  });
  return {lane, std::move(*receipt), ticket.lane};
}

void NcclTransfers::await(WorkerId from, const Received& received) {
  try {
    received.lane->await(received.receipt);
  } catch (const std::exception& e) {
    failReceiving({from, received.laneNumber}, reasonOf(e), /* tell */ true);
    throw;
  }
}

void NcclTransfers::discard(WorkerId from, const TensorTicket& ticket) {
  tell(from, LaneMessage::Kind::drop, ticket.lane, ticket.number, "");
}

void NcclTransfers::failReceiving(const ReceivingKey& key, const std::string& why, bool tell) {
  std::shared_ptr<ReceivingLane> failed;
  {
    MutexLock lock(mutex_);
    if (const auto found = receiving_.find(key); found != receiving_.end()) {
      failed = std::move(found->second);
      receiving_.erase(found);
    }
  }
  if (!failed) {
    return;
  }
  failed->fail(why);
  if (tell) {
    this->tell(key.first, LaneMessage::Kind::receiverFailed, key.second, 0, why);
  }
  hooks_.later([failed] { endLane(failed); });
}

// ---- both ---------------------------------------------------------------------------------------

void NcclTransfers::onMessage(WorkerId from, const LaneMessage& message) {
  if (message.kind == LaneMessage::Kind::senderFailed) {
    failReceiving({from, message.lane}, message.error, /* tell */ false);
    return;
  }
  const auto lane = sendingLane(from, message.lane);
  if (!lane) {
    if (message.kind == LaneMessage::Kind::fetch) {
      throw std::runtime_error("the lane of NCCL's has ended");
    }
    return;
  }
  switch (message.kind) {
    case LaneMessage::Kind::fetch:
      try {
        lane->fetch(message.sequence, message.kept);
      } catch (const std::exception& e) { // which the answer tells the receiver
        failSending(message.lane, reasonOf(e), /* tell */ false);
        throw;
      }
      break;
    case LaneMessage::Kind::drop:
      lane->drop(message.kept);
      break;
    default:
      failSending(message.lane, message.error, /* tell */ false);
  }
}

std::shared_ptr<SendingLane> NcclTransfers::sendingLane(WorkerId to, uint64_t lane) const {
  MutexLock lock(mutex_);
  const auto found = sending_.find(lane);
  return found == sending_.end() || found->second.route.peer != to ? nullptr : found->second.lane;
}

std::shared_ptr<ReceivingLane> NcclTransfers::receivingLane(const ReceivingKey& key) const {
  MutexLock lock(mutex_);
  const auto found = receiving_.find(key);
  return found == receiving_.end() ? nullptr : found->second;
}

void NcclTransfers::lose(WorkerId peer, const std::string& why) {
  endLanes(why, [peer](WorkerId other) { return other == peer; });
}

void NcclTransfers::close(const std::string& why) {
  {
    MutexLock lock(mutex_);
    closed_ = why;
  }
  endLanes(why, [](WorkerId) { return true; });
}

template <typename IsMeant>
void NcclTransfers::endLanes(const std::string& why, IsMeant isMeant) {
  std::vector<std::shared_ptr<SendingLane>> sending;
  std::vector<std::shared_ptr<ReceivingLane>> receiving;
  {
    MutexLock lock(mutex_);
    std::erase_if(sending_, [&](const auto& entry) {
      const bool ends = isMeant(entry.second.route.peer);
      if (ends) {
        sending.push_back(entry.second.lane);
      }
      return ends;
    });
    std::erase_if(receiving_, [&](const auto& entry) {
      const bool ends = isMeant(entry.first.first);
      if (ends) {
        receiving.push_back(entry.second);
      }
      return ends;
    });
  }
  // All of them before the first is aborted, which may take time.
  for (const auto& lane : sending) {
    lane->fail(why);
  }
  for (const auto& lane : receiving) {
    lane->fail(why);
  }
  for (const auto& lane : sending) {
    hooks_.later([lane] { endLane(lane); });
  }
  for (const auto& lane : receiving) {
    hooks_.later([lane] { endLane(lane); });
  }
}

void NcclTransfers::expectOpen() const {
  if (!closed_.empty()) {
    throw std::runtime_error(closed_);
  }
}

void NcclTransfers::tell(
    WorkerId to, LaneMessage::Kind kind, uint64_t lane, uint64_t kept, std::string error) {
  hooks_.send(to, {kind, lane, kept, 0, std::move(error)}, [](const std::string& failed) {
    if (!failed.empty()) {
      log(LogLevel::debug, "the other end of a lane was not told: " + failed);
    }
  });
}

size_t NcclTransfers::kept() const {
  MutexLock lock(mutex_);
  size_t tensors = 0;
  for (const auto& [number, sending] : sending_) {
    tensors += sending.lane->kept();
  }
  return tensors;
}

} // namespace torchwire::cuda
