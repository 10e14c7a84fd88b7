// What others may have written into the rendezvous store: entries that were changed, and any bytes.

#include <cstdint>
#include <string>

#include "backend/wire/group_credentials.h"
#include "backend/wire/roster.h"
#include "backend/wire/store_entry.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

constexpr size_t kMaxValue = 64;

void run(Script script, const Digest& secret) {
  const GroupKey key(7, std::string(secret.begin(), secret.end()));
  const std::string name = script.ConsumeRandomLengthString(kMaxValue);
  const auto version = script.ConsumeIntegral<uint64_t>();
  const auto value =
      script.ConsumeBytes<uint8_t>(script.ConsumeIntegralInRange<size_t>(0, kMaxValue));
  const StoreEntry::Bytes whole = StoreEntry::prove(key, name, version, value);
  const StoreEntry entry = StoreEntry::read(&key, name, whole);
  require(entry.proven && entry.value == value && entry.version == version, "an entry is read");

  StoreEntry::Bytes changed = whole;
  for (int changes = script.ConsumeIntegralInRange(0, 3); changes > 0 && !changed.empty();
       --changes) {
    changed[script.ConsumeIntegralInRange<size_t>(0, changed.size() - 1)] ^=
        script.ConsumeIntegral<uint8_t>();
    changed.resize(script.ConsumeIntegralInRange<size_t>(0, changed.size() + 1));
  }
  require(
      changed == whole || !StoreEntry::read(&key, name, changed).proven,
      "nothing that was changed is proven");
  require(!StoreEntry::read(&key, name + "x", whole).proven, "nor what stands elsewhere");
  const auto rest = script.ConsumeRemainingBytes<uint8_t>();
  require(!StoreEntry::read(&key, name, rest).proven, "nor what somebody invents");
  try {
    GroupCredentials::decode({rest.begin(), rest.end()});
  } catch (const FormatError&) {
    return;
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::run(torchwire::Script(data, size), torchwire::digestOf(data, size));
  return 0;
}
