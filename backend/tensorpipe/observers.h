// Where those are let in who are no members (wire/observation.h).
#pragma once

#include "backend/link/link.h"
#include "backend/wire/observation.h"

namespace torchwire {

/// From now on, until the context is joined, whoever dials its wire_tcp to ask gets an answer from `ask`. Nothing where it
/// does not listen on wire_tcp. `context` is one of makeTensorPipeContext's. Called once.
void admitObservers(LinkContext& context, AskForObserver ask);

} // namespace torchwire
