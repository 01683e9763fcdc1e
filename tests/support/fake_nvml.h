#pragma once

// What the made-up drivers of fake_nvml.c answer. Each library has one, the symbol fake_nvml.
struct FakeNvml {
  // NVML's result codes; 0 is success.
  int init, handle, name, utilization, memory, power, reasons, processes;
  int cuda;  // Of CUDA's functions.
  const char* device_name;
  unsigned percent;
  unsigned long long memory_used, memory_total;
  unsigned milliwatts, limit_milliwatts;
  unsigned long long clock_reasons;
  // Samples of processes that are newer than what is asked for.
  unsigned samples;
  unsigned pids[4], percents[4];
  // What was asked for.
  char bus_id[64];
  int initialized, shut_down;
};
