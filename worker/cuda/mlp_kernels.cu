#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cfloat>

#include "worker/cuda/mlp_kernels.h"

namespace recon::cuda {
namespace {

constexpr int kThreads = 256;

int Blocks(int count) { return (count + kThreads - 1) / kThreads; }

__global__ void BroadcastBiasKernel(const float* bias, int count, int units, float* output) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < count) output[k] = bias[k % units];
}

__global__ void ReluKernel(float* values, int count) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < count) values[k] = fmaxf(values[k], 0.0f);
}

__global__ void ReluBackwardKernel(const float* output, int count, float* delta) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < count && output[k] <= 0.0f) delta[k] = 0.0f;
}

// The larger logit; the lower index on a tie.
__device__ void TakeLarger(float value, int index, float* best, int* best_index) {
  if (value > *best || (value == *best && index < *best_index)) {
    *best = value;
    *best_index = index;
  }
}

__global__ void SoftmaxKernel(const float* logits, const uint32_t* labels, int classes, float weight,
                              float* loss, uint32_t* correct, float* delta) {
  __shared__ float values[kThreads];
  __shared__ int indices[kThreads];
  const int sample = blockIdx.x;
  const float* row = logits + static_cast<size_t>(sample) * classes;
  float best = -FLT_MAX;
  int best_index = classes;
  for (int j = threadIdx.x; j < classes; j += kThreads) TakeLarger(row[j], j, &best, &best_index);
  values[threadIdx.x] = best;
  indices[threadIdx.x] = best_index;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      TakeLarger(values[threadIdx.x + half], indices[threadIdx.x + half], &values[threadIdx.x],
                 &indices[threadIdx.x]);
    }
    __syncthreads();
  }
  best = values[0];
  best_index = indices[0];
  __syncthreads();
  float sum = 0.0f;
  for (int j = threadIdx.x; j < classes; j += kThreads) sum += expf(row[j] - best);
  values[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
    __syncthreads();
  }
  sum = values[0];
  const uint32_t label = labels[sample];
  if (threadIdx.x == 0) {
    loss[sample] = logf(sum) - (row[label] - best);
    correct[sample] = best_index == static_cast<int>(label) ? 1 : 0;
  }
  if (delta == nullptr) return;
  for (int j = threadIdx.x; j < classes; j += kThreads) {
    const float probability = expf(row[j] - best) / sum;
    delta[static_cast<size_t>(sample) * classes + j] =
        (probability - (j == static_cast<int>(label) ? 1.0f : 0.0f)) * weight;
  }
}

__global__ void ColumnSumsKernel(const float* matrix, int samples, int units, float alpha, float beta,
                                 float* sums) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= units) return;
  float sum = 0.0f;
  for (int i = 0; i < samples; ++i) sum += matrix[static_cast<size_t>(i) * units + j];
  sums[j] = alpha * sum + (beta == 0.0f ? 0.0f : beta * sums[j]);
}

__global__ void RoundTo16Kernel(bool fp16, size_t count, float* values, uint16_t* half, uint32_t* overflow) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t k = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; k < count; k += stride) {
    float rounded;
    if (fp16) {
      const __half bits = __float2half_rn(values[k]);
      half[k] = __half_as_ushort(bits);
      rounded = __half2float(bits);
    } else {
      const __nv_bfloat16 bits = __float2bfloat16_rn(values[k]);
      half[k] = __bfloat16_as_ushort(bits);
      rounded = __bfloat162float(bits);
    }
    values[k] = rounded;
    if (!isfinite(rounded)) *overflow = 1;  // All that write it write the same.
  }
}

// One block a tile of C, one thread a value; tiles of A and B go through shared memory.
constexpr int kTile = 16;

__global__ void GemmKernel(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha,
                           const float* a, const float* b, float beta, float* c) {
  __shared__ float tile_a[kTile][kTile + 1];
  __shared__ float tile_b[kTile][kTile + 1];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0.0f;
  for (int from = 0; from < k; from += kTile) {
    const int ka = from + threadIdx.x;
    const int kb = from + threadIdx.y;
    const size_t at_a = transpose_a ? static_cast<size_t>(ka) * m + row : static_cast<size_t>(row) * k + ka;
    const size_t at_b =
        transpose_b ? static_cast<size_t>(column) * k + kb : static_cast<size_t>(kb) * n + column;
    tile_a[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[at_a] : 0.0f;
    tile_b[threadIdx.y][threadIdx.x] = column < n && kb < k ? b[at_b] : 0.0f;
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  if (row >= m || column >= n) return;
  float* out = c + static_cast<size_t>(row) * n + column;
  *out = alpha * sum + (beta == 0.0f ? 0.0f : beta * *out);
}

}  // namespace

void BroadcastBias(const float* bias, int samples, int units, float* output, cudaStream_t stream) {
  BroadcastBiasKernel<<<Blocks(samples * units), kThreads, 0, stream>>>(bias, samples * units, units, output);
}

void Relu(float* values, int count, cudaStream_t stream) {
  ReluKernel<<<Blocks(count), kThreads, 0, stream>>>(values, count);
}

void ReluBackward(const float* output, int count, float* delta, cudaStream_t stream) {
  ReluBackwardKernel<<<Blocks(count), kThreads, 0, stream>>>(output, count, delta);
}

void SoftmaxCrossEntropy(const float* logits, const uint32_t* labels, int samples, int classes, float weight,
                         float* loss, uint32_t* correct, float* delta, cudaStream_t stream) {
  SoftmaxKernel<<<samples, kThreads, 0, stream>>>(logits, labels, classes, weight, loss, correct, delta);
}

void ColumnSums(const float* matrix, int samples, int units, float alpha, float beta, float* sums,
                cudaStream_t stream) {
  ColumnSumsKernel<<<Blocks(units), kThreads, 0, stream>>>(matrix, samples, units, alpha, beta, sums);
}

void RoundTo16(bool fp16, size_t count, float* values, uint16_t* half, uint32_t* overflow,
               cudaStream_t stream) {
  constexpr size_t kBlocksMax = 4096;
  const size_t blocks = std::min(kBlocksMax, (count + kThreads - 1) / kThreads);
  RoundTo16Kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(fp16, count, values, half,
                                                                          overflow);
}

void Gemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, const float* a,
          const float* b, float beta, float* c, cudaStream_t stream) {
  const dim3 blocks((n + kTile - 1) / kTile, (m + kTile - 1) / kTile);
  GemmKernel<<<blocks, dim3(kTile, kTile), 0, stream>>>(transpose_a, transpose_b, m, n, k, alpha, a, b, beta,
                                                        c);
}

}  // namespace recon::cuda
