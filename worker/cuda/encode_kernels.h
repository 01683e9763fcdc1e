#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "worker/cuda/page_encoder.h"

namespace recon::cuda {

// Launches on `stream`; all pointers are device memory. The caller checks cudaGetLastError().

// Room for one page's encoded bytes, whatever its rule.
inline constexpr size_t kSlotBytes = size_t{kPageValues} * sizeof(float);

// Encodes `pages` pages, one block each: page i of `tasks` to `out` + tasks[i].out, its figures into
// results[i].
void EncodePages(const PageTask* tasks, int pages, const PageMemoryTable& memory, uint8_t* out,
                 PageResult* results, cudaStream_t stream);

// Encodes all pages to FP16 or BF16 without residual, by tiles: nothing but the conversion.
void EncodeTiles(const PageTask* tasks, int pages, const float* gradient, uint8_t* out, PageResult* results,
                 cudaStream_t stream);

// Where each page's parts go in the packed payloads of a run of pages.
struct PackTask {
  uint32_t first_page = 0;      // Of the page's shard, in the run.
  uint32_t head_bytes = 0;      // Headers or scales of all shards of the run before this one.
  uint32_t own_head_bytes = 0;  // Those of its own shard.
};

// starts[i] = sum of the body bytes of the pages before page i; starts[pages] is the sum of all. `scratch`
// has ScanScratchBytes(pages) bytes.
size_t ScanScratchBytes(int pages);
cudaError_t ScanBodies(const PageResult* results, int pages, uint64_t* starts, void* scratch,
                       size_t scratch_bytes, cudaStream_t stream);

// Puts heads and bodies to `packed`, shard after shard: head of the shard, then its bodies. A body that was
// encoded to where it belongs stays there (`encoded` is `packed` then).
void PackPages(const PageTask* tasks, const PackTask* packs, const PageResult* results,
               const uint64_t* starts, int pages, const uint8_t* encoded, uint8_t* packed,
               cudaStream_t stream);

// kSquaresSums partial sums of the squares of `count` values.
inline constexpr int kSquaresSums = 1024;
void SumSquares(const float* values, uint64_t count, double* sums, cudaStream_t stream);
void Scale(float* values, uint64_t count, float scale, cudaStream_t stream);

}  // namespace recon::cuda
