// Devices and workers that the tests of device maps are about.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "cuda/device_record.h"

namespace torchwire::cuda {

inline const c10::Device kCpu(c10::DeviceType::CPU);

inline c10::Device gpu(int index) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

inline c10::Device xpu(int index) {
  return {c10::DeviceType::XPU, static_cast<c10::DeviceIndex>(index)};
}

/// A worker with cuda:0 to cuda:<gpus - 1>, and no options.
inline DeviceRecord worker(const std::string& name, int gpus) {
  DeviceRecord record;
  record.name = name;
  if (gpus > 0) {
    record.counts.emplace(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpus));
  }
  return record;
}

} // namespace torchwire::cuda
