#include "backend/link/traffic.h"

#include <algorithm>

namespace torchwire {

void Traffic::carryBy(const LinkDescription& link) {
  const auto same = [&](const CarriedBytes& each) {
    return each.transport == link.transport && each.channel == link.channel;
  };
  const auto found = std::find_if(carried_.begin(), carried_.end(), same);
  present_ = static_cast<size_t>(found - carried_.begin());
  if (found == carried_.end()) {
    carried_.push_back({link.transport, link.channel});
  }
}

void Traffic::addSent(size_t bytes) {
  ++framesSent;
  bytesSent += bytes;
  carried_[present_].sent += bytes;
}

void Traffic::addReceived(size_t bytes) {
  ++framesReceived;
  bytesReceived += bytes;
  carried_[present_].received += bytes;
}

} // namespace torchwire
