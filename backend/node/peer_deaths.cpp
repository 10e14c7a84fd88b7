#include "backend/node/peer_deaths.h"

#include <atomic>
#include <exception>
#include <utility>

#include "backend/base/bytes.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/link/link_errors.h"
#include "backend/transport/listener_probe.h"
#include "backend/wire/own_requests.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;

// A peer that takes longer to hear of a death hears of it in another way.
constexpr milliseconds kAnnouncement{5000};
// How long others may take to show that this worker is not the one that is cut off.
constexpr milliseconds kPing{2000};
// How long after a link has broken its peer's process is looked at. An execve closes the links before it is over, and takes its
// time where the program comes from a disk.
constexpr milliseconds kLooks[] = {milliseconds(20), milliseconds(200), milliseconds(1000)};

bool isConnecting(PeerState state) {
  return state == PeerState::connected || state == PeerState::greeting;
}

/// Pings that have been sent at the same time. Thread-safe.
class Pings {
 public:
  /// `then` is called once, as soon as one has been answered or all have ended.
  explicit Pings(std::function<void(bool anyAnswers)> then) : then_(std::move(then)) {}

  void begin() {
    ++pending_;
  }
  void end(bool answered) {
    if (answered) { // before it counts as ended: else another one that ends now would say that none was
      tell(true);
    }
    if (--pending_ == 0) {
      tell(false);
    }
  }

 private:
  void tell(bool anyAnswers) {
    if (!told_.exchange(true)) {
      then_(anyAnswers);
    }
  }

  std::atomic<size_t> pending_{0};
  std::atomic<bool> told_{false};
  const std::function<void(bool anyAnswers)> then_;
};

} // namespace

PeerDeaths::PeerDeaths(Worker worker) : worker_(std::move(worker)) {
  worker_.calls.handle(
      own_requests::kPing,
      [](WorkerId, const OwnCalls::Body&, const OwnCalls::Reply& reply) { reply({}); });
  worker_.calls.handle(
      own_requests::kDeath,
      [this](WorkerId, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
        ByteReader in(request);
        onAnnouncement(Death::read(in));
        reply({});
      });
}

// ---- finding out --------------------------------------------------------------------------------

void PeerDeaths::watch(const WorkerRecord& peer) {
  worker_.processes.watch(peer.id, peer.process, [this, peer](const std::string& how) {
    worker_.links.markDead(
        peer.id, peer.incarnation, "its process " + std::to_string(peer.process.pid) + " " + how);
  });
}

void PeerDeaths::linkBroken(WorkerId peer) {
  for (const milliseconds after : kLooks) {
    worker_.timer.after(after, [this, peer] { worker_.processes.look(peer); });
  }
}

void PeerDeaths::peerLost(WorkerId peer, const Error& loss) {
  if (loss.code() == ErrorCode::peerLeft) {
    worker_.processes.forget(peer);
  } else if (loss.code() == ErrorCode::silent) {
    worker_.run([this, peer] { suspect(peer); });
  } else if (worker_.processes.watches(peer)) { // it may run another program
    worker_.processes.look(peer);
  } else {
    askHostOf(peer, loss);
  }
}

/// Of a peer whose process is not to be seen from here, the link tells: where its host says that nobody listens at its
/// address, it is dead. So a link that broke is dialed anew at once.
void PeerDeaths::askHostOf(WorkerId peer, const Error& loss) {
  if (loss.code() == ErrorCode::nobodyListens) {
    if (const auto status = worker_.links.statusOf(peer)) {
      worker_.links.markDead(peer, status->record.incarnation, "nobody listens at its address");
    }
  } else if (loss.code() == ErrorCode::linkBroken) {
    worker_.timer.after(milliseconds(0), [this, peer] { // not before this loss is over
      worker_.links.connect(peer, [](const Error&) {});
    });
  }
}

/// From here a peer that stands still looks like one whose network is cut, or like one that waits for this worker: the list
/// in the store decides.
void PeerDeaths::suspect(WorkerId id) {
  if (!worker_.links.statusOf(id)) {
    return; // it has left meanwhile, or is dead
  }
  pingOthers(id, [this, id](bool anyAnswers) {
    worker_.run([this, id, anyAnswers] { judge(id, anyAnswers); });
  });
}

/// `then` is told whether any peer but the silent one answers, on whatever thread ends the ping that decides; true where there
/// is no other peer, from which nothing follows.
void PeerDeaths::pingOthers(WorkerId silent, std::function<void(bool anyAnswers)> then) {
  const auto pings = std::make_shared<Pings>(std::move(then));
  pings->begin(); // which ends when all others have begun
  bool isAlone = true;
  for (const PeerStatus& peer : worker_.links.status()) {
    if (peer.record.id == silent || isGone(peer.state)) {
      continue;
    }
    isAlone = false;
    pings->begin();
    worker_.calls.open(
        peer.record.id, own_requests::kPing, {}, kPing, [pings](const OwnCalls::Answer& answer) {
          pings->end(!answer.error || answer.error.code() == ErrorCode::raised);
        });
  }
  pings->end(isAlone);
}

void PeerDeaths::judge(WorkerId id, bool anyOtherAnswers) {
  const auto status = worker_.links.statusOf(id);
  if (!status || isConnecting(status->state)) {
    return; // it is heard again
  }
  const WorkerRecord& peer = status->record;
  if (!anyOtherAnswers) {
    log(LogLevel::warning,
        peer.describe() +
            " is silent, and so are all others: this worker may be the one that is cut off, and "
            "declares nobody dead");
    return;
  }
  const Death death{
      id, peer.incarnation,
      worker_.membership.self().describe() + " had not heard from it for " +
          std::to_string(worker_.sessionTimeout.count()) + " ms, and the group goes on without it"};
  const auto ruling = takeDown(death);
  if (!ruling) {
    log(LogLevel::warning,
        peer.describe() +
            " is silent, but cannot be declared dead without the store: it stays in the group");
  } else if (ruling->death.isOf(peer)) {
    if (ruling->isNew) {
      announce(death);
    }
    worker_.links.markDead(id, peer.incarnation, ruling->death.reason);
  }
}

/// Nothing where the store does not answer. May find that this worker is dead.
std::optional<Membership::Ruling> PeerDeaths::takeDown(const Death& death) {
  try {
    auto ruling = worker_.membership.declareDead(death);
    if (ruling.death.isOf(worker_.membership.self())) {
      worker_.links.endPart(describe(ruling.death));
    }
    return ruling;
  } catch (const std::exception& e) {
    log(LogLevel::info, e.what());
    return std::nullopt;
  }
}

std::string PeerDeaths::describe(const Death& own) const {
  return "the group goes on without it: " + worker_.membership.self().describe() +
      " has died: " + own.reason;
}

// ---- telling others -----------------------------------------------------------------------------

/// Nothing depends on the answers: who is not told finds out by itself, and then in the store who has been first.
void PeerDeaths::announce(const Death& death) {
  std::vector<char> body;
  ByteWriter out(body);
  death.write(out);
  for (const PeerStatus& peer : worker_.links.status()) {
    if (peer.record.id == death.id || isGone(peer.state)) {
      continue;
    }
    guarded("telling a worker of a death", [&] {
      worker_.calls.open(peer.record.id, own_requests::kDeath, body, kAnnouncement);
    });
  }
}

void PeerDeaths::onAnnouncement(const Death& death) {
  if (death.isOf(worker_.membership.self())) {
    worker_.links.endPart(describe(death));
  } else {
    worker_.links.markDead(death.id, death.incarnation, death.reason);
  }
}

void PeerDeaths::peerDied(const WorkerRecord& peer, const Error& death) {
  if (!worker_.links.isLeaving()) { // else it may well have ended for that reason
    log(LogLevel::warning, death.message());
  }
  worker_.run([this, peer, death] { tell(peer, death); });
}

void PeerDeaths::tell(const WorkerRecord& peer, const Error& error) {
  const Death death{peer.id, peer.incarnation, reasonOfDeath(peer, error)};
  const auto ruling = takeDown(death);
  if (!ruling || ruling->isNew) { // without a store those who have seen it tell the others
    announce(death);
  }
  if (ruling && ruling->death.isOf(peer) && worker_.isOpen) {
    takeOffRoster(peer);
  }
}

void PeerDeaths::takeOffRoster(const WorkerRecord& dead) {
  try {
    worker_.membership.remove(dead);
  } catch (const std::exception& e) { // another survivor may do it, or who comes in its place
    log(LogLevel::info, e.what());
  }
}

// ---- this worker --------------------------------------------------------------------------------

void PeerDeaths::expectPart() const {
  if (const auto error = worker_.links.declaredDead()) {
    throw Membership::LeftOut(error->message());
  }
}

bool hasEnded(const WorkerRecord& worker, const std::string& ownAddress, bool asksHost) {
  const Presence presence = presenceOf(worker.process);
  if (presence != Presence::unknown || !asksHost) {
    return isOver(presence);
  }
  if (worker.address == ownAddress) {
    return true; // this worker listens there now
  }
  try {
    return nobodyListensAt(worker.address.substr(worker.address.find("://") + 3));
  } catch (const std::exception&) { // it has no TCP address: nothing can be said
    return false;
  }
}

} // namespace torchwire
