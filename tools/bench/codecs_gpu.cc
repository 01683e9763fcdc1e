#include "tools/bench/codecs_gpu.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/cuda/cuda_module.h"

namespace recon {
namespace {

// Median milliseconds of torch.topk on magnitudes; none where there is no PyTorch with CUDA.
std::string TorchTopkMs(uint64_t values, int device, int rounds) {
  const std::string program = absl::StrFormat(
      "import torch,time\n"
      "torch.cuda.set_device(%d)\n"
      "x=torch.randn(%d,device='cuda')\n"
      "times=[]\n"
      "for i in range(%d+2):\n"
      "  torch.cuda.synchronize(); t=time.perf_counter()\n"
      "  torch.topk(x.abs(),x.numel()//100,sorted=False)\n"
      "  torch.cuda.synchronize(); times.append(time.perf_counter()-t)\n"
      "print(1e3*sorted(times[2:])[%d//2])\n",
      device, values, rounds, rounds);
  FILE* pipe = popen(absl::StrCat("python3 -c \"", program, "\" 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  char line[64] = "";
  const bool read = std::fgets(line, sizeof(line), pipe) != nullptr;
  return pclose(pipe) == 0 && read ? std::string(absl::StripSuffix(line, "\n")) : "";
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> RunCodecsOnGpu(const CodecsOptions& options, int device) {
  RECON_ASSIGN_OR_RETURN(const CudaModule* module, LoadCudaModule());
  RECON_ASSIGN_OR_RETURN(const int devices, module->device_count());
  if (device >= devices) {
    return absl::NotFoundError(absl::StrCat("no CUDA device ", device, ": there are ", devices));
  }
  nlohmann::ordered_json result;
  result["bench"] = "codecs";
  result["device"] = absl::StrCat("cuda:", device);
  result["rounds"] = options.rounds;
  for (const uint64_t values : {uint64_t{25} << 20, uint64_t{350} << 20}) {
    const std::string size = absl::StrCat("_", values >> 20, "Mi");
    auto& figures = result[absl::StrCat("values", size)];
    const auto measured_codecs = module->measure_codecs(device, values, options.rounds);
    if (!measured_codecs.ok()) {  // Not enough memory, say: the other size may do.
      figures["error"] = std::string(measured_codecs.status().message());
      continue;
    }
    for (const cuda::CodecMeasurement& measured : *measured_codecs) {
      const std::string codec = measured.codec;
      const bool topk = codec == "topk:0.01";
      const double bytes = static_cast<double>(measured.values) * (topk ? 12 : 4) +
                           static_cast<double>(measured.payload_bytes);
      const double copy_rate = 8.0 * static_cast<double>(measured.values) / measured.copy_seconds;
      figures[codec] = {{"ms", 1e3 * measured.seconds},
                        {"GBps", 1e-9 * bytes / measured.seconds},
                        {"copy_GBps", 1e-9 * copy_rate},
                        {"payload_bytes", measured.payload_bytes}};
      const std::string name = topk ? "gpu_topk" : "gpu_" + codec;
      result["ratios"][name + "_of_copy" + size] = bytes / measured.seconds / copy_rate;
      if (!topk) continue;
      double torch_ms = 0;
      if (absl::SimpleAtod(TorchTopkMs(values, device, options.rounds), &torch_ms)) {
        figures["torch.topk_ms"] = torch_ms;
        result["ratios"]["gpu_topk_vs_torch" + size] = torch_ms / (1e3 * measured.seconds);
      } else {
        figures["torch.topk_ms"] = nullptr;  // No PyTorch with CUDA here.
      }
    }
  }
  return result;
}

}  // namespace recon
