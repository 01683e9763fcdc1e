#include <cuda_fp16.h>

#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_scan.cuh>

#include "worker/cuda/encode_kernels.h"

// Compiled without contraction (--fmad=false): the bytes are those of the CPU.

namespace recon::cuda {
namespace {

struct DeviceBlock {
  template <typename F>
  __device__ void ForEach(const F& f) {
    f(threadIdx.x);
    __syncthreads();
  }
  __device__ static uint32_t Add(uint32_t* at, uint32_t value) { return atomicAdd(at, value); }
  __device__ static void Or(uint32_t* at, uint32_t bits) { atomicOr(at, bits); }
  __device__ static float Floor(float value) { return floorf(value); }
  __device__ static uint16_t FloatToHalf(float value) { return __half_as_ushort(__float2half_rn(value)); }
  __device__ static float HalfToFloat(uint16_t half) { return __half2float(__ushort_as_half(half)); }
};

__global__ void __launch_bounds__(kBlockThreads)
    EncodePagesKernel(const PageTask* tasks, PageMemoryTable memory, uint8_t* out, PageResult* results) {
  __shared__ PageShared shared;
  const uint32_t page = blockIdx.x;
  DeviceBlock block;
  PageEncoder<DeviceBlock>(block, shared, tasks[page], memory, out + tasks[page].out).Run(&results[page]);
}

constexpr uint32_t kTileValues = 4096;
constexpr uint32_t kTilesPerPage = kPageValues / kTileValues;
constexpr uint32_t kTileThreads = 256;

// Saturates as the CPU does; counts into the page's figures, which were cleared before.
__device__ uint16_t Narrow(float value, bool bf16, PageResult* result) {
  const uint32_t magnitude = MagnitudeOf(value);
  const uint32_t limit = bf16 ? 0x7F7F8000 : 0x477FF000;
  if (magnitude >= limit) {
    atomicAdd(magnitude >= 0x7F800000 ? &result->non_finite : &result->saturated, 1u);
    return static_cast<uint16_t>((BitsOf(value) >> 16 & 0x8000) | (bf16 ? 0x7F7F : 0x7BFF));
  }
  return bf16 ? Bf16Bits(value) : __half_as_ushort(__float2half_rn(value));
}

__global__ void ClearResultsKernel(const PageTask* tasks, int pages, PageResult* results) {
  const int page = blockIdx.x * blockDim.x + threadIdx.x;
  if (page >= pages) return;
  results[page] = PageResult();
  results[page].body_bytes = 2 * tasks[page].count;
}

__global__ void __launch_bounds__(kTileThreads)
    EncodeTilesKernel(const PageTask* tasks, const float* gradient, uint8_t* out, PageResult* results) {
  const uint32_t page = blockIdx.x / kTilesPerPage;
  const uint32_t begin = blockIdx.x % kTilesPerPage * kTileValues;
  const PageTask& task = tasks[page];
  const bool bf16 = task.rule == PageRule::kBf16;
  const float* values = gradient + task.offset;
  auto* halves = reinterpret_cast<uint16_t*>(out + task.out);
  double squares = 0;
  for (uint32_t i = begin + threadIdx.x * 2; i < begin + kTileValues && i < task.count;
       i += kTileThreads * 2) {
    const bool pair = i + 1 < task.count;
    const float first = values[i];
    const float second = pair ? values[i + 1] : 0;
    squares += static_cast<double>(first) * first + static_cast<double>(second) * second;
    const uint32_t low = Narrow(first, bf16, &results[page]);
    const uint32_t high = pair ? Narrow(second, bf16, &results[page]) : 0;
    *reinterpret_cast<uint32_t*>(halves + i) = low | high
                                                         << 16;  // The output has room behind the last value.
  }
  for (int lane = 16; lane > 0; lane /= 2) squares += __shfl_down_sync(0xFFFFFFFF, squares, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(&results[page].sent_squares, squares);
}

struct BodyBytes {
  __host__ __device__ uint64_t operator()(const PageResult& result) const { return result.body_bytes; }
};

using BodyIterator = thrust::transform_iterator<BodyBytes, const PageResult*>;

// The scan leaves out the total.
__global__ void TotalKernel(const PageResult* results, int pages, uint64_t* starts) {
  starts[pages] = starts[pages - 1] + results[pages - 1].body_bytes;
}

__device__ void Put32(uint8_t* out, uint32_t value) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<uint8_t>(value >> 8 * i);
}

__global__ void PackKernel(const PageTask* tasks, const PackTask* packs, const PageResult* results,
                           const uint64_t* starts, const uint8_t* encoded, uint8_t* packed) {
  const uint32_t page = blockIdx.x;
  const PackTask& pack = packs[page];
  const PageResult& result = results[page];
  uint8_t* head = packed + pack.head_bytes + starts[pack.first_page];
  const uint32_t in_shard = page - pack.first_page;
  if (threadIdx.x == 0 && tasks[page].rule >= PageRule::kTopK) {
    Put32(head + in_shard * kSparsePageHeaderBytes, result.header.coding_and_entries);
    Put32(head + in_shard * kSparsePageHeaderBytes + 4, result.header.index_bytes);
  } else if (threadIdx.x == 0 && tasks[page].rule == PageRule::kInt8) {
    Put32(head + in_shard * sizeof(float), BitsOf(result.scale));
  }
  const uint8_t* from = encoded + tasks[page].out;
  uint8_t* to = packed + pack.head_bytes + pack.own_head_bytes + starts[page];
  if (from == to) return;
  // Bodies of dense pages are aligned, those of sparse ones are small.
  if ((reinterpret_cast<uintptr_t>(to) & 15) == 0) {
    const uint32_t whole = result.body_bytes / 16;
    for (uint32_t i = threadIdx.x; i < whole; i += blockDim.x) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    for (uint32_t i = whole * 16 + threadIdx.x; i < result.body_bytes; i += blockDim.x) to[i] = from[i];
    return;
  }
  for (uint32_t i = threadIdx.x; i < result.body_bytes; i += blockDim.x) to[i] = from[i];
}

}  // namespace

void EncodePages(const PageTask* tasks, int pages, const PageMemoryTable& memory, uint8_t* out,
                 PageResult* results, cudaStream_t stream) {
  EncodePagesKernel<<<pages, kBlockThreads, 0, stream>>>(tasks, memory, out, results);
}

void EncodeTiles(const PageTask* tasks, int pages, const float* gradient, uint8_t* out, PageResult* results,
                 cudaStream_t stream) {
  ClearResultsKernel<<<(pages + 255) / 256, 256, 0, stream>>>(tasks, pages, results);
  EncodeTilesKernel<<<pages * kTilesPerPage, kTileThreads, 0, stream>>>(tasks, gradient, out, results);
}

size_t ScanScratchBytes(int pages) {
  size_t bytes = 0;
  cub::DeviceScan::ExclusiveSum(nullptr, bytes, BodyIterator(nullptr, BodyBytes()),
                                static_cast<uint64_t*>(nullptr), pages);
  return bytes;
}

void ScanBodies(const PageResult* results, int pages, uint64_t* starts, void* scratch, size_t scratch_bytes,
                cudaStream_t stream) {
  cub::DeviceScan::ExclusiveSum(scratch, scratch_bytes, BodyIterator(results, BodyBytes()), starts, pages,
                                stream);
  TotalKernel<<<1, 1, 0, stream>>>(results, pages, starts);
}

void PackPages(const PageTask* tasks, const PackTask* packs, const PageResult* results,
               const uint64_t* starts, int pages, const uint8_t* encoded, uint8_t* packed,
               cudaStream_t stream) {
  PackKernel<<<pages, 512, 0, stream>>>(tasks, packs, results, starts, encoded, packed);
}

}  // namespace recon::cuda
