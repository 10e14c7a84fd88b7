// Agent: peers that die, those that nobody hears any more, and this worker where the others go on without it.
//
// | what is seen                                  | what it means                                                      |
// | --------------------------------------------- | ------------------------------------------------------------------ |
// | a peer's process on this host has ended, or,  | it is dead, at once; the others are told                           |
// | once its link is lost, runs another program   |                                                                    |
// | a peer's host says that nobody listens there  | the same, where its process is not to be seen                      |
// | a peer is silent for as long as its session   | it is dead if the store's list takes that down: so the others, and |
// | lasts                                         | the peer itself once it is heard again, agree                      |
// | a peer, or the list, says that this worker is | its part is over: it lets go of all that is others', and serves    |
// | dead                                          | nobody                                                             |
#include <atomic>
#include <future>
#include <optional>
#include <utility>

#include "backend/agent/agent.h"
#include "backend/base/bytes.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/link/link_errors.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"
#include "backend/transport/listener_probe.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;

// A peer that takes longer to hear of a death hears of it in another way.
constexpr milliseconds kAnnouncement{5000};
// How long others may take to show that this worker is not the one that is cut off.
constexpr milliseconds kHearing{2000};
// How long after a link has broken its peer's process is looked at.
constexpr milliseconds kLooks[] = {milliseconds(20), milliseconds(200), milliseconds(1000)};

bool isConnecting(PeerState state) {
  return state == PeerState::connected || state == PeerState::greeting;
}

} // namespace

// ---- finding out --------------------------------------------------------------------------------

void Agent::watch(const WorkerRecord& peer) {
  processes_->watch(peer.id, peer.process, [this, peer](const std::string& how) {
    links_->markDead(
        peer.id, peer.incarnation, "its process " + std::to_string(peer.process.pid) + " " + how);
  });
}

/// Of a peer whose process is not to be seen from here, the link tells: where its host says that nobody listens at its
/// address, it is dead. So a link that broke is dialed anew at once. A process that is seen may run another program.
void Agent::askWhetherItLives(WorkerId peer, const Error& loss) {
  if (loss.code() == ErrorCode::silent) {
    deaths_.run([this, peer] { declareSilent(peer); });
  } else if (processes_->watches(peer)) {
    processes_->look(peer);
  } else if (loss.code() == ErrorCode::nobodyListens) {
    if (const auto record = recordOf(peer)) {
      links_->markDead(peer, record->incarnation, "nobody listens at its address");
    }
  } else if (loss.code() == ErrorCode::linkBroken) {
    timer_.after(milliseconds(0), [this, peer] { // not before this loss is over
      links_->connect(peer, [](const Error&) {});
    });
  }
}

/// An execve closes the links before it is over, and takes its time where the program comes from a disk.
void Agent::lookForAnotherProgram(WorkerId peer) {
  for (const milliseconds after : kLooks) {
    timer_.after(after, [this, peer] { processes_->look(peer); });
  }
}

/// Of a peer that is in the group, as far as is known here.
std::optional<WorkerRecord> Agent::recordOf(WorkerId peer) const {
  const auto status = statusOf(peer);
  return status ? std::optional(status->record) : std::nullopt;
}

std::optional<PeerStatus> Agent::statusOf(WorkerId peer) const {
  for (PeerStatus& status : links_->status()) {
    if (status.record.id == peer && !isGone(status.state)) {
      return std::move(status);
    }
  }
  return std::nullopt;
}

/// From here a peer that stands still looks like one whose network is cut, or like one that waits for this worker: the list
/// in the store decides. On the thread for deaths.
void Agent::declareSilent(WorkerId id) {
  if (!hearsAnotherThan(id)) {
    log(LogLevel::warning,
        directory_.describe(id) +
            " is silent, and so are all others: this worker may be the one that is cut off, and "
            "declares nobody dead");
    return;
  }
  const auto status = statusOf(id);
  if (!status || isConnecting(status->state)) {
    return; // it is heard again
  }
  const WorkerRecord* peer = &status->record;
  const Death death{
      id, peer->incarnation,
      membership_->self().describe() + " had not heard from it for " +
          std::to_string(options_.sessionTimeout.count()) +
          " ms, and the group goes on without it"};
  const auto ruling = takeDown(death);
  if (!ruling) {
    log(LogLevel::warning,
        peer->describe() +
            " is silent, but cannot be declared dead without the store: it stays in the group");
  } else if (ruling->death.isOf(*peer)) {
    if (ruling->isNew) {
      announce(death);
    }
    links_->markDead(id, peer->incarnation, ruling->death.reason);
  }
}

/// Whether any other peer answers. Where there is none, nothing follows from that.
bool Agent::hearsAnotherThan(WorkerId silent) {
  const auto heard = std::make_shared<std::promise<void>>();
  const auto isFirst = std::make_shared<std::atomic<bool>>(true);
  bool isAlone = true;
  for (const PeerStatus& peer : links_->status()) {
    if (peer.record.id == silent || isGone(peer.state)) {
      continue;
    }
    isAlone = false;
    openOwnCall(
        peer.record.id, own_messages::kHearing, {}, kHearing, [heard, isFirst](const Outcome& end) {
          if (!end.error && isFirst->exchange(false)) {
            heard->set_value();
          }
        });
  }
  return isAlone || heard->get_future().wait_for(kHearing) == std::future_status::ready;
}

/// Nothing where the store does not answer. May find that this worker is dead.
std::optional<Membership::Ruling> Agent::takeDown(const Death& death) {
  try {
    auto ruling = membership_->declareDead(death);
    if (ruling.death.isOf(membership_->self())) {
      links_->endPart(describeDeath(ruling.death));
    }
    return ruling;
  } catch (const std::exception& e) {
    log(LogLevel::info, e.what());
    return std::nullopt;
  }
}

std::string Agent::describeDeath(const Death& own) const {
  return "the group goes on without it: " + membership_->self().describe() +
      " has died: " + own.reason;
}

// ---- telling others -----------------------------------------------------------------------------

/// Nothing depends on the answers: who is not told finds out by itself, and then in the store who has been first.
void Agent::announce(const Death& death) {
  std::vector<char> body;
  ByteWriter out(body);
  death.write(out);
  for (const PeerStatus& peer : links_->status()) {
    if (peer.record.id == death.id || isGone(peer.state)) {
      continue;
    }
    guarded("telling a worker of a death", [&] {
      openOwnCall(peer.record.id, own_messages::kDeath, body, kAnnouncement, [](const Outcome&) {});
    });
  }
}

void Agent::serveDeaths() {
  dispatcher_.handleOwn(own_messages::kHearing, [](WorkerId, Message&) {
    return completed(messageOf({}, own_messages::kNoted));
  });
  dispatcher_.handleOwn(own_messages::kDeath, [this](WorkerId, Message& request) {
    ByteReader in(std::as_const(request).payload());
    const Death death = Death::read(in);
    if (death.isOf(membership_->self())) {
      links_->endPart(describeDeath(death));
    } else {
      links_->markDead(death.id, death.incarnation, death.reason);
    }
    return completed(messageOf({}, own_messages::kNoted));
  });
}

// ---- what follows -------------------------------------------------------------------------------

/// Runs on a thread that may block. A peer whose link has merely broken, or that cannot be dialed, is not gone: from here a
/// network that is cut looks like a process that has died, and a worker that comes back goes on with its contexts.
void Agent::onPeerGone(const WorkerRecord& peer, const Error& error) {
  const bool died = error.code() == ErrorCode::workerDied;
  const bool isOver = error.code() == ErrorCode::declaredDead; // of this worker's own death
  // All have deleted what they held by then, and PyTorch is to find what they have not.
  const bool endsWithOthers = error.code() == ErrorCode::peerLeft && joinsOthers_;
  trace(
      died         ? "worker died"
          : isOver ? "this worker declared dead"
                   : "worker left",
      peer.id, error);
  guarded("the end of a peer", [&] {
    if (!endsWithOthers) {
      rrefs_->workerGone(peer.id, error);
    }
    contexts_.peerGone(peer.id)(); // nobody else would release what it has opened
    if (died && isOpen()) {
      devices_->remove(peer.id);
    }
  });
  if (error.code() != ErrorCode::peerLeft || !isStaticGroup()) {
    options_.workerEvents.lost(peer, error);
  }
  links_->reclaimed(peer.id, peer.incarnation);
  if (died) {
    if (!links_->isLeaving()) { // else it may well have ended for that reason
      log(LogLevel::warning, error.message());
    }
    deaths_.run([this, peer, error] { tellOfDeath(peer, error); });
  }
}

/// On the thread for deaths.
void Agent::tellOfDeath(const WorkerRecord& peer, const Error& error) {
  const Death death{peer.id, peer.incarnation, reasonOfDeath(peer, error)};
  const auto ruling = takeDown(death);
  if (!ruling || ruling->isNew) { // without a store those who have seen it tell the others
    announce(death);
  }
  if (ruling && ruling->death.isOf(peer) && isOpen()) {
    takeOffRoster(peer);
  }
}

void Agent::takeOffRoster(const WorkerRecord& dead) {
  try {
    membership_->remove(dead);
  } catch (const std::exception&
               e) { // another survivor may do it, or the worker that comes in its place
    log(LogLevel::info, e.what());
  }
}

/// Throws where this worker is to take part in nothing of the group's any more.
void Agent::expectPart() const {
  if (const auto error = links_->declaredDead()) {
    throw Membership::LeftOut(error->message());
  }
}

// ---- before this worker joins -------------------------------------------------------------------

bool Agent::hasEnded(const WorkerRecord& worker, bool asksHost) const {
  const Presence presence = presenceOf(worker.process);
  if (presence != Presence::unknown || !asksHost) {
    return isOver(presence);
  }
  if (worker.address == address_) {
    return true; // this worker listens there now
  }
  try {
    return nobodyListensAt(worker.address.substr(worker.address.find("://") + 3));
  } catch (const std::exception&) { // it has no TCP address: nothing can be said
    return false;
  }
}

} // namespace torchwire
