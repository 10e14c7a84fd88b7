#include "backend/wire/whereabouts_messages.h"

#include "backend/base/bytes.h"

namespace torchwire {

std::vector<char> WhereaboutsQuestion::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.flag(withStack);
  out.number(static_cast<uint32_t>(patience.count()));
  out.number(static_cast<uint32_t>(path.size()));
  for (const Step& step : path) {
    out.number(step.worker);
    out.number(step.thread);
  }
  out.number(static_cast<uint32_t>(calls.size()));
  for (const uint64_t id : calls) {
    out.number(id);
  }
  return bytes;
}

WhereaboutsQuestion WhereaboutsQuestion::decode(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  WhereaboutsQuestion question;
  question.withStack = in.flag();
  question.patience = std::chrono::milliseconds(in.number<uint32_t>());
  uint32_t steps = in.count(sizeof(WorkerId) + sizeof(uint64_t));
  if (steps > kMaxSteps) {
    throw FormatError("a question that has been at " + std::to_string(steps) + " workers");
  }
  for (; steps > 0; --steps) {
    const auto worker = in.number<WorkerId>();
    question.path.push_back({worker, in.number<uint64_t>()});
  }
  for (uint32_t left = in.count(sizeof(uint64_t)); left > 0; --left) {
    question.calls.push_back(in.number<uint64_t>());
  }
  return question;
}

std::vector<char> WhereaboutsAnswer::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  for (const std::string& text : texts) {
    out.string(text);
  }
  return bytes;
}

WhereaboutsAnswer WhereaboutsAnswer::decode(const std::vector<char>& bytes, size_t calls) {
  ByteReader in(bytes);
  WhereaboutsAnswer answer;
  for (; calls > 0; --calls) {
    answer.texts.push_back(in.string());
  }
  return answer;
}

} // namespace torchwire
