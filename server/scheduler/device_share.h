#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/progress.pb.h"

namespace recon {

// What a worker says of its device: finite, of a possible size, texts not too long. InvalidArgument with the
// value.
absl::Status CheckDeviceStatus(const DeviceStatus& device);

// What a worker gets of the lease that its speed would give it (LeaseSplits()), and why, as a sentence; empty
// if it gets all.
struct LeaseShare {
  double share = 1;
  std::string why;
};

// Leases are as long as a worker takes for them at the speed it was last seen with. On a device that others
// use the speed may be another one soon, and a process on a device without free memory may end: what it has
// of a lease then is what everybody waits for. So:
//
//   others, the share of the time that a GPU computes for others, above a quarter        1 - others
//   memory that is used, above 95 %                                                      a half of that
//
// and an eighth at least. What is not known of a device counts as good, and so does a busy processor: workers
// of one machine are others to each other there, and share it evenly.
LeaseShare LeaseShareOf(const DeviceStatus& device);

}  // namespace recon
