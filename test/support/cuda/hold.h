// Devices that a test holds still.
#pragma once

namespace torchwire::cuda_stand_in {

/// Returns at once, unless the device is held: then when it is released.
void awaitRelease(int device);

} // namespace torchwire::cuda_stand_in
