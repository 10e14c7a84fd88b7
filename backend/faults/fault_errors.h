// What users read when a fault was injected: each text says that it was, and by which rule.
#pragma once

#include <string>

#include "backend/base/error.h"
#include "backend/faults/fault_log.h"

namespace torchwire::faults {

/// Of a call that fails on purpose; reads, too, what PyTorch calls an intentional failure.
std::string failureText(const Entry& fault);
/// Of the calls on a worker's link to itself, when that breaks.
std::string brokenLinkText(const Entry& fault);

Error failedBy(const Entry& fault);
Error brokenBy(const Entry& fault);
Error refusedBy(const Entry& fault);
/// The time at which the frame should have gone out will not come.
Error heldForEver();
Error closedMeanwhile();

} // namespace torchwire::faults
