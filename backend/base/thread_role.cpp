#include "backend/base/thread_role.h"

#include <string>

namespace torchwire {
namespace {

struct Depths {
  unsigned sending = 0;
  unsigned delivering = 0;
};
constinit thread_local Depths depths;

} // namespace

SendScope::SendScope() {
  ++depths.sending;
}

SendScope::~SendScope() {
  --depths.sending;
}

DeliverScope::DeliverScope() {
  ++depths.delivering;
}

DeliverScope::~DeliverScope() {
  --depths.delivering;
}

bool isSending() {
  return depths.sending > 0;
}

bool isDelivering() {
  return depths.delivering > 0;
}

void breakRoleRule(const char* action) {
  const std::string where = !isDelivering() ? "inside a send"
      : !isSending()                        ? "in a link callback, on a loop or in a timer task"
                                            : "in a link callback inside a send";
  breakRule(std::string(action) + " " + where);
}

} // namespace torchwire
