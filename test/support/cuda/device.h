// The devices that this process sees, and which of them is a thread's current one.
#pragma once

#include <cstddef>

namespace torchwire::cuda_stand_in {

int deviceCount();
bool isDevice(int device);

/// The machine's number of the device, which other processes know it by.
int machineDevice(int device);
/// This process's number of the machine's device, or -1 if it does not see it.
int visibleDevice(int machineDevice);

int currentDevice();
void setCurrentDevice(int device);

/// As with CUDA, a thread may have a current device and yet no context of the driver's; null says that.
void* currentContext();
void setCurrentContext(void* context);
void* contextOf(int device);

/// From now on a process that is forked from this one cannot use any device.
void use(int device);
bool isUsed(int device);
bool forkedAfterUse();

/// Accounts for memory of the device. False if it has not as much.
bool takeMemory(int device, size_t size);
void giveMemory(int device, size_t size);
size_t freeMemory(int device);

} // namespace torchwire::cuda_stand_in
