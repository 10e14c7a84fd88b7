// What a request asks for, read from its bytes.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/rpc/message.h>

#include <cstdint>
#include <string_view>

#include "backend/call/function_table.h"
#include "backend/wire/frame.h"

namespace torchwire {

/// The label of a request, with the text that it needs.
class LabelledRequest {
 public:
  /// `body`: the message's payload. It may hold anything: what cannot be read has no function.
  LabelledRequest(uint32_t messageType, std::string_view body);
  explicit LabelledRequest(const torch::distributed::rpc::Message& request);
  explicit LabelledRequest(const ReceivedFrame& request);
  LabelledRequest(const LabelledRequest&) = delete;
  LabelledRequest& operator=(const LabelledRequest&) = delete;

  /// As long as this lives.
  RequestLabel label() const {
    return {kind_, {function_.data(), function_.size()}};
  }

 private:
  std::string_view kind_;
  c10::SmallVector<char, 128>
      function_; // each call is labelled at both ends: nothing is allocated for that
};

} // namespace torchwire
