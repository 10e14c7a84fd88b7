// Records of a sealed connection, with somebody in between who may change, cut, invent, leave out and repeat them.

#include <cstdint>
#include <string>
#include <vector>

#include "backend/wire/record_cipher.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

constexpr int kRecords = 4;
constexpr size_t kMaxContent = kShortContent + 64; // of records of both kinds

using Record = std::vector<unsigned char>;

Record seal(RecordSealer& sealer, std::string content) {
  const iovec part{content.data(), content.size()};
  ContentCursor cursor(&part, 1);
  Record record(content.size() + kRecordOverhead);
  sealer.seal(cursor, content.size(), record.data());
  return record;
}

void run(Script script, const Digest& secret) {
  const auto algorithm =
      script.ConsumeBool() ? RecordAlgorithm::aes256Gcm : RecordAlgorithm::chaCha20Poly1305;
  const RecordKey key{algorithm, secret, {4, 5, 6}};
  RecordSealer sealer(key, /* recordsOfAKey */ 2);
  RecordOpener opener(key, 2);
  std::vector<std::string> contents;
  std::vector<Record> records;
  for (int i = 0; i < kRecords; ++i) {
    contents.push_back("x" + script.ConsumeRandomLengthString(kMaxContent));
    records.push_back(seal(sealer, contents.back()));
  }
  for (size_t i = 0; i < records.size(); ++i) {
    Record arrives = records[script.ConsumeIntegralInRange<size_t>(0, records.size() - 1)];
    if (script.ConsumeBool()) {
      arrives[script.ConsumeIntegralInRange<size_t>(0, arrives.size() - 1)] ^=
          script.ConsumeIntegral<unsigned char>();
    } else if (script.ConsumeBool()) {
      arrives =
          script.ConsumeBytes<unsigned char>(script.ConsumeIntegralInRange<size_t>(0, kMaxContent));
    }
    size_t content = 0;
    const bool isHeader = RecordOpener::readHeader(arrives, content);
    require(!isHeader || content <= kMaxRecordContent, "a record has its most");
    std::string opened(arrives.size(), '\0');
    const bool isOpen = opener.open(arrives, opened.data());
    require(isOpen == (arrives == records[i]), "the record that is next opens, and no other");
    if (!isOpen) {
      return;
    }
    opened.resize(content);
    require(opened == contents[i], "what is opened is what was sealed");
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::run(torchwire::Script(data, size), torchwire::digestOf(data, size));
  return 0;
}
