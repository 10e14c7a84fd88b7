// Frames that are damaged on their way are found, and the other side is told.
#include "backend/link/checksum_interceptor.h"

#include <array>
#include <catch2/catch.hpp>
#include <optional>
#include <utility>

#include "backend/wire/handshake.h"
#include "test/unit/support/memory_worker.h"

using namespace torchwire;
using Catch::Contains;
using std::chrono::milliseconds;
using Style = MemoryNetwork::Style;
using Texts = std::vector<std::string>;

namespace {

constexpr const char* kA = "memory://a";
constexpr const char* kB = "memory://b";

// What happens to a frame on its way, when it has its checksum already.
using Damage = std::function<void(OutgoingFrame&)>;

// Sends damaged frames, and otherwise what it is told.
class DamagingLink final : public Link {
 public:
  DamagingLink(std::shared_ptr<Link> inner, const Damage& damage)
      : inner_(std::move(inner)), damage_(damage) {}

  void send(OutgoingFrame frame, Sent sent) override {
    if (damage_) {
      damage_(frame);
    }
    inner_->send(std::move(frame), std::move(sent));
  }
  void receive(Received received) override {
    inner_->receive(std::move(received));
  }
  void close() override {
    inner_->close();
  }

 private:
  const std::shared_ptr<Link> inner_;
  const Damage& damage_;
};

// A context of the network, whose links damage what they send.
class DamagingContext final : public LinkContext {
 public:
  DamagingContext(LinkContext& inner, const Damage& damage) : inner_(inner), damage_(damage) {}

  std::string listen(Accepted accepted) override {
    return inner_.listen([this, accepted = std::move(accepted)](std::shared_ptr<Link> link) {
      accepted(std::make_shared<DamagingLink>(std::move(link), damage_));
    });
  }
  std::shared_ptr<Link> dial(const WorkerRecord& peer) override {
    return std::make_shared<DamagingLink>(inner_.dial(peer), damage_);
  }
  std::vector<char> offer() const override {
    return inner_.offer();
  }
  LinkDescription describe(const std::vector<char>& peersOffer) const override {
    return inner_.describe(peersOffer);
  }
  void join() override {
    inner_.join();
  }

 private:
  LinkContext& inner_;
  const Damage& damage_;
};

std::unique_ptr<LinkContext> withChecksums(LinkContext& inner, World& world, const Damage& damage) {
  return ChecksumInterceptor().wrap(std::make_unique<DamagingContext>(inner, damage), world.timer);
}

// A link from a to b, both with checksums unless told otherwise. What a sends can be damaged.
struct Pair {
  explicit Pair(Style style = Style::pumped, bool aHasInterceptor = true)
      : world(style),
        contextOfA(withChecksums(world.network.context(kA), world, damage)),
        contextOfB(withChecksums(world.network.context(kB), world, none)) {
    contextOfB->listen([this](std::shared_ptr<Link> link) {
      {
        MutexLock lock(mutex);
        accepted = std::move(link);
      }
      world.ledger.notifier().notify();
    });
    LinkContext& dialing = aHasInterceptor ? *contextOfA : world.network.context(kA);
    a = dialing.dial({.address = kB});
    REQUIRE(world.network.deliverUntil([this] { return b() != nullptr; }));
  }
  ~Pair() {
    world.network.context(kB).join(); // whose callbacks use this
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  std::shared_ptr<Link> b() {
    MutexLock lock(mutex);
    return accepted;
  }

  struct Outcome {
    Error error;
    IncomingFrame frame;
  };
  // What the link receives next.
  Outcome receive(Link& link) {
    auto outcome = std::make_shared<Outcome>();
    CallbackNote& note = world.ledger.note("receive");
    link.receive([outcome, &note](const Error& error, IncomingFrame frame) {
      *outcome = {error, std::move(frame)};
      note.add(error);
    });
    REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
    return *outcome;
  }
  Outcome pass(OutgoingFrame frame) {
    a->send(std::move(frame), world.ledger.expect("send"));
    return receive(*b());
  }

  World world;
  Damage damage;
  const Damage none;
  std::unique_ptr<LinkContext> contextOfA;
  std::unique_ptr<LinkContext> contextOfB;
  std::shared_ptr<Link> a;
  Mutex mutex{LockRank::test};
  std::shared_ptr<Link> accepted GUARDED_BY(mutex);
};

constexpr std::string_view kPayload = "a payload that travels by itself";
constexpr std::string_view kOther = "another";
constexpr std::string_view kTensor = "a tensor's bytes, a few more than one";

Segment segment(std::string_view text) {
  return {text.data(), text.size()};
}
std::string text(const std::vector<char>& bytes) {
  return {bytes.begin(), bytes.end()};
}
std::string text(const Blob& blob) {
  return {static_cast<const char*>(blob.data.get()), blob.length};
}

OutgoingFrame call(uint64_t id, const std::string& body = "body") {
  OutgoingFrame frame = textFrame(body);
  setCallId(frame, id);
  return frame;
}
OutgoingFrame largeCall() {
  OutgoingFrame frame = call(17);
  frame.payloads = {segment(kPayload), segment(kOther)};
  frame.tensors = {segment(kTensor), {}, segment(kOther)};
  return frame;
}

// As the wire would: the sender's own memory stays as it is.
Damage flipIn(std::vector<Segment> OutgoingFrame::* pieces, size_t piece, size_t byte) {
  return [=](OutgoingFrame& frame) {
    Segment& segment = (frame.*pieces).at(piece);
    const auto* begin = static_cast<const char*>(segment.data);
    auto copy = std::make_shared<std::vector<char>>(begin, begin + segment.length);
    copy->at(byte) ^= 1;
    segment.data = copy->data();
    frame.owner = copy;
  };
}

// Two workers with checksums and a link between them. What a sends can be damaged.
struct Workers {
  explicit Workers(Style style, milliseconds grace = milliseconds(0))
      : world(style),
        contextOfA(withChecksums(world.network.context("memory://w0"), world, damage)),
        contextOfB(withChecksums(world.network.context("memory://w1"), world, none)),
        a(world, 0, settings(*contextOfA, grace)),
        b(world, 1, settings(*contextOfB, grace)) {
    introduce(a, b);
    a.send(b, "whole");
    REQUIRE(world.network.deliverUntil([&] { return b.texts() == Texts{"whole"}; }));
  }

  static WorkerSettings settings(LinkContext& context, milliseconds grace) {
    WorkerSettings settings;
    settings.context = &context;
    settings.limits.refusedGrace = grace;
    return settings;
  }
  void sendDamaged() {
    world.network.deliverUntil([] { return true; });
    damage = [](OutgoingFrame& frame) { frame.head.back() ^= 1; };
    a.send(b, "damaged");
    damage = nullptr;
  }
  bool bothLost() {
    return world.network.deliverUntil([&] {
      return a.losses().size() == 1 && b.losses().size() == 1 && a.stateOf(b) == PeerState::idle &&
          b.stateOf(a) == PeerState::idle;
    });
  }

  World world;
  Damage damage;
  const Damage none;
  std::unique_ptr<LinkContext> contextOfA;
  std::unique_ptr<LinkContext> contextOfB;
  MemoryWorker a;
  MemoryWorker b;
};

const std::string kWhatArrived =
    "a frame arrived damaged: its checksum differs (request, call 0, 55 bytes)";

} // namespace

TEST_CASE("frames with checksums arrive as they were sent", "[checksum_interceptor]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  Pair pair(style);
  for (int round = 0; round < 3; ++round) {
    const Pair::Outcome small = pair.pass(call(17));
    CHECK(small.error.message().empty());
    CHECK(textOf(small.frame) == "body");
    const Pair::Outcome large = pair.pass(largeCall());
    REQUIRE(large.error.message().empty());
    CHECK(textOf(large.frame) == "body");
    REQUIRE(large.frame.payloads.size() == 2);
    CHECK(text(large.frame.payloads[0]) == kPayload);
    REQUIRE(large.frame.tensors.size() == 3);
    CHECK(text(large.frame.tensors[0]) == kTensor);
    CHECK(text(large.frame.tensors[1]).empty());
    pair.b()->send(bareFrame(FrameKind::response), pair.world.ledger.expect("response"));
    CHECK_FALSE(pair.receive(*pair.a).error);
  }
  CHECK_FALSE(pair.pass(bareFrame(FrameKind::goodbye)).error);
  CHECK(pair.world.network.deliverUntil([&] { return pair.world.ledger.allCalled(); }));
}

TEST_CASE("a checksum is that of the frame's bytes", "[checksum_interceptor]") {
  Pair pair;
  const auto checksum = [&](OutgoingFrame frame) {
    const Pair::Outcome outcome = pair.pass(std::move(frame));
    uint64_t value = 0;
    std::memcpy(&value, outcome.frame.head.data() + FrameHeader::kChecksumOffset, sizeof(value));
    return value;
  };
  const uint64_t ofLarge = checksum(largeCall());
  CHECK(ofLarge != 0);
  CHECK(ofLarge == checksum(largeCall()));
  CHECK(ofLarge != checksum(call(17)));
  OutgoingFrame used = call(18); // what stands in the field does not count
  used.head[FrameHeader::kChecksumOffset] = 5;
  CHECK(checksum(std::move(used)) == checksum(call(18)));
}

TEST_CASE("a change of any bit of a small frame is found", "[checksum_interceptor]") {
  const FrameKind kind = GENERATE(FrameKind::request, FrameKind::response, FrameKind::goodbye);
  Pair pair;
  OutgoingFrame frame = call(17);
  frame.head[0] = static_cast<char>(kind);
  for (size_t byte = 0; byte < frame.head.size(); ++byte) {
    for (int pattern = 1; pattern < 256; ++pattern) {
      CAPTURE(byte, pattern);
      pair.damage = [&](OutgoingFrame& f) { f.head[byte] ^= static_cast<char>(pattern); };
      const Pair::Outcome outcome = pair.pass(frame);
      REQUIRE(outcome.error.code() == ErrorCode::badFrame);
      REQUIRE_THAT(outcome.error.message(), Contains("a frame arrived damaged: its "));
      REQUIRE(outcome.frame.head.empty());
    }
  }
}

TEST_CASE("damage to a payload or a tensor is found", "[checksum_interceptor]") {
  Pair pair;
  std::string suspect = "its checksum differs, or a tensor in it was changed while it was sent";
  SECTION("in a payload") {
    pair.damage = flipIn(
        &OutgoingFrame::payloads, 0, GENERATE(size_t{0}, kPayload.size() / 2, kPayload.size() - 1));
  }
  SECTION("in the second payload") {
    pair.damage = flipIn(&OutgoingFrame::payloads, 1, 0);
  }
  SECTION("in a tensor") {
    pair.damage = flipIn(
        &OutgoingFrame::tensors, 0, GENERATE(size_t{0}, kTensor.size() / 2, kTensor.size() - 1));
  }
  SECTION("in the last tensor") {
    pair.damage = flipIn(&OutgoingFrame::tensors, 2, kOther.size() - 1);
  }
  SECTION("tensors that change places") {
    pair.damage = [](OutgoingFrame& frame) { std::swap(frame.tensors[0], frame.tensors[2]); };
  }
  SECTION("a tensor too many") {
    pair.damage = [](OutgoingFrame& frame) { frame.tensors.emplace_back(); };
  }
  SECTION("a tensor that has become a payload") {
    suspect = "its checksum differs";
    pair.damage = [](OutgoingFrame& frame) {
      frame.payloads.insert(frame.payloads.end(), frame.tensors.begin(), frame.tensors.end());
      frame.tensors.clear();
    };
  }
  SECTION("a byte that has moved to the next payload") {
    pair.damage = [](OutgoingFrame& frame) {
      frame.payloads = {segment(kPayload.substr(0, 5)), segment(kPayload.substr(5))};
    };
  }
  SECTION("a byte less in the head") {
    pair.damage = [](OutgoingFrame& frame) { frame.head.pop_back(); };
  }
  const Pair::Outcome outcome = pair.pass(largeCall());
  CHECK(outcome.error.code() == ErrorCode::badFrame);
  CHECK_THAT(outcome.error.message(), Contains(suspect + " (request, call 17, "));
  CHECK(outcome.frame.tensors.empty());
}

TEST_CASE("a byte that moves between two payloads of a frame is found", "[checksum_interceptor]") {
  Pair pair;
  OutgoingFrame frame = call(17);
  const size_t boundary = GENERATE(size_t{0}, size_t{6}, size_t{7});
  frame.payloads = {segment(kOther.substr(0, 5)), segment(kOther.substr(5))};
  pair.damage = [&](OutgoingFrame& f) {
    f.payloads = {segment(kOther.substr(0, boundary)), segment(kOther.substr(boundary))};
  };
  CHECK(pair.pass(std::move(frame)).error.code() == ErrorCode::badFrame);
}

TEST_CASE("damage that leaves no header is named", "[checksum_interceptor]") {
  Pair pair;
  SECTION("too short") {
    const size_t length = GENERATE(size_t{0}, size_t{1}, FrameHeader::kSize - 1);
    pair.damage = [&](OutgoingFrame& frame) { frame.head.resize(length); };
    CHECK_THAT(
        pair.pass(call(17)).error.message(),
        Contains("a frame arrived damaged: its header cannot be read, expected "));
  }
  SECTION("of no kind") {
    pair.damage = [](OutgoingFrame& frame) { frame.head[0] = 99; };
    CHECK(
        pair.pass(call(17)).error.message() ==
        "a frame arrived damaged: its header cannot be read, a frame of unknown kind 99 (52 "
        "bytes)");
  }
}

TEST_CASE("frames of the handshake carry no checksum", "[checksum_interceptor]") {
  const bool aHasInterceptor = GENERATE(true, false);
  Pair pair(Style::pumped, aHasInterceptor);
  Hello hello;
  hello.self = recordOf(0);
  const std::vector<OutgoingFrame> frames = {
      hello.encode(FrameKind::hello), hello.encode(FrameKind::welcome),
      Refusal{ErrorCode::refused, "it has no checksums"}.encode()};
  for (const OutgoingFrame& frame : frames) {
    const Pair::Outcome outcome = pair.pass(frame);
    CHECK_FALSE(outcome.error);
    CHECK(outcome.frame.head == frame.head);
  }
  if (!aHasInterceptor) {
    CHECK(pair.pass(call(17)).error.code() == ErrorCode::badFrame);
  }
}

TEST_CASE("after a damaged frame the link still carries others", "[checksum_interceptor]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  Pair pair(style);
  pair.damage = [](OutgoingFrame& frame) { frame.head[8] ^= 4; };
  CHECK(pair.pass(call(17)).error.code() == ErrorCode::badFrame);
  pair.damage = nullptr;
  CHECK_FALSE(pair.pass(call(18)).error);
  pair.b()->send(Refusal{ErrorCode::refused, "why"}.encode(), pair.world.ledger.expect("reason"));
  CHECK(Refusal::decode(pair.receive(*pair.a).frame).reason == "why");
}

TEST_CASE("errors and the end of a link pass through the interceptor", "[checksum_interceptor]") {
  Pair pair;
  pair.a->close();
  CHECK(pair.receive(*pair.b()).error.message() == "the other side closed the link");
  CallbackNote& late = pair.world.ledger.note("late");
  pair.a->send(call(17), CallbackLedger::expect(late));
  CHECK(late.error().code() == ErrorCode::linkBroken);
  CHECK(pair.contextOfA->offer() == pair.world.network.context(kA).offer());
  CHECK(pair.contextOfA->describe(pair.contextOfB->offer()).transport == "memory");
  const auto nobody = pair.contextOfA->dial({.address = "memory://nobody"});
  CHECK(pair.receive(*nobody).error.code() == ErrorCode::nobodyListens);
}

TEST_CASE("both sides of a link learn that a frame was damaged", "[checksum_interceptor]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  const milliseconds grace = GENERATE(milliseconds(0), milliseconds(3600 * 1000));
  CAPTURE(nameOf(style), grace.count());
  Workers workers(style, grace);
  workers.sendDamaged();
  REQUIRE(workers.bothLost());
  CHECK(workers.b.texts() == Texts{"whole"});
  CHECK(
      workers.b.losses()[0].error.message() ==
      "lost the connection to worker 'w0' (rank 0) at memory://w0: " + kWhatArrived);
  CHECK(
      workers.a.losses()[0].error.message() ==
      "lost the connection to worker 'w1' (rank 1) at memory://w1: it closed the link: " +
          kWhatArrived);
  for (const MemoryWorker* worker : {&workers.a, &workers.b}) {
    CHECK(worker->losses()[0].error.code() == ErrorCode::linkBroken);
  }
  CHECK(workers.world.network.deliverUntil(
      [&] { return workers.world.network.openLinks() == 0; })); // whoever was told closes
}

TEST_CASE("after a damaged frame the workers connect anew", "[checksum_interceptor]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  Workers workers(style, milliseconds(3600 * 1000));
  workers.sendDamaged();
  REQUIRE(workers.bothLost());
  const bool fromA = GENERATE(true, false);
  MemoryWorker& from = fromA ? workers.a : workers.b;
  MemoryWorker& to = fromA ? workers.b : workers.a;
  from.send(to, "again");
  CHECK(workers.world.network.deliverUntil([&] {
    const Texts texts = to.texts();
    return !texts.empty() && texts.back() == "again";
  }));
  CHECK(workers.world.network.deliverUntil([&] { return workers.world.ledger.allCalled(); }));
}

TEST_CASE("frames that follow a damaged one are dropped", "[checksum_interceptor]") {
  Workers workers(Style::pumped, milliseconds(3600 * 1000));
  workers.sendDamaged();
  for (const char* late : {"1", "2", "3"}) {
    workers.a.send(workers.b, late);
  }
  REQUIRE(workers.bothLost());
  CHECK(workers.b.texts() == Texts{"whole"});
  CHECK(workers.b.statusOf(workers.a).traffic.linksLost == 1);
  CHECK(workers.a.statusOf(workers.b).traffic.framesReceived == 0);
}
