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
  __device__ static void Mark(uint32_t* bitmap, uint32_t i, bool wanted) {
    const uint32_t bits = __ballot_sync(0xFFFFFFFF, wanted);
    if (threadIdx.x % 32 == 0 && bits != 0) bitmap[i / 32] = bits;
  }
  __device__ static float Floor(float value) { return floorf(value); }
  __device__ static uint16_t FloatToHalf(float value) { return __half_as_ushort(__float2half_rn(value)); }
  __device__ static float HalfToFloat(uint16_t half) { return __half2float(__ushort_as_half(half)); }
};

__global__ void __launch_bounds__(kBlockThreads, 2)
    EncodePagesKernel(const PageTask* tasks, PageMemoryTable memory, uint8_t* out, PageResult* results) {
  __shared__ PageShared shared;
  const uint32_t page = blockIdx.x;
  DeviceBlock block;
  PageEncoder<DeviceBlock>(block, shared, tasks[page], memory, out + tasks[page].out).Run(&results[page]);
}

constexpr uint32_t kTileValues = 4096;
constexpr uint32_t kTilesPerPage = kPageValues / kTileValues;
constexpr uint32_t kTileThreads = 256;

constexpr uint32_t kTileLoads = kTileValues / kTileThreads / 4;

// How a tile's values become 16 bits.
struct TileScale {
  bool bf16;
  float down;
  HalfRange range;
};

// Saturates as the CPU does.
__device__ __forceinline__ uint32_t Narrow(float value, const TileScale& scale, OutOfRange* counts) {
  if (IsCut(value, scale.range, counts)) return SignOr(value, scale.bf16 ? 0x7F7F : 0x7BFF);
  return scale.bf16 ? Bf16Bits(value) : __half_as_ushort(__float2half_rn(value * scale.down));
}

// The largest magnitude of each page that will be FP16, to its `results`, which were cleared before.
__global__ void __launch_bounds__(kTileThreads)
    LargestKernel(const PageTask* tasks, const float* gradient, PageResult* results) {
  const uint32_t page = blockIdx.x / kTilesPerPage;
  const uint32_t begin = blockIdx.x % kTilesPerPage * kTileValues;
  const PageTask task = tasks[page];
  if (begin >= task.count || task.rule != PageRule::kFp16) return;
  const float* __restrict__ values = gradient + task.offset + begin;
  const uint32_t count = min(kTileValues, task.count - begin);
  uint32_t largest = 0;
  for (uint32_t i = threadIdx.x; i < count; i += kTileThreads)
    largest = max(largest, MagnitudeBits(values[i]));
  for (int lane = 16; lane > 0; lane /= 2) {
    largest = max(largest, __shfl_down_sync(0xFFFFFFFF, largest, lane));
  }
  if (threadIdx.x % 32 == 0) atomicMax(&results[page].largest, largest);
}

// `results` were cleared before, but for the largest magnitudes.
__global__ void __launch_bounds__(kTileThreads)
    EncodeTilesKernel(const PageTask* tasks, const float* gradient, uint8_t* out, PageResult* results) {
  const uint32_t page = blockIdx.x / kTilesPerPage;
  const uint32_t begin = blockIdx.x % kTilesPerPage * kTileValues;
  const PageTask task = tasks[page];
  if (begin >= task.count) return;
  const bool bf16 = task.rule == PageRule::kBf16;
  const HalfScale half(bf16 ? 0 : ExponentFor(results[page].largest));
  const TileScale scale = {bf16, half.down, bf16 ? Bf16Range() : half.range};
  if (begin == 0 && threadIdx.x == 0) results[page].exponent = half.exponent;
  const float* __restrict__ values = gradient + task.offset + begin;
  auto* __restrict__ halves = reinterpret_cast<uint16_t*>(out + task.out) + begin;
  const uint32_t count = min(kTileValues, task.count - begin);
  OutOfRange counts;
  float squares = 0;
  if (count == kTileValues && (reinterpret_cast<uintptr_t>(values) & 15) == 0) {
    float4 loads[kTileLoads];
#pragma unroll
    for (uint32_t j = 0; j < kTileLoads; ++j) {
      loads[j] = reinterpret_cast<const float4*>(values)[j * kTileThreads + threadIdx.x];
    }
#pragma unroll
    for (uint32_t j = 0; j < kTileLoads; ++j) {
      const float4 v = loads[j];
      uint2 both;
      both.x = Narrow(v.x, scale, &counts) | Narrow(v.y, scale, &counts) << 16;
      both.y = Narrow(v.z, scale, &counts) | Narrow(v.w, scale, &counts) << 16;
      reinterpret_cast<uint2*>(halves)[j * kTileThreads + threadIdx.x] = both;
      squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
  } else {
    for (uint32_t i = threadIdx.x; i < count; i += kTileThreads) {
      halves[i] = static_cast<uint16_t>(Narrow(values[i], scale, &counts));
      squares += values[i] * values[i];
    }
  }
  OutOfRange* const all = &results[page].out_of_range;
  if (counts.saturated > 0) atomicAdd(&all->saturated, counts.saturated);
  if (counts.underflown > 0) atomicAdd(&all->underflown, counts.underflown);
  if (counts.non_finite > 0) atomicAdd(&all->non_finite, counts.non_finite);
  for (int lane = 16; lane > 0; lane /= 2) squares += __shfl_down_sync(0xFFFFFFFF, squares, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(&results[page].sent_squares, static_cast<double>(squares));
}

// Sums of squares, one a block.
__global__ void SquaresKernel(const float* values, uint64_t count, double* sums) {
  __shared__ double partial[kTileThreads];
  double sum = 0;
  for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
    sum += static_cast<double>(values[i]) * values[i];
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (uint32_t half = kTileThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

__global__ void ScaleKernel(float* values, uint64_t count, float scale) {
  const uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
  if (i < count) values[i] *= scale;
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
  // A sparse body may begin anywhere, but is small.
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
  cudaMemsetAsync(results, 0, pages * sizeof(PageResult), stream);
  LargestKernel<<<pages * kTilesPerPage, kTileThreads, 0, stream>>>(tasks, gradient, results);
  EncodeTilesKernel<<<pages * kTilesPerPage, kTileThreads, 0, stream>>>(tasks, gradient, out, results);
}

size_t ScanScratchBytes(int pages) {
  size_t bytes = 0;
  cub::DeviceScan::ExclusiveSum(nullptr, bytes, BodyIterator(nullptr, BodyBytes()),
                                static_cast<uint64_t*>(nullptr), pages);
  return bytes;
}

cudaError_t ScanBodies(const PageResult* results, int pages, uint64_t* starts, void* scratch,
                       size_t scratch_bytes, cudaStream_t stream) {
  const cudaError_t error = cub::DeviceScan::ExclusiveSum(
      scratch, scratch_bytes, BodyIterator(results, BodyBytes()), starts, pages, stream);
  if (error != cudaSuccess) return error;
  TotalKernel<<<1, 1, 0, stream>>>(results, pages, starts);
  return cudaGetLastError();
}

void SumSquares(const float* values, uint64_t count, double* sums, cudaStream_t stream) {
  SquaresKernel<<<kSquaresSums, kTileThreads, 0, stream>>>(values, count, sums);
}

void Scale(float* values, uint64_t count, float scale, cudaStream_t stream) {
  ScaleKernel<<<static_cast<uint32_t>((count + 255) / 256), 256, 0, stream>>>(values, count, scale);
}

void PackPages(const PageTask* tasks, const PackTask* packs, const PageResult* results,
               const uint64_t* starts, int pages, const uint8_t* encoded, uint8_t* packed,
               cudaStream_t stream) {
  PackKernel<<<pages, 512, 0, stream>>>(tasks, packs, results, starts, encoded, packed);
}

}  // namespace recon::cuda
