// Which messages the rules of a plan apply to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/faults/fault_log.h"
#include "backend/faults/plan.h"

namespace torchwire::faults {

/// A message at a point of its call, as rules see it.
struct FaultPoint {
  Phase phase{};
  std::string from, to; // caller and callee; connect: dialer and accepter
  uint32_t message = 0; // type of the request; connect: 0
  uint64_t callId = 0;
  uint64_t content = 0; // hash of the request's body; only read where a rule has eachMessage
  size_t bytes = 0; // that corrupt may choose from
  uint64_t occurrence = 0; // in its stream; found out by FaultSchedule

  /// What the log says of it, but for what depends on the fault's kind, its time and its worker.
  Entry entry(uint64_t revision, const std::string& rule, Action action) const;
};

/// Counts the messages of each stream and decides their fate. What it draws is a pure function of the plan, the
/// stream and the occurrence, and what it counts it counts for each stream apart: so two runs that
/// send the same messages get the same faults, however their threads interleave.
///
/// With Rule::eachMessage, atLeast and atMost too are meant for each content apart, not for the whole stream.
/// An occurrence that an earlier rule applies to does not count for atLeast. Not thread-safe.
class FaultSchedule {
 public:
  FaultSchedule() = default;
  explicit FaultSchedule(Plan plan);

  /// Counts the message and says which fault it gets, if any. The entry lacks time and worker.
  std::optional<Entry> next(FaultPoint& at);

  bool empty() const {
    return plan_.rules.empty();
  }
  /// Whether a rule reads FaultPoint::content.
  bool readsContent() const;

 private:
  /// What a rule has been asked and has done.
  struct Record {
    uint64_t offered = 0;
    uint64_t applied = 0;
  };
  struct Tally {
    uint64_t count = 0;
    std::vector<Record> records; // by place in Stream::rules
  };
  struct Stream {
    uint64_t hash = 0;
    std::vector<size_t> rules; // that match it, as indexes into the plan
    bool readsContent = false; // one of them
    Tally all;
    // Grows with the number of different messages; starts anew with the next plan.
    std::unordered_map<uint64_t, Tally> byContent;
  };
  /// Where the random numbers of a rule at an occurrence come from.
  struct Draw {
    uint64_t hash;
    uint64_t bits(uint64_t number) const;
    double unit(uint64_t number) const; // [0, 1)
  };

  Stream& streamOf(const FaultPoint& at);
  bool applies(const Rule& rule, const Draw& draw, uint64_t k, Record& record) const;
  Entry entryOf(const Rule& rule, const Draw& draw, const FaultPoint& at) const;

  Plan plan_;
  std::unordered_map<uint64_t, Stream> streams_; // by hash
};

/// Whether a worker's name is in a rule's list of names and shell patterns; an empty list has all.
bool matches(const std::vector<std::string>& patterns, const std::string& name);

/// The random number, from [0, 1), that all workers draw for a rule.
double commonDraw(const Plan& plan, size_t rule, uint64_t number);

} // namespace torchwire::faults
