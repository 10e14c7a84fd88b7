// RRefs in pickles that are not read to their end: they are received and dropped, so that their owners hear of it.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchwire {

/// Replaces the functions by which PyTorch unpickles, which torchwire.pickling has replaced before. On import, with the GIL.
void dropUnreadRRefs();

} // namespace torchwire
