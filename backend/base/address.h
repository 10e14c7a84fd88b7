// IP addresses: which one of this host others should dial, and the spelling of host and port.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace torchwire {

/// "127.0.0.1" of "127.0.0.1:80", "::1" of "[::1]:80"; what has no port is returned as it is.
std::string hostOf(const std::string& address);
/// 0 where there is no port. Throws std::runtime_error when the port is not a number below 65536.
uint16_t portOf(const std::string& address);
/// The address with the port, unless it names one already. IPv6 hosts get brackets.
std::string withPort(const std::string& address, uint16_t port);

/// A numeric address for a host name ("localhost", "127.0.0.1", "::1"), with the port if it has one.
/// Throws std::runtime_error with a sentence when the name does not resolve.
std::string resolve(const std::string& address);

/// An address on which no TCP socket can listen, and why.
class CannotListen : public std::runtime_error {
 public:
  CannotListen(const std::string& address, const std::string& reason)
      : std::runtime_error("cannot listen on " + address + ": " + reason) {}
};

/// What an errno of socket(), bind() or listen() means for that address, with the remedy.
std::string bindFailure(const std::string& address, int code);

/// Why a TCP socket cannot be bound to the address just now, or nothing.
std::optional<std::string> whyCannotBind(const std::string& address);

/// The address of a network interface: IPv4 before IPv6, no link-local one. Throws std::runtime_error
/// that names the interface and those that there are.
std::string addressOfInterface(const std::string& interface);

/// This host's end of the route to `host`, or nothing where there is no route.
std::optional<std::string> addressOnRouteTo(const std::string& host);

/// How the address was chosen, for the log and debug information.
struct ChosenAddress {
  std::string address;
  std::string reason; // e.g. "route to the store at 10.0.0.1"
};

/// The address to bind: the option if not empty, else the interface named by TP_SOCKET_IFNAME, else by
/// GLOO_SOCKET_IFNAME, else the route to the store's host (empty: unknown), else this host's name, else
/// loopback. Throws std::runtime_error that names the culprit.
ChosenAddress chooseAddress(const std::string& option, const std::string& storeHost);

/// Whether the address stands for all interfaces (0.0.0.0, ::), which nobody can dial.
bool isWildcard(const std::string& address);

/// A name for TensorPipe's shared-memory transport that no other process or call uses.
std::string uniqueShmAddress();

} // namespace torchwire
