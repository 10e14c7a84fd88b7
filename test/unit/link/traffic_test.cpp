#include "backend/link/traffic.h"

#include <catch2/catch.hpp>

#include <string>
#include <tuple>
#include <vector>

namespace torchwire {
namespace {

using Row = std::tuple<std::string, std::string, uint64_t, uint64_t>;

std::vector<Row> rowsOf(const Traffic& traffic) {
  std::vector<Row> rows;
  for (const CarriedBytes& each : traffic.carried()) {
    rows.emplace_back(each.transport, each.channel, each.sent, each.received);
  }
  return rows;
}

} // namespace

TEST_CASE("bytes are counted by the link that is there", "[traffic]") {
  Traffic traffic;
  CHECK(traffic.carried().empty());
  traffic.carryBy({"wire_shm", "cma"});
  traffic.addSent(10);
  traffic.addReceived(1);
  traffic.carryBy({"wire_tcp", "basic"});
  traffic.addSent(20);
  traffic.carryBy({"wire_shm", "basic"});
  traffic.addReceived(2);
  traffic.carryBy({"wire_shm", "cma"});
  traffic.addSent(40);
  CHECK(
      rowsOf(traffic) ==
      std::vector<Row>{
          {"wire_shm", "cma", 50, 1}, {"wire_tcp", "basic", 20, 0}, {"wire_shm", "basic", 0, 2}});
  CHECK(traffic.bytesSent() == 70);
  CHECK(traffic.bytesReceived() == 3);
  CHECK(traffic.framesSent == 3);
  CHECK(traffic.framesReceived == 2);
}

} // namespace torchwire
