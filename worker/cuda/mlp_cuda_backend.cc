#include <cuda_runtime_api.h>
#if RECON_CUBLAS
#include <cublas_v2.h>
#endif

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/cuda/cuda_encoder.h"
#include "worker/cuda/cuda_module.h"
#include "worker/cuda/device_memory.h"
#include "worker/cuda/measure_codecs.h"
#include "worker/cuda/mlp_kernels.h"

namespace recon {
namespace {

using cuda::Check;
using cuda::DeviceBuffer;

#if RECON_CUBLAS
absl::Status Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  if (status == CUBLAS_STATUS_ALLOC_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cuBLAS: ", what, ": ", cublasGetStatusString(status)));
  }
  return absl::UnavailableError(absl::StrCat("cuBLAS: ", what, ": ", cublasGetStatusString(status)));
}

#endif

// The MLP on a CUDA device: matrix products by cuBLAS (or, in builds without it, a plain kernel), the rest by
// our kernels. Parameters are uploaded when their revision changes; gradients stay on the device, where the
// encoder takes them. Unavailable if the device fails.
//
// In FP16 or BF16 the products are of 16-bit values, and sums of FP32; what is between two products is
// rounded, and kept in both forms.
class MlpCudaBackend : public ModelBackend {
 public:
  MlpCudaBackend(MlpModel model, int device, Precision precision)
      : model_(std::move(model)), device_(device), precision_(precision), outputs_(model_.layers()) {}
  ~MlpCudaBackend() override {
#if RECON_CUBLAS
    if (cublas_ != nullptr) cublasDestroy(cublas_);
#endif
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Open() {
    RECON_RETURN_IF_ERROR(Check(cudaSetDevice(device_), "cudaSetDevice"));
    RECON_RETURN_IF_ERROR(Check(cudaStreamCreate(&stream_), "cudaStreamCreate"));
#if RECON_CUBLAS
    RECON_RETURN_IF_ERROR(Check(cublasCreate(&cublas_), "cublasCreate"));
    RECON_RETURN_IF_ERROR(Check(cublasSetStream(cublas_, stream_), "cublasSetStream"));
#endif
    return absl::OkStatus();
  }

  const ModelSpec& spec() const override { return model_.spec; }
  std::string device() const override { return absl::StrCat("cuda:", device_); }
  bool simulated() const override { return false; }
  void InitialValues(uint64_t seed, absl::Span<float> values) const override {
    InitMlp(*layout_, seed, values);
  }

  absl::Status Load(absl::Span<const float> values, GradientBuffer* gradient) override {
    RECON_RETURN_IF_ERROR(Check(cudaSetDevice(device_), "cudaSetDevice"));
    auto* device = static_cast<cuda::DeviceGradient*>(gradient);
    RECON_RETURN_IF_ERROR(device->values.Upload(values.data(), values.size(), stream_));
    RECON_RETURN_IF_ERROR(Check(cudaEventRecord(device->ready.get(), stream_), "cudaEventRecord"));
    // The caller's memory is its own again.
    return Check(cudaStreamSynchronize(stream_), "upload of what is to be pushed");
  }

  absl::Status ZeroGradient(GradientBuffer* gradient) override {
    RECON_RETURN_IF_ERROR(Check(cudaSetDevice(device_), "cudaSetDevice"));
    auto* device = static_cast<cuda::DeviceGradient*>(gradient);
    RECON_RETURN_IF_ERROR(device->values.ReserveZeroed(layout_->params(), stream_));
    return Check(cudaEventRecord(device->ready.get(), stream_), "cudaEventRecord");
  }

  absl::StatusOr<std::unique_ptr<GradientBuffer>> NewGradientBuffer() override {
    RECON_ASSIGN_OR_RETURN(std::unique_ptr<cuda::DeviceGradient> gradient,
                           cuda::MakeDeviceGradient(*layout_, device_));
    return std::unique_ptr<GradientBuffer>(std::move(gradient));
  }

  absl::StatusOr<std::unique_ptr<GradientEncoder>> NewEncoder(const EncoderOptions& options) override {
    return cuda::MakeCudaEncoder(options, layout_, device_);
  }

  absl::StatusOr<BatchResult> Evaluate(const Batch& batch, const ParameterView& parameters) override {
    RECON_RETURN_IF_ERROR(Forward(batch, parameters, /*rounded=*/false));
    return Loss(batch, 0, nullptr);
  }

  void FreeScratch() override {
    if (!Check(cudaSetDevice(device_), "cudaSetDevice").ok()) return;
    for (Values* values : {&features_, &delta_, &previous_delta_}) values->Release();
    for (Values& values : outputs_) values.Release();
  }

 private:
  // Values in FP32, and the same in 16 bits where they are computed with so.
  struct Values {
    DeviceBuffer<float> full;
    DeviceBuffer<uint16_t> half;

    void Release() {
      full.Release();
      half.Release();
    }
  };
  // Some of them, as products take them.
  struct Operand {
    const float* full = nullptr;
    const uint16_t* half = nullptr;  // Null: FP32.
  };
  // Words of overflow_.
  enum : size_t { kOfBatch, kOfParameters, kOverflowWords };

  absl::StatusOr<BatchResult> ComputeGradient(const Batch& batch, const ParameterView& parameters,
                                              const GradientTerms& terms,
                                              absl::Span<float> gradient) override {
    RECON_RETURN_IF_ERROR(host_gradient_.Reserve(gradient.size()));
    RECON_ASSIGN_OR_RETURN(const BatchResult result, Compute(batch, parameters, terms, host_gradient_.get()));
    RECON_RETURN_IF_ERROR(
        Check(cudaMemcpyAsync(gradient.data(), host_gradient_.get(), gradient.size() * sizeof(float),
                              cudaMemcpyDeviceToHost, stream_),
              "download of the gradient"));
    RECON_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream_), "gradient"));
    return result;
  }

  absl::StatusOr<BatchResult> ComputeGradientInto(const Batch& batch, const ParameterView& parameters,
                                                  const GradientTerms& terms,
                                                  GradientBuffer* gradient) override {
    auto* device = static_cast<cuda::DeviceGradient*>(gradient);
    RECON_ASSIGN_OR_RETURN(const BatchResult result, Compute(batch, parameters, terms, device->values.get()));
    RECON_RETURN_IF_ERROR(Check(cudaEventRecord(device->ready.get(), stream_), "cudaEventRecord"));
    return result;
  }

  bool rounds() const { return precision_ != Precision::kFp32; }

  // The gradient goes to `gradient` on the device; its kernels may still run on stream_.
  absl::StatusOr<BatchResult> Compute(const Batch& batch, const ParameterView& parameters,
                                      const GradientTerms& terms, float* gradient) {
    RECON_RETURN_IF_ERROR(Forward(batch, parameters, rounds()));
    RECON_RETURN_IF_ERROR(delta_.full.Reserve(batch.samples * model_.sizes.back()));
    RECON_ASSIGN_OR_RETURN(BatchResult result,
                           Loss(batch, terms.LossWeight(batch.samples), delta_.full.get()));
    RECON_RETURN_IF_ERROR(Backward(batch, terms, gradient));
    if (!rounds()) return result;
    uint32_t overflow[kOverflowWords] = {};
    RECON_RETURN_IF_ERROR(
        Check(cudaMemcpyAsync(overflow, overflow_.get(), sizeof(overflow), cudaMemcpyDeviceToHost, stream_),
              "download of what does not fit"));
    RECON_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream_), "gradient"));
    result.overflow = overflow[kOfBatch] != 0 || overflow[kOfParameters] != 0;
    return result;
  }

  // In place, and into the 16-bit form.
  absl::Status Round(size_t count, size_t overflow_word, Values* values) {
    RECON_RETURN_IF_ERROR(values->half.Reserve(count));
    cuda::RoundTo16(precision_ == Precision::kFp16, count, values->full.get(), values->half.get(),
                    overflow_.get() + overflow_word, stream_);
    return absl::OkStatus();
  }
  absl::Status Zero(size_t overflow_word) {
    RECON_RETURN_IF_ERROR(overflow_.Reserve(kOverflowWords));
    return Check(cudaMemsetAsync(overflow_.get() + overflow_word, 0, sizeof(uint32_t), stream_),
                 "cudaMemsetAsync");
  }

  static Operand Of(Values* values, bool rounded, size_t offset = 0) {
    return {values->full.get() + offset, rounded ? values->half.get() + offset : nullptr};
  }
  Operand Parameter(size_t tensor, bool rounded) {
    const size_t offset = layout_->tensors()[tensor].offset;
    return rounded ? Of(&rounded_, true, offset) : Operand{parameters_.get() + offset};
  }

  // Row-major C[m][n] = alpha op(A) op(B) + beta C. cuBLAS is column-major: the same product, operands
  // swapped.
  absl::Status Gemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, Operand a,
                    Operand b, float beta, float* c) {
#if RECON_CUBLAS
    const cublasOperation_t op_a = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int row_a = transpose_a ? m : k;
    const int row_b = transpose_b ? k : n;
    if (a.half == nullptr) {
      return Check(
          cublasSgemm(cublas_, op_b, op_a, n, m, k, &alpha, b.full, row_b, a.full, row_a, &beta, c, n),
          "cublasSgemm");
    }
    const cudaDataType_t type = precision_ == Precision::kFp16 ? CUDA_R_16F : CUDA_R_16BF;
    return Check(cublasGemmEx(cublas_, op_b, op_a, n, m, k, &alpha, b.half, type, row_b, a.half, type, row_a,
                              &beta, c, CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 "cublasGemmEx");
#else
    cuda::Gemm(transpose_a, transpose_b, m, n, k, alpha, a.full, b.full, beta, c, stream_);
    return absl::OkStatus();
#endif
  }

  absl::Status UploadParameters(const ParameterView& parameters) {
    if (parameters.revision == uploaded_revision_) return absl::OkStatus();
    const size_t count = parameters.values.size();
    RECON_RETURN_IF_ERROR(parameters_.Upload(parameters.values.data(), count, stream_));
    if (rounds()) {
      RECON_RETURN_IF_ERROR(rounded_.full.Reserve(count));
      RECON_RETURN_IF_ERROR(Check(cudaMemcpyAsync(rounded_.full.get(), parameters_.get(),
                                                  count * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
                                  "copy of the parameters"));
      RECON_RETURN_IF_ERROR(Zero(kOfParameters));
      RECON_RETURN_IF_ERROR(Round(count, kOfParameters, &rounded_));
    }
    uploaded_revision_ = parameters.revision;
    return absl::OkStatus();
  }

  absl::Status Forward(const Batch& batch, const ParameterView& parameters, bool rounded) {
    RECON_RETURN_IF_ERROR(Check(cudaSetDevice(device_), "cudaSetDevice"));  // Of the calling thread.
    RECON_RETURN_IF_ERROR(UploadParameters(parameters));
    RECON_RETURN_IF_ERROR(features_.full.Upload(batch.features.data(), batch.features.size(), stream_));
    RECON_RETURN_IF_ERROR(labels_.Upload(batch.labels.data(), batch.labels.size(), stream_));
    if (rounded) {
      RECON_RETURN_IF_ERROR(Zero(kOfBatch));
      RECON_RETURN_IF_ERROR(Round(batch.features.size(), kOfBatch, &features_));
    }
    const auto samples = static_cast<int>(batch.samples);
    Values* input = &features_;
    for (size_t layer = 0; layer < model_.layers(); ++layer) {
      const auto in = static_cast<int>(model_.sizes[layer]);
      const auto out = static_cast<int>(model_.sizes[layer + 1]);
      Values* output = &outputs_[layer];
      const size_t count = batch.samples * model_.sizes[layer + 1];
      RECON_RETURN_IF_ERROR(output->full.Reserve(count));
      cuda::BroadcastBias(Parameter(2 * layer + 1, rounded).full, samples, out, output->full.get(), stream_);
      RECON_RETURN_IF_ERROR(Gemm(false, true, samples, out, in, 1.0f, Of(input, rounded),
                                 Parameter(2 * layer, rounded), 1.0f, output->full.get()));
      if (layer + 1 < model_.layers()) cuda::Relu(output->full.get(), samples * out, stream_);
      if (rounded) RECON_RETURN_IF_ERROR(Round(count, kOfBatch, output));
      input = output;
    }
    return Check(cudaGetLastError(), "forward kernels");
  }

  absl::StatusOr<BatchResult> Loss(const Batch& batch, float weight, float* delta) {
    RECON_RETURN_IF_ERROR(losses_.Reserve(batch.samples));
    RECON_RETURN_IF_ERROR(hits_.Reserve(batch.samples));
    cuda::SoftmaxCrossEntropy(outputs_.back().full.get(), labels_.get(), static_cast<int>(batch.samples),
                              static_cast<int>(model_.sizes.back()), weight, losses_.get(), hits_.get(),
                              delta, stream_);
    RECON_RETURN_IF_ERROR(Check(cudaGetLastError(), "loss kernel"));
    std::vector<float> losses(batch.samples);
    std::vector<uint32_t> hits(batch.samples);
    RECON_RETURN_IF_ERROR(Check(cudaMemcpyAsync(losses.data(), losses_.get(), losses.size() * sizeof(float),
                                                cudaMemcpyDeviceToHost, stream_),
                                "download of the losses"));
    RECON_RETURN_IF_ERROR(Check(cudaMemcpyAsync(hits.data(), hits_.get(), hits.size() * sizeof(uint32_t),
                                                cudaMemcpyDeviceToHost, stream_),
                                "download of the hits"));
    RECON_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream_), "loss"));
    BatchResult result;
    result.samples = batch.samples;
    for (size_t i = 0; i < batch.samples; ++i) {
      result.loss_sum += losses[i];
      result.correct += hits[i];
    }
    return result;
  }

  absl::Status Backward(const Batch& batch, const GradientTerms& terms, float* gradient) {
    const auto samples = static_cast<int>(batch.samples);
    const float unscale = 1.0f / terms.loss_scale;
    const float beta = terms.add ? 1.0f : 0.0f;
    const bool rounded = rounds();
    Values* delta = &delta_;
    Values* previous = &previous_delta_;
    if (rounded) RECON_RETURN_IF_ERROR(Round(batch.samples * model_.sizes.back(), kOfBatch, delta));
    for (size_t layer = model_.layers(); layer-- > 0;) {
      const auto in = static_cast<int>(model_.sizes[layer]);
      const auto out = static_cast<int>(model_.sizes[layer + 1]);
      Values* input = layer == 0 ? &features_ : &outputs_[layer - 1];
      float* weight_gradient = gradient + layout_->tensors()[2 * layer].offset;
      float* bias_gradient = gradient + layout_->tensors()[2 * layer + 1].offset;
      RECON_RETURN_IF_ERROR(Gemm(true, false, out, in, samples, unscale, Of(delta, rounded),
                                 Of(input, rounded), beta, weight_gradient));
      cuda::ColumnSums(delta->full.get(), samples, out, unscale, beta, bias_gradient, stream_);
      if (layer == 0) break;
      const size_t count = batch.samples * model_.sizes[layer];
      RECON_RETURN_IF_ERROR(previous->full.Reserve(count));
      RECON_RETURN_IF_ERROR(Gemm(false, false, samples, in, out, 1.0f, Of(delta, rounded),
                                 Parameter(2 * layer, rounded), 0.0f, previous->full.get()));
      cuda::ReluBackward(input->full.get(), samples * in, previous->full.get(), stream_);
      if (rounded) RECON_RETURN_IF_ERROR(Round(count, kOfBatch, previous));
      std::swap(delta, previous);
    }
    return Check(cudaGetLastError(), "backward kernels");
  }

  MlpModel model_;
  int device_;
  const Precision precision_;
  uint64_t uploaded_revision_ = ~uint64_t{0};
  cudaStream_t stream_ = nullptr;
#if RECON_CUBLAS
  cublasHandle_t cublas_ = nullptr;
#endif
  DeviceBuffer<float> parameters_, host_gradient_, losses_;
  Values rounded_;  // The parameters.
  Values features_, delta_, previous_delta_;
  DeviceBuffer<uint32_t> labels_, hits_, overflow_;
  std::vector<Values> outputs_;
};

absl::StatusOr<int> DeviceCount() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return devices;
  int driver = 0;
  (void)cudaDriverGetVersion(&driver);
  return absl::UnavailableError(
      absl::StrCat("no CUDA device: ", error == cudaSuccess ? "none found" : cudaGetErrorString(error),
                   "; the driver is for CUDA ", driver / 1000, ".", driver % 1000 / 10,
                   ", recon was built with ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10));
}

absl::StatusOr<std::unique_ptr<ModelBackend>> MakeMlp(MlpModel model, int device, Precision precision) {
  cuda::pinning_device.store(device);
  auto backend = std::make_unique<MlpCudaBackend>(std::move(model), device, precision);
  RECON_RETURN_IF_ERROR(backend->Open());
  return std::unique_ptr<ModelBackend>(std::move(backend));
}

}  // namespace
}  // namespace recon

extern "C" {
extern const recon::CudaModule recon_cuda_module;
const recon::CudaModule recon_cuda_module = {&recon::DeviceCount,
                                             &recon::MakeMlp,
                                             {&recon::cuda::PinHostMemory, &recon::cuda::UnpinHostMemory},
                                             &recon::cuda::MeasureCodecs};
}
