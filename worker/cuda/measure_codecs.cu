#include <algorithm>
#include <cmath>
#include <string>

#include "worker/cuda/device_memory.h"
#include "worker/cuda/encode_kernels.h"
#include "worker/cuda/measure_codecs.h"

namespace recon::cuda {
namespace {

constexpr int kWarmUpPushes = 20;

// Normally distributed by Box and Muller's method, from the counter hash that the codecs use.
__global__ void FillNormal(float* values, uint64_t count, uint32_t seed) {
  const uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  const float u = (static_cast<float>(HashIndex(seed, static_cast<uint32_t>(i)) >> 8) + 1) * 0x1p-24f;
  const float v = static_cast<float>(HashIndex(seed + 1, static_cast<uint32_t>(i)) >> 8) * 0x1p-24f;
  values[i] = sqrtf(-2 * logf(u)) * cospif(2 * v);
}

double Median(std::vector<float> milliseconds) {
  std::sort(milliseconds.begin(), milliseconds.end());
  return 1e-3 * milliseconds[milliseconds.size() / 2];
}

class Stopwatch {
 public:
  absl::Status Open() {
    RECON_RETURN_IF_ERROR(Check(cudaEventCreate(&start_), "cudaEventCreate"));
    return Check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Stopwatch() {
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }
  template <typename Work>
  absl::StatusOr<float> Milliseconds(cudaStream_t stream, const Work& work) {
    RECON_RETURN_IF_ERROR(Check(cudaEventRecord(start_, stream), "cudaEventRecord"));
    work();
    RECON_RETURN_IF_ERROR(Check(cudaEventRecord(end_, stream), "cudaEventRecord"));
    RECON_RETURN_IF_ERROR(Check(cudaGetLastError(), "kernel"));
    RECON_RETURN_IF_ERROR(Check(cudaEventSynchronize(end_), "measurement"));
    float milliseconds = 0;
    RECON_RETURN_IF_ERROR(Check(cudaEventElapsedTime(&milliseconds, start_, end_), "cudaEventElapsedTime"));
    return milliseconds;
  }

 private:
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// The device's side of one encoder, without streams and copies to the host.
class Subject {
 public:
  absl::Status Open(uint64_t values) {
    values_ = values;
    pages_ = static_cast<int>((values + kPageValues - 1) / kPageValues);
    RECON_RETURN_IF_ERROR(stream_.Open());
    RECON_RETURN_IF_ERROR(watch_.Open());
    RECON_RETURN_IF_ERROR(gradients_[0].Reserve(values));
    RECON_RETURN_IF_ERROR(gradients_[1].Reserve(values));
    RECON_RETURN_IF_ERROR(residual_.ReserveZeroed(values, stream_.get()));
    RECON_RETURN_IF_ERROR(guesses_.ReserveZeroed(pages_, stream_.get()));
    RECON_RETURN_IF_ERROR(results_.Reserve(pages_));
    RECON_RETURN_IF_ERROR(starts_.Reserve(pages_ + 1));
    RECON_RETURN_IF_ERROR(slots_.Reserve(pages_ * kSlotBytes));
    RECON_RETURN_IF_ERROR(packed_.Reserve(pages_ * kSlotBytes));
    RECON_RETURN_IF_ERROR(scratch_.Reserve(ScanScratchBytes(pages_)));
    for (uint32_t i = 0; i < 2; ++i) {
      FillNormal<<<static_cast<uint32_t>((values + 255) / 256), 256, 0, stream_.get()>>>(gradients_[i].get(),
                                                                                         values, 10 * i);
    }
    return Check(cudaStreamSynchronize(stream_.get()), "setting up");
  }

  absl::StatusOr<CodecMeasurement> Measure(const char* codec, PageRule rule, int rounds) {
    RECON_RETURN_IF_ERROR(MakeTasks(rule));
    std::vector<float> times, copies;
    const int warm_up = rule == PageRule::kTopK ? kWarmUpPushes : 1;
    for (int round = -warm_up; round < rounds; ++round) {
      float* gradient = gradients_[round & 1].get();
      RECON_ASSIGN_OR_RETURN(const float time,
                             watch_.Milliseconds(stream_.get(), [&] { Encode(rule, gradient); }));
      RECON_ASSIGN_OR_RETURN(const float copy, watch_.Milliseconds(stream_.get(), [&] {
        cudaMemcpyAsync(packed_.get(), gradient, values_ * sizeof(float), cudaMemcpyDeviceToDevice,
                        stream_.get());
      }));
      if (round < 0) continue;
      times.push_back(time);
      copies.push_back(copy);
    }
    uint64_t total = 2 * values_;
    if (rule == PageRule::kFp16 || rule == PageRule::kBf16) {
      return CodecMeasurement{codec, values_, Median(times), Median(copies), total};
    }
    RECON_RETURN_IF_ERROR(Check(
        ScanBodies(results_.get(), pages_, starts_.get(), scratch_.get(), scratch_.size(), stream_.get()),
        "scan"));
    RECON_RETURN_IF_ERROR(Check(
        cudaMemcpyAsync(&total, starts_.get() + pages_, sizeof(total), cudaMemcpyDeviceToHost, stream_.get()),
        "total"));
    RECON_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream_.get()), "total"));
    return CodecMeasurement{codec, values_, Median(times), Median(copies), total};
  }

 private:
  absl::Status MakeTasks(PageRule rule) {
    const bool keep = rule == PageRule::kTopK;
    std::vector<PageTask> tasks(pages_);
    std::vector<PackTask> packs(pages_);
    for (int page = 0; page < pages_; ++page) {
      PageTask& task = tasks[page];
      task.offset = static_cast<uint64_t>(page) * kPageValues;
      task.out = page * kSlotBytes;
      task.count = static_cast<uint32_t>(std::min<uint64_t>(kPageValues, values_ - task.offset));
      task.number = page;
      task.rule = rule;
      task.keep = task.add_residual = keep;
      task.k = (task.count + 99) / 100;
      packs[page].own_head_bytes = pages_ * kSparsePageHeaderBytes;
    }
    RECON_RETURN_IF_ERROR(tasks_.Upload(tasks.data(), tasks.size(), stream_.get()));
    RECON_RETURN_IF_ERROR(packs_.Upload(packs.data(), packs.size(), stream_.get()));
    return Check(cudaStreamSynchronize(stream_.get()), "tasks");
  }

  void Encode(PageRule rule, float* gradient) {
    if (rule == PageRule::kFp16 || rule == PageRule::kBf16) {
      return EncodeTiles(tasks_.get(), pages_, gradient, packed_.get(), results_.get(), stream_.get());
    }
    PageMemoryTable memory;
    memory.gradient = gradient;
    memory.residual = residual_.get();
    memory.guesses = guesses_.get();
    EncodePages(tasks_.get(), pages_, memory, slots_.get(), results_.get(), stream_.get());
    if (rule != PageRule::kTopK) return;
    (void)ScanBodies(results_.get(), pages_, starts_.get(), scratch_.get(), scratch_.size(), stream_.get());
    PackPages(tasks_.get(), packs_.get(), results_.get(), starts_.get(), pages_, slots_.get(), packed_.get(),
              stream_.get());
  }

  uint64_t values_ = 0;
  int pages_ = 0;
  Stream stream_;
  Stopwatch watch_;
  DeviceBuffer<float> gradients_[2], residual_;
  DeviceBuffer<uint32_t> guesses_;
  DeviceBuffer<PageTask> tasks_;
  DeviceBuffer<PackTask> packs_;
  DeviceBuffer<PageResult> results_;
  DeviceBuffer<uint64_t> starts_;
  DeviceBuffer<uint8_t> scratch_, slots_, packed_;
};

}  // namespace

absl::StatusOr<std::vector<CodecMeasurement>> MeasureCodecs(int device, uint64_t values, int rounds) {
  RECON_RETURN_IF_ERROR(Check(cudaSetDevice(device), "cudaSetDevice"));
  Subject subject;
  RECON_RETURN_IF_ERROR(subject.Open(values));
  std::vector<CodecMeasurement> measurements;
  const std::pair<const char*, PageRule> codecs[] = {{"fp16", PageRule::kFp16},
                                                     {"bf16", PageRule::kBf16},
                                                     {"int8", PageRule::kInt8},
                                                     {"topk:0.01", PageRule::kTopK}};
  for (const auto& [name, rule] : codecs) {
    RECON_ASSIGN_OR_RETURN(const CodecMeasurement measurement, subject.Measure(name, rule, rounds));
    measurements.push_back(measurement);
  }
  return measurements;
}

}  // namespace recon::cuda
