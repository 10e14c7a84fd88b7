#include "backend/transport/write_batch.h"

#include <algorithm>
#include <utility>

#include "backend/base/guarded.h"
#include "backend/transport/message_stream.h"

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
  for (const auto& stream : streams_) {
    guarded("a write", [&] { stream->flush(); });
  }
  streams_.clear();
}

void WriteBatch::add(std::shared_ptr<MessageStream> stream) {
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
    streams_.push_back(std::move(stream));
  }
}

} // namespace torchwire
