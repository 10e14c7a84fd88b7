#include "backend/transport/write_batch.h"

#include <algorithm>
#include <utility>

#include "backend/base/guarded.h"

namespace torchwire {
namespace {

thread_local WriteBatch* outermost = nullptr;

} // namespace

WriteBatch::WriteBatch() {
  if (outermost == nullptr) {
    outermost = this;
  }
}

WriteBatch::~WriteBatch() {
  if (outermost != this) {
    return;
  }
  outermost = nullptr;
  flush();
}

WriteBatch* WriteBatch::current() {
  return outermost;
}

void WriteBatch::flush() {
  for (const auto& writes : kept_) {
    guarded("a write", [&] { writes->flush(); });
  }
  kept_.clear();
  messages_ = 0;
}

void WriteBatch::add(std::shared_ptr<BatchedWrites> writes) {
  if (std::find(kept_.begin(), kept_.end(), writes) == kept_.end()) {
    kept_.push_back(std::move(writes));
  }
  ++messages_;
}

} // namespace torchwire
