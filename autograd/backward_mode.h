// Which of the two algorithms drives a backward pass. See docs/backward.md.
#pragma once

namespace torchwire {

enum class BackwardMode {
  smart, // finds out first which send functions the roots reach
  fast, // takes for granted that the roots reach all of them
};

} // namespace torchwire
