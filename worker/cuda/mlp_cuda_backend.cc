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
  return absl::UnavailableError(absl::StrCat("cuBLAS: ", what, ": ", cublasGetStatusString(status)));
}

#endif

// The MLP on a CUDA device: matrix products by cuBLAS (or, in builds without it, a plain kernel), the rest by
// our kernels. Parameters are uploaded when their revision changes; gradients stay on the device, where the
// encoder takes them. Unavailable if the device fails.
class MlpCudaBackend : public ModelBackend {
 public:
  MlpCudaBackend(MlpModel model, int device)
      : model_(std::move(model)), device_(device), outputs_(model_.layers()) {}
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

  absl::StatusOr<BatchResult> Gradient(const Batch& batch, const ParameterView& parameters,
                                       absl::Span<float> gradient) override {
    RECON_RETURN_IF_ERROR(host_gradient_.Reserve(gradient.size()));
    RECON_ASSIGN_OR_RETURN(const BatchResult result, Compute(batch, parameters, host_gradient_.get()));
    RECON_RETURN_IF_ERROR(
        Check(cudaMemcpyAsync(gradient.data(), host_gradient_.get(), gradient.size() * sizeof(float),
                              cudaMemcpyDeviceToHost, stream_),
              "download of the gradient"));
    RECON_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream_), "gradient"));
    return result;
  }

  absl::StatusOr<BatchResult> GradientInto(const Batch& batch, const ParameterView& parameters,
                                           GradientBuffer* gradient) override {
    auto* device = static_cast<cuda::DeviceGradient*>(gradient);
    RECON_ASSIGN_OR_RETURN(const BatchResult result, Compute(batch, parameters, device->values.get()));
    RECON_RETURN_IF_ERROR(Check(cudaEventRecord(device->ready.get(), stream_), "cudaEventRecord"));
    return result;
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
    RECON_RETURN_IF_ERROR(Forward(batch, parameters));
    return Loss(batch, nullptr);
  }

 private:
  // The gradient goes to `gradient` on the device; its kernels may still run on stream_.
  absl::StatusOr<BatchResult> Compute(const Batch& batch, const ParameterView& parameters, float* gradient) {
    RECON_RETURN_IF_ERROR(Forward(batch, parameters));
    RECON_RETURN_IF_ERROR(delta_.Reserve(batch.samples * model_.sizes.back()));
    RECON_ASSIGN_OR_RETURN(const BatchResult result, Loss(batch, delta_.get()));
    RECON_RETURN_IF_ERROR(Backward(batch, gradient));
    return result;
  }

  const float* Parameter(size_t tensor) { return parameters_.get() + layout_->tensors()[tensor].offset; }

  // Row-major C[m][n] = op(A) op(B) + beta C. cuBLAS is column-major: the same product, operands swapped.
  absl::Status Gemm(bool transpose_a, bool transpose_b, int m, int n, int k, const float* a, const float* b,
                    float beta, float* c) {
#if RECON_CUBLAS
    const float one = 1.0f;
    return Check(
        cublasSgemm(cublas_, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                    n, m, k, &one, b, transpose_b ? k : n, a, transpose_a ? m : k, &beta, c, n),
        "cublasSgemm");
#else
    cuda::Gemm(transpose_a, transpose_b, m, n, k, a, b, beta, c, stream_);
    return absl::OkStatus();
#endif
  }

  absl::Status Forward(const Batch& batch, const ParameterView& parameters) {
    RECON_RETURN_IF_ERROR(Check(cudaSetDevice(device_), "cudaSetDevice"));  // Of the calling thread.
    if (parameters.revision != uploaded_revision_) {
      RECON_RETURN_IF_ERROR(parameters_.Upload(parameters.values.data(), parameters.values.size(), stream_));
      uploaded_revision_ = parameters.revision;
    }
    RECON_RETURN_IF_ERROR(features_.Upload(batch.features.data(), batch.features.size(), stream_));
    RECON_RETURN_IF_ERROR(labels_.Upload(batch.labels.data(), batch.labels.size(), stream_));
    const auto samples = static_cast<int>(batch.samples);
    const float* input = features_.get();
    for (size_t layer = 0; layer < model_.layers(); ++layer) {
      const auto in = static_cast<int>(model_.sizes[layer]);
      const auto out = static_cast<int>(model_.sizes[layer + 1]);
      RECON_RETURN_IF_ERROR(outputs_[layer].Reserve(batch.samples * model_.sizes[layer + 1]));
      float* output = outputs_[layer].get();
      cuda::BroadcastBias(Parameter(2 * layer + 1), samples, out, output, stream_);
      RECON_RETURN_IF_ERROR(Gemm(false, true, samples, out, in, input, Parameter(2 * layer), 1.0f, output));
      if (layer + 1 < model_.layers()) cuda::Relu(output, samples * out, stream_);
      input = output;
    }
    return Check(cudaGetLastError(), "forward kernels");
  }

  absl::StatusOr<BatchResult> Loss(const Batch& batch, float* delta) {
    RECON_RETURN_IF_ERROR(losses_.Reserve(batch.samples));
    RECON_RETURN_IF_ERROR(hits_.Reserve(batch.samples));
    cuda::SoftmaxCrossEntropy(outputs_.back().get(), labels_.get(), static_cast<int>(batch.samples),
                              static_cast<int>(model_.sizes.back()), losses_.get(), hits_.get(), delta,
                              stream_);
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

  absl::Status Backward(const Batch& batch, float* gradient) {
    const auto samples = static_cast<int>(batch.samples);
    DeviceBuffer<float>* delta = &delta_;
    DeviceBuffer<float>* previous = &previous_delta_;
    for (size_t layer = model_.layers(); layer-- > 0;) {
      const auto in = static_cast<int>(model_.sizes[layer]);
      const auto out = static_cast<int>(model_.sizes[layer + 1]);
      const float* input = layer == 0 ? features_.get() : outputs_[layer - 1].get();
      float* weight_gradient = gradient + layout_->tensors()[2 * layer].offset;
      float* bias_gradient = gradient + layout_->tensors()[2 * layer + 1].offset;
      RECON_RETURN_IF_ERROR(Gemm(true, false, out, in, samples, delta->get(), input, 0.0f, weight_gradient));
      cuda::ColumnSums(delta->get(), samples, out, bias_gradient, stream_);
      if (layer == 0) break;
      RECON_RETURN_IF_ERROR(previous->Reserve(batch.samples * model_.sizes[layer]));
      RECON_RETURN_IF_ERROR(
          Gemm(false, false, samples, in, out, delta->get(), Parameter(2 * layer), 0.0f, previous->get()));
      cuda::ReluBackward(input, samples * in, previous->get(), stream_);
      std::swap(delta, previous);
    }
    return Check(cudaGetLastError(), "backward kernels");
  }

  MlpModel model_;
  int device_;
  uint64_t uploaded_revision_ = ~uint64_t{0};
  cudaStream_t stream_ = nullptr;
#if RECON_CUBLAS
  cublasHandle_t cublas_ = nullptr;
#endif
  DeviceBuffer<float> parameters_, host_gradient_, features_, delta_, previous_delta_, losses_;
  DeviceBuffer<uint32_t> labels_, hits_;
  std::vector<DeviceBuffer<float>> outputs_;
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

absl::StatusOr<std::unique_ptr<ModelBackend>> MakeMlp(MlpModel model, int device) {
  cuda::pinning_device.store(device);
  auto backend = std::make_unique<MlpCudaBackend>(std::move(model), device);
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
