// Bytes in the place of TensorPipe's objects.

#include <cstdint>

#include "backend/tensorpipe/nop_value.h"
#include "test/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const char*>(data);
  if (torchwire::isNopValue(bytes, size)) {
    for (size_t length = 0; length < size; ++length) {
      torchwire::require(
          !torchwire::isNopValue(bytes, length), "a value does not begin with another value");
    }
  }
  return 0;
}
