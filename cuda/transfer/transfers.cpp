#include "cuda/transfer/transfers.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <tuple>
#include <utility>

#include "backend/base/log.h"
#include "cuda/error_text.h"
#include "cuda/mutation.h"
#include "cuda/placement.h"
#include "cuda/streams.h"
#include "cuda/transfer/memory_trial.h"

namespace torchwire::cuda {
namespace {

/// Whether its elements are all in one memory of an accelerator, so that a ticket can stand for it.
bool canHaveTicket(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu() && tensor.device().has_index() &&
      hasOneMemory(tensor) && tensor.has_storage() && tensor.numel() != 0;
}

at::Tensor copyOn(c10::Device device, const at::Tensor& tensor) {
  const at::NoGradGuard noGrad;
  return tensor.to(device, tensor.scalar_type(), /* non_blocking */ true, /* copy */ true)
      .set_requires_grad(tensor.requires_grad());
}

} // namespace

/// A block of a peer's that this worker has copied from, or could not.
struct Transfers::Fetched {
  BlocksDone::Block done;
  std::optional<IpcTransfers::Fetched> copy;
};

/// A tensor that comes by NCCL.
struct Transfers::Arriving {
  size_t index;
  NcclTransfers::Received received;
};

/// What is left to be done for the tensors of a message.
struct Transfers::Placing {
  std::vector<Fetched> fetched;
  std::optional<NcclTransfers::Received> received; // the latest
};

Transfers::Transfers(
    WorkerId self, std::shared_ptr<const GroupDevices> devices, std::shared_ptr<ThreadPool> copies,
    std::string everythingInFrames, std::set<DevicePath> leftOut)
    : self_(self),
      devices_(std::move(devices)),
      copies_(std::move(copies)),
      everythingInFrames_(std::move(everythingInFrames)),
      paths_(
          self,
          {[this](const DeviceRoute& route, DevicePath path) { return objectionTo(route, path); },
           [this](const DeviceRoute& route, DevicePath path, uint64_t trial) {
             tryPath(route, path, trial);
           },
           [this](const DeviceRoute& route, DevicePath taken, const std::string& why) {
             fellBack(route, taken, why);
           }},
          std::move(leftOut)) {}

void Transfers::connect(Hooks hooks) {
  hooks_ = std::move(hooks);
}

// ---- sending ------------------------------------------------------------------------------------

OutgoingTensors Transfers::begin(
    WorkerId to, std::vector<at::Tensor> tensors, TensorDevices devices) {
  TensorTargets targets{std::move(devices), {}};
  std::vector<TensorTicket> tickets;
  OutgoingTensors::TakeBack takeBack;
  try {
    for (size_t i = 0; i < targets.devices.size(); ++i) {
      if (auto ticket = ticketFor(to, tensors[i], targets.devices[i])) {
        targets.tickets.resize(tensors.size());
        targets.tickets[i] = true;
        tensors[i] = ticket->encode();
        tickets.push_back(std::move(*ticket));
      }
    }
  } catch (...) {
    for (const TensorTicket& ticket : tickets) {
      this->takeBack(to, ticket);
    }
    throw;
  }
  if (!tickets.empty()) {
    takeBack = [self = shared_from_this(), to, tickets = std::move(tickets)] {
      for (const TensorTicket& ticket : tickets) {
        self->takeBack(to, ticket);
      }
    };
  }
  return {std::move(tensors), std::move(targets), std::move(takeBack)};
}

std::optional<TensorTicket> Transfers::ticketFor(
    WorkerId to, const at::Tensor& tensor, c10::Device target) {
  if (target.is_cpu() || !everythingInFrames_.empty() || !canHaveTicket(tensor)) {
    return std::nullopt;
  }
  try {
    const DeviceRoute route{to, tensor.device(), target};
    const DevicePath path = paths_.choose(route, tensor.nbytes());
    if (path == DevicePath::host) {
      return std::nullopt;
    }
    keepForCurrentStream(tensor); // until it has been copied
    switch (path) {
      case DevicePath::process:
        return keep(target, tensor);
      case DevicePath::ipc:
        return ipc_.load()->lend(to, tensor);
      default:
        return nccl_.load()->keep(route, tensor);
    }
  } catch (const std::exception& e) { // no memory on the device, for one, which the host may have
    log(LogLevel::info,
        "a tensor of " + tensor.device().str() + " goes by way of the host: " + reasonOf(e));
  }
  return std::nullopt;
}

TensorTicket Transfers::keep(c10::Device target, const at::Tensor& tensor) {
  TensorTicket ticket;
  ticket.number = kept_.keep(copyOn(target, tensor));
  return ticket;
}

void Transfers::takeBack(WorkerId to, const TensorTicket& ticket) {
  if (ticket.path == DevicePath::process) {
    kept_.take(ticket.number);
  } else if (ticket.path == DevicePath::ipc) {
    ipc_.load()->giveBack(to, ticket.block.id);
  } else {
    nccl_.load()->takeBack(ticket);
  }
}

void Transfers::peerLost(WorkerId peer) {
  paths_.forget(peer);
  if (IpcTransfers* const ipc = ipc_) {
    ipc->retireLent(peer);
    copies_->run([self = shared_from_this(), ipc, peer] { ipc->closeBorrowed(peer); });
  }
}

void Transfers::endLanes(WorkerId peer, const std::string& why) {
  if (NcclTransfers* const nccl = nccl_) {
    nccl->lose(peer, why);
  }
}

void Transfers::close() {
  {
    MutexLock lock(ipcMutex_);
    isClosed_ = true;
  }
  if (NcclTransfers* const nccl = nccl_) {
    nccl->close("worker '" + devices_->self().name + "' shuts its RPC agent down");
  }
}

// ---- receiving ----------------------------------------------------------------------------------

void Transfers::place(
    WorkerId from, std::vector<at::Tensor>& tensors, const TensorTargets& targets) {
  Placing placing;
  std::vector<Arriving> arriving;
  std::exception_ptr failed;
  for (size_t i = 0; i < targets.tickets.size(); ++i) { // all of them, so that none stays
    if (targets.tickets[i]) {
      try {
        tensors[i] = fetch(from, TensorTicket::decode(tensors[i]), targets.devices[i], placing);
        if (placing.received) {
          arriving.push_back({i, *std::exchange(placing.received, std::nullopt)});
        }
      } catch (const std::exception& e) {
        failed = std::make_exception_ptr(cannotPlace(i, from, targets.devices[i], e));
      }
    }
  }
  if (!placing.fetched.empty()) {
    tellWhenCopied(from, std::move(placing.fetched));
  }
  for (const Arriving& one : arriving) { // all have been begun by now
    try {
      nccl_.load()->await(from, one.received);
    } catch (const std::exception& e) {
      failed = std::make_exception_ptr(cannotPlace(one.index, from, targets.devices[one.index], e));
    }
  }
  if (failed) {
    std::rethrow_exception(failed);
  }
  placeOnDevices(tensors, targets.devices, devices_->self().name);
}

std::runtime_error Transfers::cannotPlace(
    size_t index, WorkerId from, c10::Device target, const std::exception& why) const {
  return std::runtime_error(
      "worker '" + devices_->self().name + "' cannot put tensor " + std::to_string(index) + " of " +
      describe(from) + " on its " + target.str() + ": " + reasonOf(why));
}

at::Tensor Transfers::fetch(
    WorkerId from, const TensorTicket& ticket, c10::Device target, Placing& placing) {
  if (ticket.path == DevicePath::process) {
    if (from != self_) {
      throw FormatError("its ticket is for a tensor of this process");
    }
    return kept_.take(ticket.number);
  }
  try {
    if (ticket.path == DevicePath::nccl) {
      placing.received = ncclLanes().receive(from, ticket, target);
      return placing.received->receipt.tensor;
    }
    return copyLent(from, ticket, target, placing.fetched);
  } catch (const c10::OutOfMemoryError& e) {
    throw std::runtime_error(
        reasonOf(e) + ". Free memory on that device, or map the sender's device to another one");
  }
}

at::Tensor Transfers::copyLent(
    WorkerId from, const TensorTicket& ticket, c10::Device target, std::vector<Fetched>& fetched) {
  fetched.push_back({{ticket.block.id, "", ticket.from, target}, std::nullopt});
  try {
    fetched.back().copy = ipcFor(target.type()).fetch(from, ticket, target);
    return std::move(fetched.back().copy->tensor);
  } catch (const c10::OutOfMemoryError&) { // which says nothing against the path
    throw;
  } catch (const std::exception& e) {
    fetched.back().done.error = reasonOf(e);
    throw;
  }
}

// Not here: the host would wait.
void Transfers::tellWhenCopied(WorkerId from, std::vector<Fetched> fetched) {
  copies_->run([self = shared_from_this(), from, fetched = std::move(fetched)]() mutable {
    BlocksDone done;
    for (Fetched& block : fetched) {
      try {
        if (block.copy) {
          TORCHWIRE_SYNCHRONIZE(blocksDoneAfterCopy, block.copy->copied.synchronize());
        }
      } catch (const std::exception& e) {
        block.done.error = reasonOf(e);
      }
      block.copy.reset(); // closes it, before its owner may free it
      done.blocks.push_back(std::move(block.done));
    }
    self->hooks_.sendDone(from, done.encode());
  });
}

void Transfers::discard(
    WorkerId from, const std::vector<at::Tensor>& tensors, const TensorTargets& targets) {
  BlocksDone done;
  for (size_t i = 0; i < targets.tickets.size(); ++i) {
    if (!targets.tickets[i]) {
      continue;
    }
    const TensorTicket ticket = TensorTicket::decode(tensors[i]);
    if (ticket.path == DevicePath::ipc) {
      done.blocks.push_back({ticket.block.id, "", ticket.from, targets.devices[i]});
    } else if (ticket.path == DevicePath::nccl) {
      ncclLanes().discard(from, ticket);
    } else if (from == self_) {
      kept_.take(ticket.number);
    }
  }
  if (!done.blocks.empty()) {
    hooks_.sendDone(from, done.encode());
  }
}

void Transfers::onDone(WorkerId from, const std::vector<char>& body) {
  IpcTransfers* const ipc = ipc_;
  for (const BlocksDone::Block& block : BlocksDone::decode(body).blocks) {
    if (ipc != nullptr) {
      ipc->giveBack(from, block.id);
    }
    if (!block.error.empty()) {
      paths_.failed({from, block.from, block.to}, DevicePath::ipc, block.error);
    }
  }
}

std::string Transfers::describe(WorkerId worker) const {
  const DeviceRecord* const record = devices_->record(worker);
  return record == nullptr ? "the worker with rank " + std::to_string(worker)
                           : "worker '" + record->name + "'";
}

// ---- which way ----------------------------------------------------------------------------------

std::optional<std::string> Transfers::objectionTo(const DeviceRoute& route, DevicePath path) const {
  if (path == DevicePath::nccl) {
    return objectionToNccl(route);
  }
  if (route.from.type() != c10::DeviceType::CUDA || route.to.type() != c10::DeviceType::CUDA) {
    return "only CUDA devices' memory can be opened by another process";
  }
  const DeviceRecord* const peer = devices_->record(route.peer);
  if (!isOnThisHost(peer)) {
    return "it runs on another host";
  }
  return std::nullopt;
}

bool Transfers::isOnThisHost(const DeviceRecord* worker) const {
  return worker != nullptr && !worker->host.empty() && worker->host == devices_->self().host;
}

/// Not that both devices are one GPU, which only the trial finds out: processes may have different numbers for it.
std::optional<std::string> Transfers::objectionToNccl(const DeviceRoute& route) const {
  const DeviceRecord* const peer = devices_->record(route.peer);
  const bool here = devices_->self().nccl;
  const bool there = peer != nullptr && peer->nccl;
  if ((!here && !there) || route.from.type() != c10::DeviceType::CUDA ||
      route.to.type() != c10::DeviceType::CUDA) {
    return "";
  }
  if (here && there) {
    return (devices_->self().ncclLeavesHost && peer->ncclLeavesHost) || isOnThisHost(peer)
        ? std::nullopt
        : std::optional<std::string>(
              "it cannot be encrypted, as connections between hosts have to be: set "
              "encryption=False on all workers, or leave nccl out");
  }
  return (here ? describe(route.peer) : "worker '" + devices_->self().name + "'") +
      " does not have the option nccl";
}

void Transfers::tryPath(const DeviceRoute& route, DevicePath path, uint64_t trial) {
  if (path == DevicePath::nccl) {
    tryNccl(route, trial);
  } else {
    tryIpc(route, trial);
  }
}

void Transfers::fellBack(const DeviceRoute& route, DevicePath taken, const std::string& why) const {
  const std::string subject = "tensors of " + route.from.str() + " for " + route.to.str() + " of " +
      describe(route.peer) + " go ";
  if (taken == DevicePath::host) {
    log(LogLevel::warning, subject + "by way of the host: " + why);
  } else { // if that works; as the option asks for
    log(LogLevel::info, subject + "by NCCL: " + why);
  }
}

void Transfers::tryIpc(const DeviceRoute& route, uint64_t trial) {
  copies_->run([self = shared_from_this(), route, trial] {
    try {
      IpcTransfers& ipc = self->ipcFor(route.from.type());
      const auto attempt = MemoryTrial::begin(ipc, route);
      if (!attempt) {
        self->paths_.postpone(route, trial); // other tensors are under way
        return;
      }
      self->hooks_.sendTrial(
          route.peer, attempt->request.encode(),
          [self, &ipc, route, trial, block = attempt->block](const std::string& error) {
            ipc.giveBack(route.peer, block);
            self->paths_.tried(route, trial, error.empty() ? std::nullopt : std::optional(error));
          });
    } catch (const std::exception& e) {
      self->paths_.tried(route, trial, reasonOf(e));
    }
  });
}

void Transfers::onTrial(WorkerId from, const std::vector<char>& body) {
  const TrialRequest request = TrialRequest::decode(body);
  devices_->expectUsed({request.to});
  MemoryTrial::check(ipcFor(request.to.type()), from, request);
}

void Transfers::tryNccl(const DeviceRoute& route, uint64_t trial) {
  copies_->run([self = shared_from_this(), route, trial] {
    std::shared_ptr<SendingLane> lane;
    try {
      NcclTransfers& nccl = self->ncclLanes();
      LaneTrial request;
      std::tie(lane, request) = nccl.open(route);
      self->hooks_.sendLaneTrial(
          route.peer, request.encode(),
          [self, &nccl, route, trial, number = lane->number()](const std::string& error) {
            if (error.empty()) {
              self->paths_.tried(route, trial, std::nullopt);
            } else {
              nccl.failSending(number, error, /* tell */ false);
            }
          });
      NcclTransfers::sendTrial(*lane, route.from, request);
    } catch (const std::exception& e) {
      if (lane) {
        self->ncclLanes().failSending(lane->number(), reasonOf(e), /* tell */ true);
      } else {
        self->paths_.tried(route, trial, reasonOf(e));
      }
    }
  });
}

void Transfers::onLaneMessage(WorkerId from, const std::vector<char>& body) {
  ncclLanes().onMessage(from, LaneMessage::decode(body));
}

void Transfers::onLaneTrial(WorkerId from, const std::vector<char>& body) {
  const LaneTrial trial = LaneTrial::decode(body);
  devices_->expectUsed({trial.to});
  ncclLanes().onTrial(from, trial);
}

// Takes a library in, so not where one sends.
NcclTransfers& Transfers::ncclLanes() {
  if (NcclTransfers* const made = nccl_) {
    return *made;
  }
  if (!devices_->self().nccl) {
    throw std::runtime_error(
        "worker '" + devices_->self().name + "' does not have the option nccl");
  }
  const auto library = nccl();
  if (const auto* why = std::get_if<std::string>(&library)) {
    throw std::runtime_error(*why);
  }
  MutexLock lock(ipcMutex_);
  if (isClosed_) {
    throw std::runtime_error("this worker shuts down");
  }
  if (!ownedNccl_) {
    ownedNccl_ = std::make_unique<NcclTransfers>(*std::get<Nccl*>(library), ncclHooks());
    nccl_ = ownedNccl_.get();
  }
  return *ownedNccl_;
}

NcclTransfers::Hooks Transfers::ncclHooks() {
  return {
      [this](
          WorkerId to, const LaneMessage& message,
          std::function<void(const std::string& error)> done) {
        hooks_.sendLaneMessage(to, message.encode(), std::move(done));
      },
      [this](std::function<void()> task) {
        copies_->run([self = shared_from_this(), task = std::move(task)] { task(); });
      },
      [this](const DeviceRoute& route, const std::string& why) {
        paths_.failed(route, DevicePath::nccl, why);
      }};
}

// Takes a library in, so not where one sends.
IpcTransfers& Transfers::ipcFor(c10::DeviceType type) {
  const auto memory = deviceMemoryOf(type);
  if (const auto* why = std::get_if<std::string>(&memory)) {
    throw std::runtime_error(*why);
  }
  MutexLock lock(ipcMutex_);
  if (!ownedIpc_) {
    DeviceMemory& ofType = *std::get<DeviceMemory*>(memory);
    ownedIpc_ = std::make_unique<IpcTransfers>(
        ofType, [copies = copies_, &ofType](const DeviceMemory::Block& block) {
          if (!copies->run([&ofType, block] { ofType.free(block); })) {
            ofType.free(block); // the agent shuts down
          }
        });
    ipc_ = ownedIpc_.get();
  }
  return *ownedIpc_;
}

std::vector<DevicePaths::Explanation> Transfers::explain(WorkerId peer) const {
  std::vector<DevicePaths::Explanation> explanations;
  for (const auto& [from, to] : sortedEntries(devices_->mapTo(peer, cuda::Direction::request))) {
    const DeviceRoute route{peer, from, to};
    explanations.push_back(
        everythingInFrames_.empty()
            ? paths_.explain(route)
            : DevicePaths::Explanation{route, DevicePath::host, everythingInFrames_});
  }
  return explanations;
}

Transfers::Usage Transfers::usage() const {
  const IpcTransfers* const ipc = ipc_;
  const NcclTransfers* const nccl = nccl_;
  return {
      kept_.size(), ipc == nullptr ? LentBlocks::Usage() : ipc->usage(),
      nccl == nullptr ? 0 : nccl->kept()};
}

} // namespace torchwire::cuda
