#include "tools/bench/trace_cost.h"

#include <time.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/trace/recorder.h"
#include "common/trace/span_pieces.h"
#include "server/data_plane/param_server.h"
#include "tools/bench/median.h"
#include "tools/bench/push_load.h"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kHour = 3'600'000'000'000;
// What a thread's ring holds at least: none is lost while these are measured.
constexpr int kSpansAtOnce = 4096;
constexpr absl::Duration kDrainInterval = absl::Milliseconds(100);

// Records as the head does while a trace lasts: spans are made pieces of by a thread beside.
class RecordedMeanwhile {
 public:
  RecordedMeanwhile() : recording_(trace::Recording::Begin(MonotonicNanos() + kHour)) {
    drains_ = std::thread([this] {
      while (!stop_) {
        Sleep(kDrainInterval);
        for (const TraceDelivery& piece : trace::DrainPieces(recording_.get(), /*last=*/false)) {
          spans_ += static_cast<uint64_t>(piece.spans().name_size());
        }
      }
    });
  }
  ~RecordedMeanwhile() {
    stop_ = true;
    drains_.join();
  }
  RecordedMeanwhile(const RecordedMeanwhile&) = delete;
  RecordedMeanwhile& operator=(const RecordedMeanwhile&) = delete;

  uint64_t spans() const { return spans_; }

 private:
  const std::unique_ptr<trace::Recording> recording_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> spans_{0};
  std::thread drains_;
};

double NanosPerSpan(int times) {
  const int64_t begin = MonotonicNanos();
  for (int i = 0; i < times; ++i) {
    for (int j = 0; j < kSpansAtOnce; ++j) {
      const trace::Span span("bench", trace::About::Push(1, static_cast<uint64_t>(j)));
      asm volatile("" ::: "memory");  // What it does is not seen through.
    }
  }
  return static_cast<double>(MonotonicNanos() - begin) / (static_cast<double>(times) * kSpansAtOnce);
}

Json MeasureSpans(const TraceCostOptions& options) {
  std::vector<double> off, on;
  for (int round = 0; round < options.rounds; ++round) {
    off.push_back(NanosPerSpan(100));
    const auto recording = trace::Recording::Begin(MonotonicNanos() + kHour);
    for (int i = 0; i < 20; ++i) {
      on.push_back(NanosPerSpan(1));
      recording->Drain([](const trace::Recording::Thread&, const trace::Event&) {});
    }
  }
  return {{"off_ns", Median(off)}, {"on_ns", Median(on)}};
}

double ProcessCpuSeconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

struct Rate {
  double frames_per_second = 0;
  double cpu_micros = 0;  // Of a frame, who pushes it included.
};

Rate MeasureRate(PushLoad* load, double seconds) {
  load->Take();
  const double cpu = ProcessCpuSeconds();
  const absl::Time begin = Now();
  Sleep(absl::Seconds(seconds));
  const auto frames = static_cast<double>(load->Take().frames);
  return {frames / absl::ToDoubleSeconds(Now() - begin), 1e6 * (ProcessCpuSeconds() - cpu) / frames};
}

// Frames, off and on in turn, of a model of so many parameters. On a machine that others use, what they cost
// says more than how many there are in a second.
absl::Status MeasureFrames(const TraceCostOptions& options, uint64_t parameters, const std::string& name,
                           Json* json, Json* ratios) {
  ModelSpec model;
  model.set_name("bench");
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("weights");
  tensor->add_shape(parameters);
  ParamServer::Options server_options;
  server_options.rules.optimizer.kind = OptimizerKind::kAdam;
  server_options.rules.optimizer.learning_rate = 1e-6;
  server_options.apply_threads = 1;
  Metrics metrics;
  ParamServer params(server_options, &metrics);
  RECON_RETURN_IF_ERROR(params.DefineModel(model));
  RECON_RETURN_IF_ERROR(params.LoadInitialValues([&](uint32_t shard) {
    return std::vector<PageRef>(params.layout()->shards()[shard].pages(), PageRef::Zeroed());
  }));
  PushLoad load(&params, 1);
  MeasureRate(&load, options.seconds);
  std::vector<double> off_rate, on_rate, rate_ratio, off_cpu, on_cpu, cpu_ratio;
  uint64_t spans = 0;
  for (int round = 0; round < options.rounds; ++round) {
    Rate off, on;
    for (const bool recorded : {round % 2 == 0, round % 2 != 0}) {
      if (!recorded) {
        off = MeasureRate(&load, options.seconds);
        continue;
      }
      const RecordedMeanwhile recording;
      on = MeasureRate(&load, options.seconds);
      spans = recording.spans();
    }
    off_rate.push_back(off.frames_per_second);
    on_rate.push_back(on.frames_per_second);
    off_cpu.push_back(off.cpu_micros);
    on_cpu.push_back(on.cpu_micros);
    rate_ratio.push_back(on.frames_per_second / off.frames_per_second);
    cpu_ratio.push_back(on.cpu_micros / off.cpu_micros);
  }
  RECON_RETURN_IF_ERROR(load.status());
  if (spans == 0) return absl::InternalError("nothing was recorded");
  (*json)[name] = {{"parameters", parameters},
                   {"off_frames_per_s", Median(off_rate)},
                   {"on_frames_per_s", Median(on_rate)},
                   {"off_cpu_us", Median(off_cpu)},
                   {"on_cpu_us", Median(on_cpu)}};
  (*ratios)[name + "_rate_on_of_off"] = Median(rate_ratio);
  (*ratios)[name + "_cpu_on_of_off"] = Median(cpu_ratio);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> RunTraceCost(const TraceCostOptions& options) {
  Json json = {{"bench", "trace"}, {"rounds", options.rounds}, {"span", MeasureSpans(options)}};
  Json ratios;
  RECON_RETURN_IF_ERROR(MeasureFrames(options, 1024, "small_frames", &json, &ratios));
  RECON_RETURN_IF_ERROR(MeasureFrames(options, uint64_t{8} << 20, "large_frames", &json, &ratios));
  json["ratios"] = ratios;
  return json;
}

}  // namespace recon
