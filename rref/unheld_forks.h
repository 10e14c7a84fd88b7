// Forks that were handed to workers which have died.
#pragma once

#include <chrono>

#include "rref/rref_service.h"

namespace torchwire {

/// An owner does not know to whom it has handed a fork itself, nor a user who got one from it. When no RRef is on its way
/// any more, as at a shutdown, a fork that none of the living holds was a dead worker's: this drops those, for which libtorch
/// would wait. Does nothing unless a worker is dead, and nothing where a living one does not answer within `patience`. Call
/// it without the GIL, on a thread that may block.
void dropForksOfTheDead(RRefService& service, std::chrono::milliseconds patience);

} // namespace torchwire
