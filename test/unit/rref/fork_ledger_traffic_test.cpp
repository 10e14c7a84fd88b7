// Owners and users whose messages come twice, late and in any order, on several threads at once.
#include "rref/ledger/fork_ledger.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "test/unit/support/seeds.h"

namespace torchwire {
namespace {

/// Delivers each message at least once, on one of several threads, in an order of its own. Thread-safe.
class Network {
 public:
  using Delivery = std::function<void()>;

  explicit Network(unsigned seed) : random_(seed) {
    for (int i = 0; i < 4; ++i) {
      threads_.emplace_back([this] { run(); });
    }
  }
  ~Network() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  void send(const Delivery& delivery) {
    {
      const std::lock_guard lock(mutex_);
      const int copies = 1 + (random_() % 4 == 0) + (random_() % 16 == 0);
      for (int i = 0; i < copies; ++i) {
        waiting_.push_back(delivery);
      }
    }
    changed_.notify_all();
  }
  /// Until nothing is on its way and nothing is being delivered.
  void settle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_.empty() && busy_ == 0; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
      if (ended_) {
        return;
      }
      std::swap(waiting_[random_() % waiting_.size()], waiting_.back());
      const Delivery delivery = std::move(waiting_.back());
      waiting_.pop_back();
      ++busy_;
      lock.unlock();
      delivery();
      lock.lock();
      --busy_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937 random_;
  std::vector<Delivery> waiting_;
  int busy_ = 0;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

/// The forks of one owner, and how many values it has let go. Thread-safe.
class Table final : public ForkTable {
 public:
  void add(const GlobalId& rref, const GlobalId& fork) override {
    const std::lock_guard lock(mutex_);
    forks_[rref].insert(fork);
  }
  Released remove(const GlobalId& rref, const GlobalId& fork) override {
    const std::lock_guard lock(mutex_);
    const auto found = forks_.find(rref);
    if (found == forks_.end() || found->second.erase(fork) == 0 || !found->second.empty()) {
      return nullptr;
    }
    forks_.erase(found);
    return {this, [](Table* self) { ++self->released; }};
  }
  bool awaitsValue(const GlobalId&) override {
    return false;
  }
  bool empty() const {
    const std::lock_guard lock(mutex_);
    return forks_.empty();
  }
  bool has(const GlobalId& rref) const {
    const std::lock_guard lock(mutex_);
    return forks_.contains(rref);
  }

  std::atomic<int> released{0};

 private:
  mutable std::mutex mutex_;
  std::map<GlobalId, std::set<GlobalId>> forks_;
};

struct Owner {
  Table table;
  ForkLedger ledger{table};
};

/// One RRef's life: created on an owner, handed to a second user and then dropped by both. Like libtorch, a
/// user waits for the owner's answer before it deletes itself, and for its child's word before that; unless it
/// loses patience, as after a time-out, and deletes itself at once.
class Life : public std::enable_shared_from_this<Life> {
 public:
  Life(Network& network, Owner& owner, int64_t number, bool impatient)
      : network_(network), owner_(owner), rref_{1, 10 * number}, impatient_(impatient) {}

  void begin() {
    network_.send([self = shared_from_this()] { self->onCreation(); });
    if (impatient_) {
      deleteOwn();
    }
  }

  std::atomic<int> runs{0};
  std::atomic<int> answers{0};
  std::atomic<bool> lostTooEarly{false};

 private:
  GlobalId own() const {
    return {rref_.createdOn, rref_.localId + 1};
  }
  GlobalId child() const {
    return {rref_.createdOn, rref_.localId + 2};
  }

  void onCreation() {
    const auto self = shared_from_this();
    if (!owner_.ledger.begin(rref_, own(), 1, [self] { self->onCreated(); })) {
      return;
    }
    ++runs;
    owner_.ledger.entered(own());
    // An async function: its value comes by another thread.
    network_.send([self] { self->owner_.ledger.finished(self->own()); });
  }
  void onCreated() {
    if (answers++ == 0 && !impatient_) {
      network_.send([self = shared_from_this()] { self->onFork(); });
    }
  }
  void onFork() {
    const bool isThere =
        owner_.table.has(rref_); // asked first: a copy of this message may run at the same time
    lostTooEarly = lostTooEarly || (!isThere && !forked_);
    owner_.ledger.add(rref_, child(), 2);
    if (!forked_.exchange(true)) {
      deleteOwn(); // the child has told of itself
      network_.send(
          [self = shared_from_this()] { self->owner_.ledger.remove(self->rref_, self->child()); });
    }
  }
  void deleteOwn() {
    network_.send(
        [self = shared_from_this()] { self->owner_.ledger.remove(self->rref_, self->own()); });
  }

  Network& network_;
  Owner& owner_;
  const GlobalId rref_;
  const bool impatient_;
  std::atomic<bool> forked_{false};
};

} // namespace

TEST_CASE(
    "no RRef is made twice, lost or left behind, whatever the messages do",
    "[fork_ledger_traffic]") {
  for (const unsigned seed : seeds(10)) {
    INFO("TORCHWIRE_TEST_SEED=" << seed);
    Owner owner;
    std::vector<std::shared_ptr<Life>> lives;
    {
      Network network(seed);
      for (int64_t number = 0; number < 300; ++number) {
        lives.push_back(std::make_shared<Life>(network, owner, number, number % 3 == 0));
        lives.back()->begin();
      }
      network.settle();
    }
    for (const auto& life : lives) {
      CHECK(life->runs == 1);
      CHECK(life->answers >= 1);
      CHECK_FALSE(life->lostTooEarly);
    }
    CHECK(owner.table.empty());
    CHECK(owner.table.released == static_cast<int>(lives.size()));
    CHECK(owner.ledger.running().empty());
    CHECK(owner.ledger.holders().empty());
  }
}

} // namespace torchwire
