#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace recon::cuda {

inline absl::Status Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // Said here, and not again by the next check.
  if (error == cudaErrorMemoryAllocation) {
    return absl::ResourceExhaustedError(absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error)));
  }
  return absl::UnavailableError(absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error)));
}

// Device memory that grows and frees itself. Not thread-safe.
template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }

  // Room for `count` elements; what was there is lost if it grows. ResourceExhausted if there is not
  // enough memory.
  absl::Status Reserve(size_t count) {
    if (count <= count_) return absl::OkStatus();
    cudaFree(data_);
    data_ = nullptr;
    count_ = 0;
    RECON_RETURN_IF_ERROR(
        Check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMalloc"));
    count_ = count;
    return absl::OkStatus();
  }
  // The same, all bytes 0.
  absl::Status ReserveZeroed(size_t count, cudaStream_t stream) {
    RECON_RETURN_IF_ERROR(Reserve(count));
    return Check(cudaMemsetAsync(data_, 0, count * sizeof(T), stream), "cudaMemsetAsync");
  }

  absl::Status Upload(const T* from, size_t count, cudaStream_t stream) {
    RECON_RETURN_IF_ERROR(Reserve(count));
    return Check(cudaMemcpyAsync(data_, from, count * sizeof(T), cudaMemcpyHostToDevice, stream), "upload");
  }

  void Release() {
    cudaFree(data_);
    data_ = nullptr;
    count_ = 0;
  }

  T* get() { return data_; }
  size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

// Page-locked host memory: what the copy engines need to work beside the kernels.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { cudaFreeHost(data_); }

  absl::Status Reserve(size_t bytes) {
    if (bytes <= bytes_) return absl::OkStatus();
    cudaFreeHost(data_);
    data_ = nullptr;
    bytes_ = 0;
    // To the next power of two: payloads differ a little from push to push, and allocating stops the device.
    size_t room = size_t{256} << 10;
    while (room < bytes) room *= 2;
    RECON_RETURN_IF_ERROR(Check(cudaMallocHost(&data_, room), "cudaMallocHost"));
    bytes_ = room;
    return absl::OkStatus();
  }
  uint8_t* get() { return static_cast<uint8_t*>(data_); }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// HostPinning's functions. They are called on any thread, many of which have no device of their own: on the
// process' device, lest CUDA begins to use another one for that.
inline std::atomic<int> pinning_device{0};
inline bool PinHostMemory(void* begin, size_t bytes) {
  return Check(cudaSetDevice(pinning_device.load()), "cudaSetDevice").ok() &&
         Check(cudaHostRegister(begin, bytes, cudaHostRegisterPortable), "cudaHostRegister").ok();
}
inline void UnpinHostMemory(void* begin) {
  (void)Check(cudaSetDevice(pinning_device.load()), "cudaSetDevice");
  (void)Check(cudaHostUnregister(begin), "cudaHostUnregister");
}
// Whether the copy engines can use the host memory there as it is.
inline bool IsPinned(const void* memory) {
  cudaPointerAttributes attributes{};
  const absl::Status known = Check(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  return known.ok() && attributes.type == cudaMemoryTypeHost;
}

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  absl::Status Open() {
    return Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  absl::Status Open() {
    return Check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace recon::cuda
