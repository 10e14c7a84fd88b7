// The group's workers and their deaths, as somebody wrote them into the store.

#include <cstdint>
#include <string>
#include <vector>

#include "backend/wire/deaths.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

constexpr int kMaxWorkers = 5;
constexpr size_t kMaxString = 64;

bool beginsWith(const std::vector<char>& bytes, const std::vector<char>& beginning) {
  return bytes.size() >= beginning.size() &&
      std::equal(beginning.begin(), beginning.end(), bytes.begin());
}

Roster makeRoster(Script& script) {
  Roster roster;
  roster.worldSize = script.ConsumeIntegral<uint32_t>();
  roster.groupId = script.ConsumeIntegral<uint64_t>();
  roster.closed = script.ConsumeBool();
  for (int workers = script.ConsumeIntegralInRange(0, kMaxWorkers); workers > 0; --workers) {
    WorkerRecord worker;
    worker.name = script.ConsumeRandomLengthString(kMaxString);
    worker.id = script.ConsumeIntegral<WorkerId>();
    worker.incarnation = script.ConsumeIntegral<uint64_t>();
    worker.address = script.ConsumeRandomLengthString(kMaxString);
    worker.onHost.host = script.ConsumeRandomLengthString(kMaxString);
    worker.onHost.address = script.ConsumeRandomLengthString(kMaxString);
    worker.torchVersion = script.ConsumeRandomLengthString(kMaxString);
    worker.protocolVersion = script.ConsumeIntegral<uint32_t>();
    worker.linkOptions = script.ConsumeIntegral<uint32_t>();
    worker.devices = script.ConsumeRandomLengthString(kMaxString);
    roster.workers.push_back(worker);
  }
  return roster;
}

/// A roster as a worker would write it, changed a little, or any bytes.
std::vector<char> makeBytes(Script& script) {
  if (script.ConsumeBool()) {
    return script.ConsumeRemainingBytes<char>();
  }
  std::vector<char> bytes = makeRoster(script).encode();
  for (int changes = script.ConsumeIntegralInRange(0, 3); changes > 0; --changes) {
    const size_t at = script.ConsumeIntegralInRange<size_t>(0, bytes.size() - 1);
    bytes[at] = script.ConsumeIntegral<char>();
  }
  if (script.ConsumeBool()) {
    bytes.resize(script.ConsumeIntegralInRange<size_t>(0, bytes.size()));
  }
  return bytes;
}

/// Whoever is on the list is found, and nobody joins twice.
void use(Roster roster) {
  for (const WorkerRecord& worker : roster.workers) {
    require(roster.find(worker.id) != nullptr, "a worker is found by its rank");
    require(roster.find(worker.name) != nullptr, "a worker is found by its name");
    require(roster.objectionTo(worker, roster.worldSize).has_value(), "nobody joins a second time");
  }
  while (!roster.workers.empty()) {
    const size_t before = roster.workers.size();
    roster.remove(WorkerRecord(roster.workers.front()));
    require(roster.workers.size() < before, "a worker that is removed is gone");
  }
}

void decodeRoster(const std::vector<char>& bytes) {
  try {
    const Roster roster = Roster::decode(bytes);
    const std::vector<char> encoded = roster.encode();
    require(beginsWith(bytes, encoded), "a roster that was decoded is what was written");
    require(Roster::decode(encoded).encode() == encoded, "a roster that was encoded is the same");
    use(roster);
  } catch (const FormatError&) { // not a roster
  }
}

void decodeRecord(const std::vector<char>& bytes) {
  try {
    ByteReader in(bytes);
    const WorkerRecord record = WorkerRecord::read(in);
    std::vector<char> encoded;
    ByteWriter out(encoded);
    record.write(out);
    require(beginsWith(bytes, encoded), "a record that was decoded is what was written");
    require(encoded.size() == bytes.size() - in.remaining(), "a record ends where it ended");
    require(!record.describe().empty(), "a record can be described");
  } catch (const FormatError&) { // not a record
  }
}

void decodeDeaths(const std::vector<char>& bytes) {
  try {
    Deaths deaths = Deaths::decode(bytes);
    require(beginsWith(bytes, deaths.encode()), "deaths that were decoded are what was written");
    for (const Death& death : deaths.all) {
      require(deaths.find(death.id, death.incarnation) != nullptr, "who is dead is found");
    }
    deaths.add({-1, 1, "one more"});
    require(deaths.find(-1, 1) != nullptr, "who has died now is found");
  } catch (const FormatError&) { // not deaths
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::Script script(data, size);
  const std::vector<char> bytes = torchwire::makeBytes(script);
  torchwire::decodeRoster(bytes);
  torchwire::decodeRecord(std::vector<char>(data, data + size));
  torchwire::decodeDeaths(std::vector<char>(data, data + size));
  return 0;
}
