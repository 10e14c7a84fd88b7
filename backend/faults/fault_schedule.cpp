#include "backend/faults/fault_schedule.h"

#include <fnmatch.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace torchwire::faults {
namespace {

constexpr double kReorderSeconds = 1; // where the rule says nothing

/// FNV-1a, and splitmix64 on what it gives: the same on every machine. A value.
class Hash {
 public:
  Hash() = default;
  explicit Hash(uint64_t state) : state_(state) {}

  Hash& add(std::string_view text) {
    for (const char c : text) {
      addByte(static_cast<unsigned char>(c));
    }
    addByte(0); // ends it: names have no such character
    return *this;
  }
  Hash& add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      addByte(static_cast<unsigned char>(number >> shift));
    }
    return *this;
  }
  uint64_t state() const {
    return state_;
  }

 private:
  void addByte(unsigned char byte) {
    state_ = (state_ ^ byte) * 0x100000001b3;
  }

  uint64_t state_ = 0xcbf29ce484222325;
};

uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

double unitOf(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// The random numbers that a rule may draw at an occurrence.
constexpr uint64_t kApplies = 0;
constexpr uint64_t kFirstOfSeconds = 1;
constexpr uint64_t kSecondOfSeconds = 2;
constexpr uint64_t kByte = 3;

bool isAbout(const Rule& rule, const FaultPoint& at) {
  if (rule.action == Action::partition || rule.phase != at.phase) {
    return false;
  }
  const bool type = at.phase == Phase::connect || rule.messages.empty() ||
      std::find(rule.messages.begin(), rule.messages.end(), at.message) != rule.messages.end();
  return type && matches(rule.from, at.from) && matches(rule.to, at.to);
}

} // namespace

bool matches(const std::vector<std::string>& patterns, const std::string& name) {
  return patterns.empty() ||
      std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
           return pattern == name || ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
         });
}

double commonDraw(const Plan& plan, size_t rule, uint64_t number) {
  return unitOf(splitmix64(Hash().add("common").add(plan.seed).add(rule).add(number).state()));
}

uint64_t FaultSchedule::Draw::bits(uint64_t number) const {
  return splitmix64(Hash(hash).add(number).state());
}

double FaultSchedule::Draw::unit(uint64_t number) const {
  return unitOf(bits(number));
}

FaultSchedule::FaultSchedule(Plan plan) : plan_(std::move(plan)) {
  for (Rule& rule : plan_.rules) {
    std::sort(rule.nth.begin(), rule.nth.end());
  }
}

bool FaultSchedule::readsContent() const {
  return std::any_of(
      plan_.rules.begin(), plan_.rules.end(), [](const Rule& rule) { return rule.eachMessage; });
}

std::optional<Entry> FaultSchedule::next(FaultPoint& at) {
  Stream& stream = streamOf(at);
  at.occurrence = ++stream.all.count;
  Tally* ofContent = nullptr;
  if (stream.readsContent) { // counted whichever rule applies
    ofContent = &stream.byContent[at.content];
    ofContent->records.resize(stream.rules.size());
    ++ofContent->count;
  }
  for (size_t place = 0; place < stream.rules.size(); ++place) {
    const size_t index = stream.rules[place];
    const Rule& rule = plan_.rules[index];
    Tally& tally = rule.eachMessage ? *ofContent : stream.all;
    const Draw draw{Hash(stream.hash)
                        .add(plan_.seed)
                        .add(index)
                        .add(tally.count)
                        .add(rule.eachMessage ? at.content : 0)
                        .state()};
    if (applies(rule, draw, tally.count, tally.records[place])) {
      return entryOf(rule, draw, at);
    }
  }
  return std::nullopt;
}

FaultSchedule::Stream& FaultSchedule::streamOf(const FaultPoint& at) {
  const uint64_t hash = Hash()
                            .add(at.from)
                            .add(at.to)
                            .add(uint64_t{at.message})
                            .add(static_cast<uint64_t>(at.phase))
                            .state();
  const auto [it, isNew] = streams_.try_emplace(hash);
  Stream& stream = it->second;
  if (isNew) {
    stream.hash = hash;
    for (size_t i = 0; i < plan_.rules.size(); ++i) {
      if (isAbout(plan_.rules[i], at)) {
        stream.rules.push_back(i);
        stream.readsContent = stream.readsContent || plan_.rules[i].eachMessage;
      }
    }
    stream.all.records.resize(stream.rules.size());
  }
  return stream;
}

bool FaultSchedule::applies(const Rule& rule, const Draw& draw, uint64_t k, Record& record) const {
  if (!rule.nth.empty() && !std::binary_search(rule.nth.begin(), rule.nth.end(), k)) {
    return false;
  }
  ++record.offered;
  if (rule.atMost != 0 && record.applied >= rule.atMost) {
    return false;
  }
  const bool guaranteed = record.offered <= rule.atLeast;
  if (!guaranteed && !(draw.unit(kApplies) < rule.probability)) {
    return false;
  }
  ++record.applied;
  return true;
}

Entry FaultPoint::entry(uint64_t revision, const std::string& rule, Action action) const {
  Entry entry;
  entry.revision = revision;
  entry.rule = rule;
  entry.action = action;
  entry.phase = phase;
  entry.from = from;
  entry.to = to;
  entry.message = message;
  entry.callId = callId;
  entry.occurrence = occurrence;
  return entry;
}

Entry FaultSchedule::entryOf(const Rule& rule, const Draw& draw, const FaultPoint& at) const {
  Entry entry = at.entry(plan_.revision, rule.name, rule.action);
  switch (rule.action) {
    case Action::delay:
    case Action::reorder:
    case Action::pause:
      entry.seconds = rule.seconds.at(draw.unit(kFirstOfSeconds), draw.unit(kSecondOfSeconds));
      break;
    case Action::corrupt:
      entry.byte = rule.byte.value_or(draw.bits(kByte));
      entry.byte = at.bytes == 0 ? 0 : entry.byte % at.bytes;
      break;
    default:
      break;
  }
  if (rule.action == Action::reorder && entry.seconds == 0) {
    entry.seconds = kReorderSeconds;
  }
  return entry;
}

} // namespace torchwire::faults
