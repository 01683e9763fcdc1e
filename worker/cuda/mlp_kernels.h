#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace recon::cuda {

// Kernels of the MLP. All pointers are device memory, matrices row-major; launched on `stream`. The
// caller checks cudaGetLastError().

// output[i][j] = bias[j]; the matrix product is added to it afterwards.
void BroadcastBias(const float* bias, int samples, int units, float* output, cudaStream_t stream);
void Relu(float* values, int count, cudaStream_t stream);
// delta[k] = 0 where output[k] <= 0.
void ReluBackward(const float* output, int count, float* delta, cudaStream_t stream);
// One block a sample. loss[i] and correct[i] for sample i; delta = (softmax - onehot) * weight unless null.
void SoftmaxCrossEntropy(const float* logits, const uint32_t* labels, int samples, int classes, float weight,
                         float* loss, uint32_t* correct, float* delta, cudaStream_t stream);
// sums[j] = beta sums[j] + alpha * sum over i of matrix[i][j], in the order of i.
void ColumnSums(const float* matrix, int samples, int units, float alpha, float beta, float* sums,
                cudaStream_t stream);
// Rounds values to FP16, or BF16, in place, and writes them to `half` as 16 bits. *overflow = 1 if some value
// is not finite then; otherwise it stays.
void RoundTo16(bool fp16, size_t count, float* values, uint16_t* half, uint32_t* overflow,
               cudaStream_t stream);

// Row-major C[m][n] = alpha op(A) op(B) + beta C, for builds without cuBLAS.
void Gemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, const float* a,
          const float* b, float beta, float* c, cudaStream_t stream);

}  // namespace recon::cuda
