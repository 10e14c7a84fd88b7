#include "cuda/transfer/transfers.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <exception>
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

Transfers::Transfers(
    WorkerId self, std::shared_ptr<const GroupDevices> devices, std::shared_ptr<ThreadPool> copies,
    std::string everythingInFrames, std::set<DevicePath> leftOut)
    : self_(self),
      devices_(std::move(devices)),
      copies_(std::move(copies)),
      everythingInFrames_(std::move(everythingInFrames)),
      paths_(
          self,
          {[this](const DeviceRoute& route) { return objectionToIpc(route); },
           [this](const DeviceRoute& route, uint64_t trial) { tryIpc(route, trial); },
           [this](const DeviceRoute& route, const std::string& why) {
             log(LogLevel::warning,
                 "tensors of " + route.from.str() + " for " + route.to.str() + " of " +
                     describe(route.peer) + " go by way of the host: " + why);
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
    const DevicePath path = paths_.choose({to, tensor.device(), target}, tensor.nbytes());
    if (path == DevicePath::host) {
      return std::nullopt;
    }
    keepForCurrentStream(tensor); // until it has been copied
    return path == DevicePath::process ? keep(target, tensor) : ipc_.load()->lend(to, tensor);
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
  } else {
    ipc_.load()->giveBack(to, ticket.block.id);
  }
}

void Transfers::peerLost(WorkerId peer) {
  paths_.forget(peer);
  if (IpcTransfers* const ipc = ipc_) {
    ipc->retireLent(peer);
    copies_->run([self = shared_from_this(), ipc, peer] { ipc->closeBorrowed(peer); });
  }
}

// ---- receiving ----------------------------------------------------------------------------------

void Transfers::place(
    WorkerId from, std::vector<at::Tensor>& tensors, const TensorTargets& targets) {
  std::vector<Fetched> fetched;
  std::exception_ptr failed;
  for (size_t i = 0; i < targets.tickets.size(); ++i) { // all of them, so that none stays
    if (targets.tickets[i]) {
      try {
        tensors[i] = fetch(from, TensorTicket::decode(tensors[i]), targets.devices[i], fetched);
      } catch (const std::exception& e) {
        failed = std::make_exception_ptr(
            std::runtime_error(
                "worker '" + devices_->self().name + "' cannot put tensor " + std::to_string(i) +
                " of " + describe(from) + " on its " + targets.devices[i].str() + ": " +
                reasonOf(e)));
      }
    }
  }
  if (!fetched.empty()) {
    tellWhenCopied(from, std::move(fetched));
  }
  if (failed) {
    std::rethrow_exception(failed);
  }
  placeOnDevices(tensors, targets.devices, devices_->self().name);
}

at::Tensor Transfers::fetch(
    WorkerId from, const TensorTicket& ticket, c10::Device target, std::vector<Fetched>& fetched) {
  if (ticket.path == DevicePath::process) {
    if (from != self_) {
      throw FormatError("its ticket is for a tensor of this process");
    }
    return kept_.take(ticket.number);
  }
  fetched.push_back({{ticket.block.id, "", ticket.from, target}, std::nullopt});
  try {
    fetched.back().copy = ipcFor(target.type()).fetch(from, ticket, target);
    return std::move(fetched.back().copy->tensor);
  } catch (const c10::OutOfMemoryError& e) { // which says nothing against the path
    throw std::runtime_error(
        reasonOf(e) + ". Free memory on that device, or map the sender's device to another one");
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
      paths_.failed({from, block.from, block.to}, block.error);
    }
  }
}

std::string Transfers::describe(WorkerId worker) const {
  const DeviceRecord* const record = devices_->record(worker);
  return record == nullptr ? "the worker with rank " + std::to_string(worker)
                           : "worker '" + record->name + "'";
}

// ---- which way ----------------------------------------------------------------------------------

std::optional<std::string> Transfers::objectionToIpc(const DeviceRoute& route) const {
  if (route.from.type() != c10::DeviceType::CUDA || route.to.type() != c10::DeviceType::CUDA) {
    return "only CUDA devices' memory can be opened by another process";
  }
  const DeviceRecord* const peer = devices_->record(route.peer);
  if (peer == nullptr || peer->host.empty() || peer->host != devices_->self().host) {
    return "it runs on another host";
  }
  return std::nullopt;
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
  return {kept_.size(), ipc == nullptr ? LentBlocks::Usage() : ipc->usage()};
}

} // namespace torchwire::cuda
