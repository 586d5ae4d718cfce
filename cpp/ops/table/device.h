// The devices of this build and machine.
#pragma once

#include "ops/contract/device.h"
#include "ops/table/op_table.h"

namespace fastllm::ops {

// Null when this build has no arm for the device or the machine has no such device. The CPU is always there. The
// object lives as long as the process.
const DeviceApi* FindDevice(Device device);

// Each arm's own; FindDevice() asks these.
const DeviceApi& HostDevice();
const DeviceApi* CudaDevice();  // only in builds with FASTLLM_CUDA

}  // namespace fastllm::ops
