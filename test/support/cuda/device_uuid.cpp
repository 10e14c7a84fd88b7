#include "test/support/cuda/device_uuid.h"

namespace torchwire::cuda_stand_in {

std::array<unsigned char, 16> uuidBytes(int machineDevice) {
  // The number in front, so that a few letters of the text are enough to name a device.
  return {
      static_cast<unsigned char>(0xa0 + machineDevice),
      0x57,
      0xa9,
      0xd1,
      0x17,
      0x00,
      0x40,
      0x00,
      0x80,
      0x00,
      0x70,
      0x6f,
      0x72,
      0x63,
      0x68,
      static_cast<unsigned char>(machineDevice)};
}

std::string uuidText(int machineDevice) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  int position = 0;
  for (const unsigned char byte : uuidBytes(machineDevice)) {
    if (position == 4 || position == 6 || position == 8 || position == 10) {
      text += '-';
    }
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
    ++position;
  }
  return text;
}

} // namespace torchwire::cuda_stand_in
