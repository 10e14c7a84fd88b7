// What lasts between two workers while links come and go.
//
//   A: request 7 ═══ link 1 ══▶ B            B has 1 to 7
//   A: request 8 ═══ link 1 ══ breaks        A keeps 8, and 7, which B has not acknowledged
//   A: hello, "I have all up to 5" ═══ link 2 ══▶ B
//   A ◀══ link 2 ═══ welcome, "I have all up to 7"
//   A: request 8 ═══ link 2 ══▶ B            and B sends 6 again, if it has sent one
//
// Requests and responses are numbered, each direction from 1, when they are handed to a link for the first time. So a frame
// is received at most once, whatever links it took; and as long as the session lasts, at least once.
//
// Each numbered frame also acknowledges: it says up to which number its sender had received everything when it was numbered. Where
// no frame goes back, an `acknowledge` frame does: when the oldest frame that is not acknowledged has waited for a while,
// or when much has come.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "backend/base/error.h"
#include "backend/link/ended_session.h"
#include "backend/link/received_frames.h"
#include "backend/link/sent_frames.h"

namespace torchwire {

/// One side of a session. It is new until it has had its first link. Not thread-safe: the LinkManager's lock guards it,
/// and see SentFrames.
class Session {
 public:
  /// `limit`: of what is kept, in bytes.
  Session(uint64_t id, size_t limit, uint64_t serial = 0)
      : id_(id), limit_(limit), serial_(serial), sent_(limit) {}

  /// As the two workers count theirs: another incarnation's are counted anew.
  uint64_t id() const {
    return id_;
  }
  /// Which one it is of all that this worker has had, by which timers know it.
  uint64_t serial() const {
    return serial_;
  }
  /// Whether it has had a link; from then on each side may have received something.
  bool established() const {
    return established_;
  }
  /// As this worker's hello or welcome says it. What came on a link does not count any more once that is asked for: the
  /// link is another by then.
  SessionClaim claim() const {
    return {id_, established_, received_.receipts(), {}};
  }

  // ---- links

  /// Why the other side cannot have received that; nullopt: it can.
  std::optional<std::string> objectionTo(const Receipts& peers) const {
    return sent_.objectionTo(peers);
  }
  /// Where there is no objection: there is a link. Returns what is to be sent on it before all else.
  SentFrames::Rest linked(const Receipts& peers);
  /// The link has broken. `badFrame`: through a frame that made no sense.
  void broke(Error why, bool badFrame);
  /// Whether anything has come on the newest link.
  bool hasReceivedSinceLinked() const {
    return hasReceived_;
  }
  /// Whether the frame that broke the link before last has done so again: nothing has come in order in between.
  bool failsRepeatedly() const {
    return badFrames_ > 1;
  }
  /// How often it has lost a link, and why it did so last.
  uint64_t breaks() const {
    return breaks_;
  }
  const Error& brokenBy() const {
    return brokenBy_;
  }

  // ---- frames

  bool hasRoom(size_t bytes) const {
    return sent_.hasRoom(bytes);
  }
  /// Numbers a frame that goes out now.
  SharedFrame number(OutgoingFrame frame);
  /// What is to be done about a frame that has come.
  struct Arrival {
    bool isNew = true; // else it has come before, and is to be dropped
    bool startTimer = false; // it is to call onTimer() once, after a while
    std::optional<uint64_t> acknowledge; // is to be sent
  };
  /// Throws FormatError where the frame cannot be of this session.
  Arrival receive(const FrameHeader& header, size_t bytes);
  size_t release(SentFrames::Released& released) {
    return sent_.release(released);
  }

  /// `isNew` does not matter.
  Arrival onTimer();

  // ---- silence
  //
  // Something that is not acknowledged for long, while nothing else comes, means that the peer stands still, or that the
  // link has lost something. A frame that takes long to arrive is no such thing: its receiver acknowledges again and again.

  /// Whether onWatch() is to be called once, after a quarter of the time that silence may last.
  bool startsWatch();
  enum class Watch { end, again, relink, silent };
  /// `relink`: half of that time is over. The link may have lost something; the next one has the other half. A few times
  /// at most until a frame comes from the peer.
  Watch onWatch();
  /// Whether onWatch() has said `silent`: the session ends with its link.
  bool isOver() const {
    return over_;
  }
  /// Whether onWatch() or onArriving() has asked for a new link, and there is none yet.
  bool relinksForSilence() const {
    return relinking_;
  }
  /// Whether a large frame is arriving, behind which the peer's other frames wait.
  bool isArriving() const {
    return arriving_;
  }
  /// A large frame begins to arrive. Whether onArriving() is to be called once, after a while.
  bool startsArriving();
  struct Arriving {
    std::optional<uint64_t> acknowledge; // it still arrives, and onArriving() is to be called again
    // For half of the time that silence may last nothing has come: the link may have lost something.
    bool relink = false;
  };
  /// `bytes`: that have come from the peer in all, where they are counted.
  Arriving onArriving(std::optional<uint64_t> bytes);

  /// See SentFrames.
  const CallIds& receivedCalls() const {
    return sent_.receivedCalls();
  }
  /// It has ended: what is to be remembered of it goes there.
  void end(EndedSession& ended) const {
    ended.replace({id_, received_.receipts()}, sent_.doubtful(id_));
  }

 private:
  uint64_t acknowledgeNow();
  bool mayRelink();

  const uint64_t id_;
  const size_t limit_;
  const uint64_t serial_;
  bool established_ = false;
  bool hasLink_ = false;
  uint64_t breaks_ = 0;
  bool hasReceived_ = false; // since the newest link
  Error brokenBy_;
  int badFrames_ = 0; // that broke a link while `badAfter_` was the last frame in order
  uint64_t badAfter_ = 0;
  SentFrames sent_;
  ReceivedFrames received_;
  uint64_t acknowledged_ = 0; // what the peer has been told last
  size_t bytes_ = 0; // that came since then
  bool timerRuns_ = false;
  uint64_t timerFor_ = 0; // what had come in order when it started
  bool watching_ = false;
  uint64_t heard_ = 0; // frames
  uint64_t heardBefore_ = 0, oldestBefore_ = 0; // at the last onWatch()
  int silentFor_ = 0; // calls of it
  bool over_ = false;
  bool relinking_ = false;
  int relinks_ = 0; // of those, since a frame came from the peer
  bool arriving_ = false, arrivingTimerRuns_ = false;
  std::optional<uint64_t> arrivedBefore_; // bytes, at the last onArriving()
  int stalledFor_ = 0; // calls of it
};

} // namespace torchwire
