// The body of a message in its frame: behind the header, or, where it is large, as a payload of its own. What stands behind
// it is a table of tensors (backend/codec/).
#pragma once

#include <cstdint>
#include <vector>

#include "backend/base/bytes.h"
#include "backend/wire/frame.h"

namespace torchwire {

/// Writes the header and the body into a frame that is empty. False where the body is large: then the frame points into
/// `body`, which has to be kept until the frame is sent.
bool writeBody(
    OutgoingFrame& frame, FrameKind kind, uint32_t messageType, const std::vector<char>& body);
/// Takes the body out of the frame. `in` reads the frame's head, from its beginning, and then stands behind the body. Throws
/// FormatError.
std::vector<char> takeBody(const FrameHeader& header, IncomingFrame& frame, ByteReader& in);
/// Where the body ends in the frame's head.
size_t endOfBody(const FrameHeader& header);

/// A message without tensors.
OutgoingFrame bodyFrame(FrameKind kind, uint32_t messageType, std::vector<char> body);
/// The body of such a message. Throws FormatError.
std::vector<char> bodyIn(ReceivedFrame received);

} // namespace torchwire
