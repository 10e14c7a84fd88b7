#include "backend/link/traffic.h"

#include <algorithm>
#include <numeric>

namespace torchwire {
namespace {

uint64_t sum(const std::vector<CarriedBytes>& all, uint64_t CarriedBytes::* bytes) {
  return std::accumulate(
      all.begin(), all.end(), uint64_t{0},
      [bytes](uint64_t before, const CarriedBytes& each) { return before + each.*bytes; });
}

} // namespace

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
  carried_[present_].sent += bytes;
}

void Traffic::addReceived(size_t bytes) {
  ++framesReceived;
  carried_[present_].received += bytes;
}

uint64_t Traffic::bytesSent() const {
  return sum(carried_, &CarriedBytes::sent);
}

uint64_t Traffic::bytesReceived() const {
  return sum(carried_, &CarriedBytes::received);
}

} // namespace torchwire
