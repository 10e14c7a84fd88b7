// Notices that this host loses an address.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "backend/transport/handshake_socket.h"
#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"

namespace torchwire {

/// Whether the connection's own address is none of this host's any more. The system says nothing of it: it sends no packet
/// then, and so none gets lost.
bool hasLostItsAddress(int socket);

/// Costs nothing until addresses change: the kernel tells (rtnetlink). Where it does not, nothing is noticed. Loop-bound.
/// Held by shared_ptr.
class AddressWatch : public std::enable_shared_from_this<AddressWatch> {
 public:
  explicit AddressWatch(Loop& loop);
  AddressWatch(const AddressWatch&) = delete;
  AddressWatch& operator=(const AddressWatch&) = delete;

  /// `lost` is called soon after an address has gone, whichever, until it is removed. It may remove any, and let go of the
  /// watch.
  void add(const void* listener, std::function<void()> lost);
  void remove(const void* listener);

 private:
  void onMessages();
  bool takeMessages() const;
  void tell();

  Loop& loop_;
  const Descriptor socket_;
  std::map<const void*, std::function<void()>> listeners_;
  LoopTimer settling_;
  std::unique_ptr<FdWatch> watch_; // before the descriptor is closed, it goes
};

} // namespace torchwire
