// Faults in the middle of a tensor.
#pragma once

#include <memory>

namespace tensorpipe::channel {
class Context;
}

namespace torchwire::faults {

class MidTensor;

/// A channel context that sends every CPU tensor in two halves, and lets what `midTensor` has ready for a
/// tensor happen between them. Both ends of a link have to have it. Thread-safe.
std::shared_ptr<tensorpipe::channel::Context> makeFaultyChannel(
    std::shared_ptr<tensorpipe::channel::Context> inner, std::shared_ptr<MidTensor> midTensor);

} // namespace torchwire::faults
