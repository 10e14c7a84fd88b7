// Whether bytes are one whole value in libnop's encoding, whatever its type.
#pragma once

#include <cstddef>

namespace torchwire {

/// TensorPipe's reader takes what libnop asks for without a look at how much is left, so that bytes which end too early are
/// read beyond their end. The encoding describes itself: of a value that ends where the bytes do, libnop asks for nothing
/// else. At most 32 levels deep.
bool isNopValue(const char* data, size_t length);

} // namespace torchwire
