// Which of the two algorithms drives a backward pass. See docs/backward.md.
#pragma once

namespace torchwire {

enum class BackwardMode {
  smart, // when it is stuck, finds out which send functions the roots reach
  fast, // takes for granted that the roots reach all of them
};

} // namespace torchwire
