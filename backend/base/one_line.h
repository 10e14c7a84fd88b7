// Text of somebody else's, as part of a line.
#pragma once

#include <string>
#include <string_view>

namespace torchwire {

/// The text with escapes (\n, \x1b) in place of control characters and of what is no UTF-8, so that it neither begins a
/// line nor steers a terminal. At most `maxBytes`, the last of which are "..." where it is longer.
std::string oneLine(std::string_view text, size_t maxBytes);

/// The same of text that may have several lines and be as long as it is: line feeds and tabs stay.
std::string printableLines(std::string_view text);

} // namespace torchwire
