// The nearest known word, for messages about an unknown one.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace torchwire::cuda {

/// The one of `known` that a typing error could have turned into `word`: that from which the fewest letters differ,
/// upper and lower case being the same. None where none is near, or several are equally near ("worker4" among
/// "worker0" to "worker3" is nobody's typing error).
std::optional<std::string> nearest(const std::string& word, const std::vector<std::string>& known);

} // namespace torchwire::cuda
