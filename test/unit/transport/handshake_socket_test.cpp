#include "backend/transport/handshake_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "test/unit/support/open_files.h"

using namespace torchwire;

namespace {

// Two connected sockets.
struct Sockets {
  Sockets() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    ours = Descriptor(ends[0]);
    theirs = Descriptor(ends[1]);
  }
  Descriptor ours, theirs;
};

HandshakeBytes messageOf(size_t size) {
  HandshakeBytes bytes(size);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(1));
  return bytes;
}

HandshakeBytes receivedBy(const HandshakeSocket& incoming) {
  return {incoming.bytes().begin(), incoming.bytes().end()};
}

ForeignBytes part(const HandshakeBytes& bytes, size_t from, size_t length) {
  return ForeignBytes(bytes).subspan(from, length);
}

// As sendAll(), but with any number of descriptors.
bool sendWith(int socket, ForeignBytes bytes, const std::vector<int>& descriptors) {
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  iovec data{const_cast<unsigned char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  return sendmsg(socket, &message, 0) == static_cast<ssize_t>(bytes.size());
}

// Descriptors that can be told apart: each counts a number of its own.
std::vector<Descriptor> counters(unsigned count) {
  std::vector<Descriptor> all;
  for (unsigned i = 0; i < count; ++i) {
    all.emplace_back(eventfd(100 + i, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  return all;
}

std::vector<int> numbersOf(const std::vector<Descriptor>& descriptors) {
  std::vector<int> numbers;
  for (const Descriptor& each : descriptors) {
    numbers.push_back(each.get());
  }
  return numbers;
}

unsigned countOf(const Descriptor& counter) {
  eventfd_t count = 0;
  eventfd_read(counter.get(), &count);
  return static_cast<unsigned>(count);
}

} // namespace

// ---- Descriptor -----------------------------------------------------------------------------------

TEST_CASE("a descriptor is closed with its owner, once", "[handshake_socket]") {
  const auto before = openFiles();
  {
    Descriptor first(eventfd(0, EFD_CLOEXEC));
    CHECK(openFiles() == before + 1);
    Descriptor second = std::move(first);
    CHECK(first.get() == -1); // NOLINT(bugprone-use-after-move): what it says
    CHECK(openFiles() == before + 1);
    Descriptor third(eventfd(0, EFD_CLOEXEC));
    third = std::move(second);
    const Descriptor given(third.take());
    CHECK(third.take() == -1);
  }
  CHECK(openFiles() == before);
}

// ---- messages -------------------------------------------------------------------------------------

TEST_CASE("a message arrives as it was sent", "[handshake_socket]") {
  const Sockets sockets;
  const HandshakeBytes message = messageOf(48);
  HandshakeSocket incoming(48);
  REQUIRE(sendAll(sockets.theirs.get(), message));
  const Progress progress = incoming.receive(sockets.ours.get());
  CHECK(progress.bytes == 48);
  CHECK(progress.error.empty());
  CHECK(incoming.isComplete());
  CHECK(receivedBy(incoming) == message);
}

TEST_CASE("where nothing has come there is no progress, and no error", "[handshake_socket]") {
  const Sockets sockets;
  HandshakeSocket incoming(48);
  const Progress progress = incoming.receive(sockets.ours.get());
  CHECK(progress.bytes == 0);
  CHECK(progress.error.empty());
  CHECK_FALSE(incoming.isComplete());
}

TEST_CASE("a message may be cut anywhere", "[handshake_socket]") {
  const HandshakeBytes message = messageOf(33);
  for (size_t cut = 1; cut < message.size(); ++cut) {
    CAPTURE(cut);
    const Sockets sockets;
    HandshakeSocket incoming(message.size());
    REQUIRE(sendAll(sockets.theirs.get(), part(message, 0, cut)));
    CHECK(incoming.receive(sockets.ours.get()).bytes == cut);
    CHECK_FALSE(incoming.isComplete());
    REQUIRE(sendAll(sockets.theirs.get(), part(message, cut, message.size() - cut)));
    CHECK(incoming.receive(sockets.ours.get()).bytes == message.size() - cut);
    CHECK(incoming.isComplete());
    CHECK(receivedBy(incoming) == message);
  }
}

TEST_CASE("a message may come byte by byte", "[handshake_socket]") {
  const Sockets sockets;
  const HandshakeBytes message = messageOf(40);
  HandshakeSocket incoming(message.size());
  for (size_t i = 0; i < message.size(); ++i) {
    REQUIRE_FALSE(incoming.isComplete());
    REQUIRE(sendAll(sockets.theirs.get(), part(message, i, 1)));
    REQUIRE(incoming.receive(sockets.ours.get()).bytes == 1);
  }
  CHECK(incoming.isComplete());
  CHECK(receivedBy(incoming) == message);
}

TEST_CASE("what follows a message is left for the next", "[handshake_socket]") {
  const Sockets sockets;
  const HandshakeBytes both = messageOf(30);
  REQUIRE(sendAll(sockets.theirs.get(), both));
  HandshakeSocket first(10), second(20);
  first.receive(sockets.ours.get());
  second.receive(sockets.ours.get());
  CHECK(receivedBy(first) == messageOf(10));
  CHECK(receivedBy(second) == HandshakeBytes(both.begin() + 10, both.end()));
}

TEST_CASE("a peer that closes is an error, after what it said", "[handshake_socket]") {
  Sockets sockets;
  REQUIRE(sendAll(sockets.theirs.get(), messageOf(5)));
  sockets.theirs = Descriptor();
  HandshakeSocket incoming(10);
  CHECK(incoming.receive(sockets.ours.get()).bytes == 5);
  CHECK(
      incoming.receive(sockets.ours.get()).error ==
      "it closed the connection during the handshake");
  CHECK_FALSE(incoming.isComplete());
}

TEST_CASE("a peer that resets the connection is an error", "[handshake_socket]") {
  Sockets sockets;
  REQUIRE(sendAll(sockets.ours.get(), messageOf(5)));
  sockets.theirs = Descriptor(); // with bytes that it has not read
  HandshakeSocket incoming(10);
  CHECK(incoming.receive(sockets.ours.get()).error == std::strerror(ECONNRESET));
}

TEST_CASE("what is not a socket is an error", "[handshake_socket]") {
  HandshakeSocket incoming(10);
  CHECK(incoming.receive(-1).error == std::strerror(EBADF));
  const Descriptor file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK(incoming.receive(file.get()).error == std::strerror(ENOTSOCK));
  CHECK_FALSE(sendAll(file.get(), messageOf(1)));
}

TEST_CASE(
    "a message to a peer that is gone is not sent, and raises no signal", "[handshake_socket]") {
  Sockets sockets;
  sockets.theirs = Descriptor();
  CHECK_FALSE(sendAll(sockets.ours.get(), messageOf(10)));
}

TEST_CASE("a message to a peer that reads nothing is not sent in part", "[handshake_socket]") {
  const Sockets sockets;
  int sent = 0;
  while (sent < 1000000 && sendAll(sockets.ours.get(), messageOf(48))) {
    ++sent;
  }
  CHECK(sent > 0);
  CHECK(sent < 1000000);
}

// ---- descriptors that come along ------------------------------------------------------------------

TEST_CASE("a descriptor comes along with a message", "[handshake_socket]") {
  const Sockets sockets;
  const std::vector<Descriptor> sent = counters(1);
  REQUIRE(sendAll(sockets.theirs.get(), messageOf(32), sent[0].get()));
  HandshakeSocket incoming(32);
  Descriptor received;
  incoming.receive(sockets.ours.get(), &received);
  CHECK(incoming.isComplete());
  REQUIRE(received.get() >= 0);
  CHECK(received.get() != sent[0].get());
  CHECK((fcntl(received.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(countOf(received) == 100);
}

TEST_CASE("no descriptor comes along where none was sent", "[handshake_socket]") {
  const Sockets sockets;
  REQUIRE(sendAll(sockets.theirs.get(), messageOf(32)));
  HandshakeSocket incoming(32);
  Descriptor received;
  incoming.receive(sockets.ours.get(), &received);
  CHECK(incoming.isComplete());
  CHECK(received.get() == -1);
}

TEST_CASE("a descriptor that nobody wants is closed", "[handshake_socket]") {
  const Sockets sockets;
  const std::vector<Descriptor> sent = counters(3);
  const auto before = openFiles();
  REQUIRE(sendWith(sockets.theirs.get(), messageOf(32), numbersOf(sent)));
  HandshakeSocket incoming(32);
  incoming.receive(sockets.ours.get());
  CHECK(incoming.isComplete());
  CHECK(openFiles() == before);
}

TEST_CASE("of many descriptors the first is kept and the others are closed", "[handshake_socket]") {
  const unsigned count =
      GENERATE(2u, 3u, 4u, 5u, 50u, 253u); // the last is all that the system sends
  CAPTURE(count);
  const Sockets sockets;
  const std::vector<Descriptor> sent = counters(count);
  const auto before = openFiles();
  REQUIRE(sendWith(sockets.theirs.get(), messageOf(32), numbersOf(sent)));
  HandshakeSocket incoming(32);
  Descriptor received;
  incoming.receive(sockets.ours.get(), &received);
  CHECK(incoming.isComplete());
  CHECK(openFiles() == before + 1);
  CHECK(countOf(received) == 100);
}

TEST_CASE("descriptors with each byte leave only the first behind", "[handshake_socket]") {
  const Sockets sockets;
  const std::vector<Descriptor> sent = counters(8);
  const HandshakeBytes message = messageOf(8);
  const auto before = openFiles();
  HandshakeSocket incoming(message.size());
  Descriptor received;
  for (size_t i = 0; i < message.size(); ++i) {
    REQUIRE(sendAll(sockets.theirs.get(), part(message, i, 1), sent[i].get()));
  }
  for (size_t i = 0; i < message.size(); ++i) {
    incoming.receive(sockets.ours.get(), &received);
  }
  CHECK(incoming.isComplete());
  CHECK(openFiles() == before + 1);
  CHECK(countOf(received) == 100);
}

TEST_CASE("descriptors that are not received go with the socket", "[handshake_socket]") {
  const auto before = openFiles();
  {
    const Sockets sockets;
    const std::vector<Descriptor> sent = counters(2);
    REQUIRE(sendWith(sockets.theirs.get(), messageOf(32), numbersOf(sent)));
  }
  CHECK(openFiles() == before);
}
