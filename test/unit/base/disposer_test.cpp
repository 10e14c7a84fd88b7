#include "backend/base/disposer.h"

#include <catch2/catch.hpp>
#include <future>
#include <memory>
#include <thread>

using namespace torchwire;

namespace {

// Says on which thread it ends.
class Witness {
 public:
  explicit Witness(std::promise<std::thread::id>& ended) : ended_(&ended) {}
  Witness(Witness&& other) noexcept : ended_(std::exchange(other.ended_, nullptr)) {}
  ~Witness() {
    if (ended_ != nullptr) {
      ended_->set_value(std::this_thread::get_id());
    }
  }

 private:
  std::promise<std::thread::id>* ended_;
};

struct Kept {
  std::promise<std::thread::id> ended;
  std::shared_ptr<ThreadPool> pool = std::make_shared<ThreadPool>(1, "disposer");
  std::shared_ptr<void> pointer = Disposer(pool).keep(Witness(ended));
};

} // namespace

TEST_CASE("what is kept ends at once where a free thread lets go of it", "[disposer]") {
  Kept kept;
  kept.pointer.reset();
  CHECK(kept.ended.get_future().get() == std::this_thread::get_id());
}

TEST_CASE(
    "what is kept ends on the pool where a thread that sends or delivers lets go of it",
    "[disposer]") {
  Kept sent, delivered;
  {
    const SendScope scope;
    sent.pointer.reset();
  }
  {
    const DeliverScope scope;
    delivered.pointer.reset();
  }
  CHECK(sent.ended.get_future().get() != std::this_thread::get_id());
  CHECK(delivered.ended.get_future().get() != std::this_thread::get_id());
}

TEST_CASE(
    "what is kept ends with its last pointer only, and also when the pool has ended",
    "[disposer]") {
  Kept kept;
  const auto copy = std::make_unique<std::shared_ptr<void>>(kept.pointer);
  kept.pointer.reset();
  auto ended = kept.ended.get_future();
  CHECK(ended.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  kept.pool->join();
  {
    const SendScope scope;
    copy->reset();
  }
  CHECK(ended.get() == std::this_thread::get_id());
}
