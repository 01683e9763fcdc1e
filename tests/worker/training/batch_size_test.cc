#include "worker/training/batch_size.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

// A device whose step takes a fixed time and a time for each sample, and whose memory holds so many samples.
struct Device {
  BatchSize size;
  absl::Duration step = absl::Milliseconds(100);
  absl::Duration sample = absl::Milliseconds(1);
  double samples_of_memory = 1e9;
  absl::Time now = absl::FromUnixSeconds(1000);
  std::vector<std::string> said;

  explicit Device(const BatchSize::Options& options) : size(options) {}

  double MemoryUsed() const { return size.samples() / samples_of_memory; }
  void Compute(int batches) {
    for (int i = 0; i < batches; ++i) {
      if (MemoryUsed() > 1) {
        if (const auto why = size.NoteOutOfMemory(now)) said.push_back(*why);
        continue;
      }
      const absl::Duration took = step + size.samples() * sample;
      now += took;
      if (const auto why = size.Note(size.samples(), took, MemoryUsed(), now)) said.push_back(*why);
    }
  }
};

BatchSize::Options Between(uint32_t min, uint32_t max, uint32_t start) {
  BatchSize::Options options;
  options.min = min;
  options.max = max;
  options.start = start;
  return options;
}

}  // namespace

TEST_CASE(
    "batches double while samples come faster by a tenth, and a doubling that brings less is taken back",
    "[batch]") {
  Device device(Between(1, 100'000, 16));
  device.Compute(600);
  // 400 samples/s at 64, 561 at 128, 719 at 256, 837 at 512, 911 at 1,024: the last doubling brings 9 %.
  CHECK(device.size.samples() == 512);
  REQUIRE(device.said.size() >= 7);
  CHECK(absl::StrContains(device.said[0], "16 -> 32 samples: "));
  CHECK(absl::StrContains(device.said[6], "1024 -> 512 samples: 911 samples/s where it were 837"));
}

TEST_CASE("a window has batches and time enough, whatever single batches take", "[batch]") {
  BatchSize size(Between(1, 64, 8));
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 7; ++i) CHECK_FALSE(size.Note(8, absl::Seconds(10), 0.1, now += absl::Seconds(10)));
  CHECK(size.samples() == 8);
  CHECK(size.Note(8, absl::Seconds(10), 0.1, now += absl::Seconds(10)));
  CHECK(size.samples() == 16);
  for (int i = 0; i < 29; ++i) CHECK_FALSE(size.Note(16, absl::Milliseconds(100), 0.1, now));
  CHECK(size.Note(16, absl::Milliseconds(100), 0.1, now));
}

TEST_CASE("batches stay where the memory has no room for twice as many", "[batch]") {
  Device device(Between(1, 100'000, 16));
  device.samples_of_memory = 140;  // 64 are 46 %, and 128 are 91 %.
  device.Compute(1000);
  CHECK(device.size.samples() == 128);
  device.samples_of_memory = 130;  // Others take some: 98 %.
  device.Compute(100);
  CHECK(device.size.samples() == 64);
  CHECK(absl::StrContains(device.said.back(), "128 -> 64 samples: 98 % of the memory is in use"));
}

TEST_CASE("out of memory halves batches down to the least, and more are tried again later, ever more seldom",
          "[batch]") {
  Device device(Between(4, 100'000, 64));
  device.samples_of_memory = 50;
  device.Compute(1);
  CHECK(device.size.samples() == 32);
  CHECK(device.said.back() == "64 -> 32 samples: out of memory");
  const auto failures = [&](absl::Duration time) {
    const absl::Time until = device.now + time;
    const size_t before = device.said.size();
    while (device.now < until) device.Compute(1);
    return device.said.size() - before;
  };
  device.samples_of_memory = 64.0001 / 0.79;  // Room for 64, and 128 does not fit.
  const size_t first = failures(absl::Hours(1));
  const size_t second = failures(absl::Hours(1));
  CHECK(first > second);
  CHECK(second > 0);
  CHECK(device.size.samples() == 64);
  device.samples_of_memory = 1;
  for (int i = 0; i < 10; ++i) device.Compute(1);
  CHECK(device.size.samples() == 4);
  CHECK_FALSE(device.size.NoteOutOfMemory(device.now));
}

TEST_CASE("batches keep to their bounds", "[batch]") {
  Device device(Between(10, 50, 30));
  device.Compute(500);
  CHECK(device.size.samples() == 50);
  device.samples_of_memory = 51;
  device.Compute(200);
  CHECK(device.size.samples() == 25);
  device.size.SetMax(20);
  CHECK(device.size.samples() == 20);
  device.size.SetMax(5);  // Below the least.
  CHECK(device.size.samples() == 5);
  CHECK(BatchSize(Between(1, 8, 1000)).samples() == 8);
}

TEST_CASE("memory that is not known holds nothing up", "[batch]") {
  BatchSize size(Between(1, 64, 8));
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 7; ++i) CHECK_FALSE(size.Note(8, absl::Seconds(1), std::nullopt, now));
  const auto why = size.Note(8, absl::Seconds(1), std::nullopt, now);
  REQUIRE(why);
  CHECK(absl::StrContains(*why, "memory is not known"));
}

}  // namespace recon
