#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace recon::cuda {

// Kernels of the MLP. All pointers are device memory, matrices row-major; launched on `stream`. The
// caller checks cudaGetLastError().

// output[i][j] = bias[j]; the matrix product is added to it afterwards.
void BroadcastBias(const float* bias, int samples, int units, float* output, cudaStream_t stream);
void Relu(float* values, int count, cudaStream_t stream);
// delta[k] = 0 where output[k] <= 0.
void ReluBackward(const float* output, int count, float* delta, cudaStream_t stream);
// One block a sample. loss[i] and correct[i] for sample i; delta = (softmax - onehot) / samples unless null.
void SoftmaxCrossEntropy(const float* logits, const uint32_t* labels, int samples, int classes, float* loss,
                         uint32_t* correct, float* delta, cudaStream_t stream);
// sums[j] = sum over i of matrix[i][j], in the order of i.
void ColumnSums(const float* matrix, int samples, int units, float* sums, cudaStream_t stream);

// Row-major C[m][n] = op(A) op(B) + beta C, for builds without cuBLAS.
void Gemm(bool transpose_a, bool transpose_b, int m, int n, int k, const float* a, const float* b, float beta,
          float* c, cudaStream_t stream);

}  // namespace recon::cuda
