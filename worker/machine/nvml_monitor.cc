#include "worker/machine/nvml_monitor.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// What is used of NVML, as its documentation has it ("NVML API Reference Guide"): part of the driver's binary
// interface.
using NvmlResult = int;
constexpr NvmlResult kSuccess = 0;
constexpr NvmlResult kInsufficientSize = 7;
struct NvmlUtilization {
  unsigned gpu, memory;  // Percent of the time.
};
struct NvmlMemory {
  unsigned long long total, free, used;  // Bytes.
};
struct NvmlProcessSample {
  unsigned pid;
  unsigned long long time_us;
  unsigned sm, memory, encoder, decoder;  // Percent.
};
using NvmlDevice = void*;

// Processes that use one GPU at a time; more are not looked at.
constexpr unsigned kProcessSamplesMax = 4096;
// No GPU takes more: what is above is no measurement.
constexpr unsigned kMilliwattsMax = 10'000'000;
constexpr size_t kNameBytesMax = 96;

// Reasons for a clock below the highest that the device would have by itself. (An idle device, and what its
// user has set, are none.)
constexpr std::pair<unsigned long long, const char*> kThrottling[] = {{0x4, "power cap"},
                                                                      {0x8, "hardware slowdown"},
                                                                      {0x20, "heat"},
                                                                      {0x40, "heat, by hardware"},
                                                                      {0x80, "power brake"}};

template <typename Function>
void Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
}

absl::StatusOr<void*> OpenLibrary(const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(dlerror());
  return library;
}

// It goes to people, and into messages of UTF-8.
std::string Printable(const std::string& text) {
  std::string printable = text.substr(0, kNameBytesMax);
  for (char& letter : printable) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return printable;
}

}  // namespace

struct NvmlMonitor::Functions {
  // Needed.
  NvmlResult (*init)() = nullptr;
  NvmlResult (*shutdown)() = nullptr;
  const char* (*error_string)(NvmlResult) = nullptr;
  NvmlResult (*handle_by_bus_id)(const char*, NvmlDevice*) = nullptr;
  // Where a driver lacks one, its values are not known.
  NvmlResult (*name)(NvmlDevice, char*, unsigned) = nullptr;
  NvmlResult (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  NvmlResult (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  NvmlResult (*power)(NvmlDevice, unsigned*) = nullptr;
  NvmlResult (*power_limit)(NvmlDevice, unsigned*) = nullptr;
  NvmlResult (*clock_reasons)(NvmlDevice, unsigned long long*) = nullptr;
  NvmlResult (*processes)(NvmlDevice, NvmlProcessSample*, unsigned*, unsigned long long) = nullptr;

  absl::Status Check(NvmlResult result, const char* what) const {
    if (result == kSuccess) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("NVML: ", what, ": ", error_string(result)));
  }
};

NvmlMonitor::NvmlMonitor() : nvml_(std::make_unique<Functions>()), process_(getpid()) {}

NvmlMonitor::~NvmlMonitor() {
  if (begun_) nvml_->shutdown();
}

absl::Status NvmlMonitor::Load(const std::string& name) {
  // Never unloaded: drivers keep threads and handlers of their own.
  RECON_ASSIGN_OR_RETURN(void* const library, OpenLibrary(name));
  const auto need = [&](const char* function, auto* found) {
    Find(library, function, found);
    return *found != nullptr ? absl::OkStatus()
                             : absl::FailedPreconditionError(absl::StrCat(name, " has no ", function));
  };
  RECON_RETURN_IF_ERROR(need("nvmlInit_v2", &nvml_->init));
  RECON_RETURN_IF_ERROR(need("nvmlShutdown", &nvml_->shutdown));
  RECON_RETURN_IF_ERROR(need("nvmlErrorString", &nvml_->error_string));
  RECON_RETURN_IF_ERROR(need("nvmlDeviceGetHandleByPciBusId_v2", &nvml_->handle_by_bus_id));
  Find(library, "nvmlDeviceGetName", &nvml_->name);
  Find(library, "nvmlDeviceGetUtilizationRates", &nvml_->utilization);
  Find(library, "nvmlDeviceGetMemoryInfo", &nvml_->memory);
  Find(library, "nvmlDeviceGetPowerUsage", &nvml_->power);
  Find(library, "nvmlDeviceGetEnforcedPowerLimit", &nvml_->power_limit);
  Find(library, "nvmlDeviceGetCurrentClocksEventReasons", &nvml_->clock_reasons);
  // Its name until CUDA 12.
  if (nvml_->clock_reasons == nullptr) {
    Find(library, "nvmlDeviceGetCurrentClocksThrottleReasons", &nvml_->clock_reasons);
  }
  Find(library, "nvmlDeviceGetProcessUtilization", &nvml_->processes);
  RECON_RETURN_IF_ERROR(nvml_->Check(nvml_->init(), "nvmlInit_v2"));
  begun_ = true;
  return absl::OkStatus();
}

absl::Status NvmlMonitor::FindDevice(const std::string& cuda_library, int cuda_device) {
  RECON_ASSIGN_OR_RETURN(void* const library, OpenLibrary(cuda_library));
  int (*init)(unsigned) = nullptr;
  int (*get)(int*, int) = nullptr;
  int (*bus_id)(char*, int, int) = nullptr;
  Find(library, "cuInit", &init);
  Find(library, "cuDeviceGet", &get);
  Find(library, "cuDeviceGetPCIBusId", &bus_id);
  if (init == nullptr || get == nullptr || bus_id == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(cuda_library, " cannot tell which GPU a device is"));
  }
  int device = 0;
  char bus[64] = "";
  int error = init(0);
  if (error == 0) error = get(&device, cuda_device);
  if (error == 0) error = bus_id(bus, sizeof(bus) - 1, device);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("CUDA: device ", cuda_device, ": error ", error));
  }
  RECON_RETURN_IF_ERROR(
      nvml_->Check(nvml_->handle_by_bus_id(bus, &device_), "nvmlDeviceGetHandleByPciBusId_v2"));
  char name[kNameBytesMax + 1] = "";
  const bool named = nvml_->name != nullptr && nvml_->name(device_, name, sizeof(name)) == kSuccess;
  name[kNameBytesMax] = '\0';
  name_ = named ? Printable(name) : absl::StrCat("GPU at ", Printable(bus));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<NvmlMonitor>> NvmlMonitor::Open(const Libraries& libraries, int cuda_device) {
  std::unique_ptr<NvmlMonitor> monitor(new NvmlMonitor());
  RECON_RETURN_IF_ERROR(monitor->Load(libraries.nvml));
  RECON_RETURN_IF_ERROR(monitor->FindDevice(libraries.cuda, cuda_device));
  return monitor;
}

DeviceStatus NvmlMonitor::Read(absl::Time) {
  DeviceStatus status;
  status.set_name(name_);
  status.set_source("nvml");
  NvmlUtilization used{};
  if (nvml_->utilization != nullptr && nvml_->utilization(device_, &used) == kSuccess && used.gpu <= 100) {
    status.set_utilization(used.gpu / 100.0);
    ReadOwnUtilization(&status);
  }
  NvmlMemory memory{};
  if (nvml_->memory != nullptr && nvml_->memory(device_, &memory) == kSuccess && memory.total > 0 &&
      memory.used <= memory.total) {
    status.set_memory_used_bytes(memory.used);
    status.set_memory_total_bytes(memory.total);
  }
  unsigned milliwatts = 0;
  const auto sensible = [&] { return milliwatts > 0 && milliwatts <= kMilliwattsMax; };
  if (nvml_->power != nullptr && nvml_->power(device_, &milliwatts) == kSuccess && sensible()) {
    status.set_power_watts(milliwatts / 1000.0);
  }
  if (nvml_->power_limit != nullptr && nvml_->power_limit(device_, &milliwatts) == kSuccess && sensible()) {
    status.set_power_limit_watts(milliwatts / 1000.0);
  }
  unsigned long long reasons = 0;
  if (nvml_->clock_reasons != nullptr && nvml_->clock_reasons(device_, &reasons) == kSuccess) {
    std::vector<const char*> why;
    for (const auto& [bit, reason] : kThrottling) {
      if ((reasons & bit) != 0) why.push_back(reason);
    }
    status.set_throttled(!why.empty());
    status.set_throttled_why(absl::StrJoin(why, ", "));
  }
  if (!status.has_utilization() && !status.has_memory_total_bytes() && !status.has_power_watts()) {
    status.set_problem("NVML answers none of utilisation, memory and power");
  }
  return status;
}

void NvmlMonitor::ReadOwnUtilization(DeviceStatus* status) {
  if (nvml_->processes == nullptr) return;
  unsigned count = 0;
  NvmlResult result = nvml_->processes(device_, nullptr, &count, seen_until_);
  if (result != kInsufficientSize || count == 0) {
    // Nobody has used it since, as far as NVML can tell.
    if (process_seen_) status->set_own_utilization(0);
    return;
  }
  count = std::min(count, kProcessSamplesMax);
  std::vector<NvmlProcessSample> samples(count);
  result = nvml_->processes(device_, samples.data(), &count, seen_until_);
  if (result != kSuccess) return;
  samples.resize(std::min<size_t>(count, samples.size()));
  unsigned own = 0, looks = 0;
  for (const NvmlProcessSample& sample : samples) {
    seen_until_ = std::max(seen_until_, sample.time_us);
    if (sample.pid != static_cast<unsigned>(process_) || sample.sm > 100) continue;
    own += sample.sm;
    ++looks;
  }
  process_seen_ = process_seen_ || looks > 0;
  if (!process_seen_) return;  // It may be known by another number.
  const double mean = looks == 0 ? 0 : own / (100.0 * looks);
  status->set_own_utilization(std::min(mean, status->utilization()));
}

}  // namespace recon
