// What keeps two processes apart, by what a transport or channel says of where it reaches.
#pragma once

#include <string>

#include "backend/tensorpipe/choice.h"

namespace torchwire {

/// In words, how two descriptors of `name` differ: another host, namespace or user. `own` and `peers` are not equal.
Objection differenceOf(const std::string& name, const std::string& own, const std::string& peers);

} // namespace torchwire
