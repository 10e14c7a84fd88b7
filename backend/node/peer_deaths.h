// Peers that die, those that nobody hears any more, and this worker where the others go on without it.
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
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/base/error.h"
#include "backend/base/task.h"
#include "backend/base/timer.h"
#include "backend/link/link_manager.h"
#include "backend/membership/membership.h"
#include "backend/node/own_calls.h"
#include "backend/transport/processes.h"
#include "backend/wire/deaths.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Finds deaths out, agrees on them with the other workers by way of the store, and has the links act on them. Thread-safe.
class PeerDeaths {
 public:
  /// What belongs to the worker, and outlives the PeerDeaths; except that no task of the timer's or of `run` does.
  struct Worker {
    LinkManager& links;
    Membership& membership;
    Processes& processes;
    OwnCalls& calls;
    Timer& timer;
    /// Runs what may wait for the store, one task after another. False where this worker shuts down.
    std::function<bool(Task&& task)> run;
    std::chrono::milliseconds sessionTimeout;
    bool isOpen; // workers may come once the group runs
  };
  /// Serves what others say of deaths from now on: before the first request comes.
  explicit PeerDeaths(Worker worker);
  PeerDeaths(const PeerDeaths&) = delete;
  PeerDeaths& operator=(const PeerDeaths&) = delete;

  /// Sees the end of a peer's process, where that is on this host.
  void watch(const WorkerRecord& peer);

  /// On any thread, as the next two. A link has broken whose session goes on.
  void linkBroken(WorkerId peer);
  /// The link to a peer is gone, or none could be made.
  void peerLost(WorkerId peer, const Error& loss);
  /// It has died: takes that down, and tells the others.
  void peerDied(const WorkerRecord& peer, const Error& death);

  /// Throws Membership::LeftOut where this worker is to take part in nothing of the group's any more.
  void expectPart() const;

 private:
  void askHostOf(WorkerId peer, const Error& loss);
  void suspect(WorkerId silent);
  void pingOthers(WorkerId silent, std::function<void(bool anyAnswers)> then);
  void judge(WorkerId silent, bool anyOtherAnswers);
  std::optional<Membership::Ruling> takeDown(const Death& death);
  std::string describe(const Death& own) const;
  void announce(const Death& death);
  void onAnnouncement(const Death& death);
  void tell(const WorkerRecord& peer, const Error& error);
  void takeOffRoster(const WorkerRecord& dead);

  const Worker worker_;
};

/// Whether the process of a worker has ended, for all that can be found out here: at once, or by asking its host, for which
/// it may block for a moment. `ownAddress`: where this worker listens.
bool hasEnded(const WorkerRecord& worker, const std::string& ownAddress, bool asksHost);

} // namespace torchwire
