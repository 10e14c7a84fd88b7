#include "backend/link/session.h"

namespace torchwire {
namespace {

// The peer keeps what is not acknowledged. This worker's bound is taken for the peer's, too.
constexpr size_t kPartOfLimit = 4;
constexpr int kQuarters = 4;
constexpr int kRelinks = 4;

} // namespace

SentFrames::Rest Session::linked(const Receipts& peers) {
  established_ = hasLink_ = true;
  relinking_ = false;
  hasReceived_ = false;
  arriving_ = false;
  silentFor_ = 0;
  acknowledgeNow(); // in the hello or the welcome
  return sent_.resume(peers);
}

void Session::broke(Error why, bool badFrame) {
  hasLink_ = false;
  ++breaks_;
  brokenBy_ = std::move(why);
  if (!badFrame) {
    return;
  }
  if (badAfter_ != received_.through()) {
    badFrames_ = 0;
  }
  badAfter_ = received_.through();
  ++badFrames_;
}

SharedFrame Session::number(OutgoingFrame frame) {
  SharedFrame numbered = sent_.add(std::move(frame), received_.through());
  acknowledgeNow();
  return numbered;
}

Session::Arrival Session::receive(const FrameHeader& header, size_t bytes) {
  if (header.kind == FrameKind::response) {
    sent_.answered(header.callId, header.acknowledged);
  } else {
    sent_.acknowledge(header.acknowledged);
  }
  ++heard_;
  hasReceived_ = true;
  relinks_ = 0;
  arriving_ = false; // frames come one after another
  Arrival arrival;
  if (header.sequence == 0) {
    return arrival;
  }
  arrival.isNew = received_.add(header.sequence);
  bytes_ += bytes;
  if (bytes_ > limit_ / kPartOfLimit && received_.through() > acknowledged_) {
    arrival.acknowledge = acknowledgeNow();
  } else if (!timerRuns_) {
    timerRuns_ = true;
    timerFor_ = received_.through();
    arrival.startTimer = true;
  }
  return arrival;
}

Session::Arrival Session::onTimer() {
  Arrival next;
  timerRuns_ = false;
  if (received_.through() == acknowledged_) {
    return next;
  }
  if (timerFor_ > acknowledged_) { // it had come before the timer started
    next.acknowledge = acknowledgeNow();
    return next;
  }
  next.startTimer = timerRuns_ = true;
  timerFor_ = received_.through();
  return next;
}

bool Session::startsWatch() {
  if (watching_) {
    return false;
  }
  silentFor_ = 0;
  oldestBefore_ = sent_.oldest();
  heardBefore_ = heard_;
  return watching_ = true;
}

Session::Watch Session::onWatch() {
  const uint64_t oldest = sent_.oldest();
  if (oldest == 0) {
    watching_ = false;
    relinks_ = 0;
    return Watch::end;
  }
  const bool quiet = oldest == oldestBefore_ && heard_ == heardBefore_;
  silentFor_ = quiet ? silentFor_ + 1 : 0;
  relinks_ = quiet ? relinks_ : 0;
  oldestBefore_ = oldest;
  heardBefore_ = heard_;
  if (silentFor_ == kQuarters / 2 && !arriving_ && mayRelink()) {
    return Watch::relink;
  }
  over_ = silentFor_ >= kQuarters && hasLink_;
  return over_ ? Watch::silent : Watch::again;
}

bool Session::startsArriving() {
  arriving_ = true;
  arrivedBefore_.reset();
  return !std::exchange(arrivingTimerRuns_, true);
}

Session::Arriving Session::onArriving(std::optional<uint64_t> bytes) {
  if (!arriving_) {
    arrivingTimerRuns_ = false;
    return {};
  }
  stalledFor_ = bytes && bytes == arrivedBefore_ ? stalledFor_ + 1 : 0;
  arrivedBefore_ = bytes;
  return {acknowledgeNow(), stalledFor_ == kQuarters / 2 && mayRelink()};
}

bool Session::mayRelink() {
  relinking_ = hasLink_ && relinks_ < kRelinks;
  relinks_ += relinking_ ? 1 : 0;
  return relinking_;
}

uint64_t Session::acknowledgeNow() {
  bytes_ = 0;
  return acknowledged_ = received_.through();
}

} // namespace torchwire
