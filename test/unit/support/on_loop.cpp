#include "test/unit/support/on_loop.h"

#include <cstdlib>
#include <future>
#include <iostream>

#include "test/unit/support/notifier.h"

namespace torchwire {

// Not in the template: of each action it would be code of its own, which takes the compiler most of its time.
void runOnLoop(Loop& loop, std::function<void()> action) {
  const auto task = std::make_shared<std::packaged_task<void()>>(std::move(action));
  std::future<void> done = task->get_future();
  loop.post([task] { (*task)(); });
  if (done.wait_for(Notifier::kPatience) != std::future_status::ready) {
    std::cerr << "the loop does not come to a task\n";
    std::abort();
  }
  done.get();
}

} // namespace torchwire
