// What faults do to the frames themselves, and what they read of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "backend/wire/frame.h"

namespace torchwire::faults {

/// The header; nothing where there is none, since what is not a frame is not for rules.
std::optional<FrameHeader> headerIn(const std::vector<char>& head);

/// A hash of the message's body: without the header and what differs from one try of a request to the next, and
/// without its tensors.
uint64_t contentOf(const OutgoingFrame& frame);
uint64_t contentOf(const IncomingFrame& frame);

/// Changes the byte at this place of head, payloads and tensors in a row, modulo their length. What the
/// segments point at is the user's, and is copied before.
void corrupt(OutgoingFrame& frame, uint64_t byte);
void corrupt(IncomingFrame& frame, uint64_t byte);

size_t tensorBytes(const OutgoingFrame& frame);
/// Likewise, within the tensors, which are not empty.
/// Puts a copy of the last tensor with any bytes in its place, which the frame keeps; where it begins.
const void* lastTensorOfItsOwn(OutgoingFrame& frame);
void corruptTensors(OutgoingFrame& frame, uint64_t byte);

/// Shares no memory with the frame.
IncomingFrame copyOf(const IncomingFrame& frame);

/// A response that lets the call fail with this text.
OutgoingFrame exceptionFrame(uint64_t callId, const std::string& text);

} // namespace torchwire::faults
