#include "backend/membership/proven_store.h"

#include <algorithm>
#include <utility>

namespace torchwire {
namespace {

/// Throws UnprovenEntry.
KeyValueStore::Value proven(const std::string& key, StoreEntry entry) {
  if (!entry.proven) {
    throw UnprovenEntry(key);
  }
  return std::move(entry.value);
}

[[noreturn]] void throwLost(const std::string& key) {
  throw std::runtime_error("it has lost the entry '" + key + "'");
}

} // namespace

UnprovenEntry::UnprovenEntry(const std::string& key)
    : std::runtime_error(
          "the rendezvous store's entry '" + key +
          "' was not written by a worker of this group, or is an old one: somebody without the "
          "group's secret has changed it") {}

void ProvenStore::proveWith(std::vector<GroupKey> keys) {
  MutexLock lock(mutex_);
  keys_ = std::move(keys);
  derive();
}

void ProvenStore::deriveKeys(const char* purpose, const Value& common) {
  MutexLock lock(mutex_);
  purpose_ = purpose;
  common_ = common;
  derive();
}

void ProvenStore::derive() {
  for (GroupKey& key : keys_) {
    if (purpose_ != nullptr) {
      key = key.derive(purpose_, common_);
    }
  }
}

void ProvenStore::renew() {
  std::map<std::string, Value> own;
  std::vector<std::string> exchanged;
  {
    MutexLock lock(mutex_);
    own = set_;
    for (const auto& [key, seen] : seen_) {
      exchanged.push_back(key);
    }
  }
  for (const auto& [key, value] : own) {
    set(key, value);
  }
  for (const std::string& key : exchanged) {
    renew(key);
  }
}

/// Who writes something else meanwhile may have proven it before the keys changed.
void ProvenStore::renew(const std::string& key) {
  for (;;) {
    const StoreEntry entry = find(key);
    if (!entry.proven || isProvenByFirst(key, entry)) {
      return;
    }
    exchange(key, entry, entry.value);
  }
}

bool ProvenStore::isProvenByFirst(const std::string& key, const StoreEntry& entry) const {
  MutexLock lock(mutex_);
  return keys_.empty() || StoreEntry::read(&keys_.front(), key, entry.bytes).proven;
}

bool ProvenStore::canProve() const {
  MutexLock lock(mutex_);
  return !keys_.empty();
}

KeyValueStore::Value ProvenStore::compareSet(
    const std::string& key, const Value& expected, const Value& wanted) {
  StoreEntry before;
  before.bytes = bytesOf(key, expected);
  const StoreEntry now = exchange(key, before, wanted);
  if (now.proven && !isProvenByFirst(key, now)) { // another thread has changed the keys meanwhile
    renew(key);
  }
  return proven(key, now);
}

/// Of two threads that have seen different versions, one expects what is not there any more.
KeyValueStore::Value ProvenStore::bytesOf(const std::string& key, const Value& expected) const {
  MutexLock lock(mutex_);
  if (expected.empty() || keys_.empty()) {
    return expected;
  }
  const auto seen = seen_.find(key);
  const bool isSeen = seen != seen_.end() && seen->second.value == expected;
  return isSeen ? seen->second.bytes : expected; // without a proof, so that it is not there
}

KeyValueStore::Value ProvenStore::get(const std::string& key) {
  return proven(key, find(key));
}

KeyValueStore::Value ProvenStore::getIfThere(const std::string& key) {
  const StoreEntry entry = findIfThere(key);
  return entry.bytes.empty() ? Value() : proven(key, entry);
}

void ProvenStore::set(const std::string& key, const Value& value) {
  Value
      bytes; // once more where another thread has changed the keys meanwhile, and written it anew before
  for (Value now = toSet(key, value); now != bytes; now = toSet(key, value)) {
    bytes = now;
    store_->set(key, bytes);
  }
}

KeyValueStore::Value ProvenStore::toSet(const std::string& key, const Value& value) {
  MutexLock lock(mutex_);
  set_[key] = value;
  return keys_.empty() ? value : StoreEntry::prove(keys_.front(), key, 0, value);
}

int64_t ProvenStore::add(const std::string& key, int64_t amount) {
  return store_->add(key, amount);
}

bool ProvenStore::check(const std::string& key) {
  return store_->check(key);
}

bool ProvenStore::checkAll(const std::vector<std::string>& keys) {
  return store_->checkAll(keys);
}

std::vector<KeyValueStore::Value> ProvenStore::getAll(const std::vector<std::string>& keys) {
  std::vector<Value> values = store_->getAll(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    values[i] = proven(keys[i], read(keys[i], values[i], 0));
  }
  return values;
}

StoreEntry ProvenStore::find(const std::string& key) {
  const uint64_t atLeast = seenVersion(key); // before: another thread may see a later one meanwhile
  return read(key, store_->get(key), atLeast);
}

StoreEntry ProvenStore::findIfThere(const std::string& key) {
  return findWithin(std::chrono::milliseconds(0), key);
}

StoreEntry ProvenStore::findWithin(std::chrono::milliseconds patience, const std::string& key) {
  const uint64_t atLeast = seenVersion(key);
  const Value bytes = store_->getWithin(patience, key);
  return bytes.empty() ? StoreEntry() : read(key, bytes, atLeast);
}

StoreEntry ProvenStore::exchange(
    const std::string& key, const StoreEntry& expected, const Value& wanted) {
  const uint64_t atLeast = seenVersion(key);
  if (expected.bytes.empty() && atLeast > 0) {
    return findAgain(key);
  }
  Value bytes = wanted;
  {
    MutexLock lock(mutex_);
    if (!keys_.empty()) {
      const uint64_t before = expected.proven ? expected.version : 0;
      bytes = StoreEntry::prove(keys_.front(), key, std::max(atLeast, before) + 1, wanted);
    }
  }
  const Value now = store_->compareSet(key, expected.bytes, bytes);
  // What was expected is no more there, since nothing else keeps a store from the exchange: see KeyValueStore.
  if (!now.empty() && now == expected.bytes && now != bytes) {
    throwLost(key);
  }
  return read(key, now, atLeast);
}

/// Nobody in the group deletes entries. One that was deleted must not be made anew: its versions would go back to none.
StoreEntry ProvenStore::findAgain(const std::string& key) {
  if (!store_->check(key)) {
    throwLost(key);
  }
  return find(key);
}

uint64_t ProvenStore::seenVersion(const std::string& key) const {
  MutexLock lock(mutex_);
  const auto seen = seen_.find(key);
  return seen == seen_.end() ? 0 : seen->second.version;
}

StoreEntry ProvenStore::entryOf(const std::string& key, const Value& bytes) const {
  StoreEntry entry = StoreEntry::read(nullptr, key, bytes);
  for (const GroupKey& each : keys_) {
    if (!entry.proven) {
      entry = StoreEntry::read(&each, key, bytes);
    }
  }
  return entry;
}

/// Without a key, all that is there is taken for proven.
StoreEntry ProvenStore::read(const std::string& key, const Value& bytes, uint64_t atLeast) {
  MutexLock lock(mutex_);
  StoreEntry entry = entryOf(key, bytes);
  if (keys_.empty()) {
    entry.proven = true;
    return entry;
  }
  if (!entry.proven) {
    return entry;
  }
  const auto seen = seen_.find(key);
  const uint64_t latest = seen == seen_.end() ? 0 : seen->second.version;
  const bool isAnother = latest > 0 && entry.version == latest && entry.bytes != seen->second.bytes;
  entry.proven = entry.version >= atLeast && !isAnother;
  if (entry.proven && entry.version > latest) {
    seen_[key] = {entry.version, entry.value, bytes};
  }
  return entry;
}

} // namespace torchwire
