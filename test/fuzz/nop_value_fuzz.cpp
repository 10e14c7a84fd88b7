// Bytes in the place of TensorPipe's objects.

#include <tensorpipe/channel/mpt/nop_types.h>
#include <tensorpipe/common/nop.h>
#include <tensorpipe/core/nop_types.h>

#include <cstdint>

#include "backend/tensorpipe/nop_value.h"
#include "test/fuzz/fuzz.h"

namespace tp = tensorpipe;

namespace {

/// As a connection has TensorPipe do it, which looks at no length: the sanitizer sees what is read beyond the end.
template <typename Object>
void read(const uint8_t* data, size_t size) {
  tp::NopReader reader(data, size);
  Object object;
  nop::Deserializer<tp::NopReader*> deserializer(&reader);
  deserializer.Read(&object);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const char*>(data);
  if (!torchwire::isNopValue(bytes, size)) {
    return 0;
  }
  for (size_t length = 0; length < size; ++length) {
    torchwire::require(
        !torchwire::isNopValue(bytes, length), "a value does not begin with another value");
  }
  read<tp::Packet>(data, size);
  read<tp::Brochure>(data, size);
  read<tp::BrochureAnswer>(data, size);
  read<tp::Descriptor>(data, size);
  read<tp::DescriptorReply>(data, size);
  read<tp::channel::mpt::Packet>(data, size);
  return 0;
}
