/* NVIDIA's management library and CUDA's driver for machines that have neither: the functions that recon calls,
   with the answers of fake_nvml.h. Without FAKE_NVML_ALL it is an old driver's, with fewer of them; with
   FAKE_NVML_NONE it has none that counts. */

#include "tests/support/fake_nvml.h"

#include <stdio.h>
#include <string.h>

struct FakeNvml fake_nvml = {.device_name = "Made-up GPU", .memory_total = 80000000000ull};

#ifdef FAKE_NVML_NONE

int nvmlShutdown(void) { return 0; }

#else

static int device;

int nvmlInit_v2(void) {
  if (fake_nvml.init == 0) ++fake_nvml.initialized;
  return fake_nvml.init;
}
int nvmlShutdown(void) {
  ++fake_nvml.shut_down;
  return 0;
}
const char* nvmlErrorString(int result) {
  return result == 18 ? "Driver/library version mismatch" : result == 15 ? "GPU is lost" : "Unknown Error";
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** handle) {
  snprintf(fake_nvml.bus_id, sizeof(fake_nvml.bus_id), "%s", bus_id);
  *handle = &device;
  return fake_nvml.handle;
}
int nvmlDeviceGetName(void* handle, char* name, unsigned length) {
  if (handle != &device) return 2;
  snprintf(name, length, "%s", fake_nvml.device_name);
  return fake_nvml.name;
}
int nvmlDeviceGetUtilizationRates(void* handle, unsigned* rates) {
  if (handle != &device) return 2;
  rates[0] = fake_nvml.percent;
  rates[1] = 0;
  return fake_nvml.utilization;
}
int nvmlDeviceGetMemoryInfo(void* handle, unsigned long long* memory) {
  if (handle != &device) return 2;
  memory[0] = fake_nvml.memory_total;
  memory[1] = fake_nvml.memory_total - fake_nvml.memory_used;
  memory[2] = fake_nvml.memory_used;
  return fake_nvml.memory;
}
int nvmlDeviceGetPowerUsage(void* handle, unsigned* milliwatts) {
  *milliwatts = fake_nvml.milliwatts;
  return handle == &device ? fake_nvml.power : 2;
}
int nvmlDeviceGetEnforcedPowerLimit(void* handle, unsigned* milliwatts) {
  *milliwatts = fake_nvml.limit_milliwatts;
  return handle == &device ? fake_nvml.power : 2;
}

#ifdef FAKE_NVML_ALL

struct Sample {
  unsigned pid;
  unsigned long long time_us;
  unsigned sm, memory, encoder, decoder;
};
int nvmlDeviceGetCurrentClocksEventReasons(void* handle, unsigned long long* reasons) {
  *reasons = fake_nvml.clock_reasons;
  return handle == &device ? fake_nvml.reasons : 2;
}
int nvmlDeviceGetProcessUtilization(void* handle, struct Sample* samples, unsigned* count,
                                    unsigned long long since) {
  if (handle != &device) return 2;
  if (fake_nvml.processes != 0) return fake_nvml.processes;
  if (fake_nvml.samples == 0) return 6; /* Not found. */
  if (samples == NULL || *count < fake_nvml.samples) {
    *count = fake_nvml.samples;
    return 7; /* Insufficient size. */
  }
  for (unsigned i = 0; i < fake_nvml.samples; ++i) {
    samples[i] = (struct Sample){fake_nvml.pids[i], since + 1 + i, fake_nvml.percents[i], 0, 0, 0};
  }
  *count = fake_nvml.samples;
  return 0;
}

#else

int nvmlDeviceGetCurrentClocksThrottleReasons(void* handle, unsigned long long* reasons) {
  *reasons = fake_nvml.clock_reasons;
  return handle == &device ? fake_nvml.reasons : 2;
}

#endif

int cuInit(unsigned flags) { return flags == 0 ? fake_nvml.cuda : 1; }
int cuDeviceGet(int* found, int ordinal) {
  *found = 10 + ordinal;
  return ordinal < 2 ? 0 : 101;
}
int cuDeviceGetPCIBusId(char* bus_id, int length, int number) {
  snprintf(bus_id, (size_t)length, "0000:%02x:00.0", (unsigned)number);
  return 0;
}

#endif
