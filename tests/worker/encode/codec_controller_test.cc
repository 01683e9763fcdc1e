#include "worker/encode/codec_controller.h"

#include <algorithm>
#include <map>
#include <string>

#include "catch2/catch.hpp"

namespace recon {
namespace {

// A worker whose computing and link are simple numbers: communication overlaps with computing.
struct SimulatedWorker {
  double compute_ms = 20;
  double link_bytes_per_ms = 12'500;  // 100 Mbit/s.
  double latency_ms = 2;
  double params = 536'000;
  double others_ratio = 0.01;                    // What the three others push.
  std::map<std::string, double> encode_ms = {};  // By codec; on the thread that computes.

  double PushBytes(const CodecController::Rung& rung) const {
    return params * (rung.push.kind == CodecKind::kFp32   ? 4
                     : rung.push.kind == CodecKind::kFp16 ? 2
                                                          : rung.push.ratio * 3.3);
  }
  // What the others push comes back.
  double PullBytes(const CodecController::Rung& rung) const {
    if (!rung.push.sparse()) return PushBytes(rung);
    return std::min(PushBytes(rung) + params * others_ratio * 3.3 * 3, 2 * params);
  }
  double LinkMs(const CodecController::Rung& rung) const {
    return latency_ms + std::max(PushBytes(rung), PullBytes(rung)) / link_bytes_per_ms;
  }
  double StepMs(const CodecController::Rung& rung) const {
    const auto found = encode_ms.find(rung.push.ToString());
    return std::max(compute_ms + (found == encode_ms.end() ? 0 : found->second), LinkMs(rung));
  }
  CodecController::Window Window(const CodecController& controller) const {
    constexpr int kSteps = 12;
    const CodecController::Rung& rung = controller.rung();
    const auto found = encode_ms.find(rung.push.ToString());
    const double busy = compute_ms + (found == encode_ms.end() ? 0 : found->second);
    CodecController::Window window;
    window.steps = kSteps;
    window.seconds = 1e-3 * kSteps * StepMs(rung);
    window.compute_seconds = 1e-3 * kSteps * compute_ms;
    window.stall_seconds = std::max(0.0, 1e-3 * kSteps * (StepMs(rung) - busy));
    window.exchange_seconds = 1e-3 * kSteps * LinkMs(rung);
    window.push_bytes = static_cast<uint64_t>(kSteps * PushBytes(rung));
    window.pull_bytes = static_cast<uint64_t>(kSteps * PullBytes(rung));
    window.dense_pull_bytes = static_cast<uint64_t>(kSteps * params * (rung.pull == CodecId::kFp32 ? 4 : 2));
    window.workers = 4;
    return window;
  }
  std::string Settle(CodecController* controller, int windows = 30) const {
    for (int i = 0; i < windows; ++i) controller->Observe(Window(*controller));
    INFO(controller->reason());
    return controller->rung().push.ToString();
  }
};

}  // namespace

TEST_CASE("a slow link gets as much compression as hides communication, and no more", "[encode]") {
  CodecController controller;
  SimulatedWorker worker;
  CHECK(worker.Settle(&controller) == "topk:0.01");
  CHECK(controller.rung().pull == CodecId::kFp16);
  CodecController slower;
  worker.link_bytes_per_ms = 700;
  CHECK(worker.Settle(&slower) == "topk:0.001");
}

TEST_CASE("a worker counts what its pushes cost the others", "[encode]") {
  // The others send so little that 5 % would be hidden here; if all sent 5 %, nobody's pulls would be.
  CodecController controller;
  SimulatedWorker worker;
  worker.others_ratio = 0.001;
  REQUIRE(worker.LinkMs({{CodecKind::kTopK, 0.05}, CodecId::kFp16}) < worker.compute_ms);
  CHECK(worker.Settle(&controller) == "topk:0.01");
}

TEST_CASE("a fast link gets none, nor tries Top-K", "[encode]") {
  CodecController controller;
  SimulatedWorker worker;
  worker.link_bytes_per_ms = 2e6;
  for (int i = 0; i < 30; ++i) {
    controller.Observe(worker.Window(controller));
    REQUIRE_FALSE(controller.rung().push.sparse());
  }
  CHECK(controller.rung().push.ToString() == "fp32");
  CHECK(controller.rung().pull == CodecId::kFp32);
}

TEST_CASE("a codec that is slower than what it saves is left", "[encode]") {
  CodecController controller;
  SimulatedWorker worker;
  worker.link_bytes_per_ms = 110'000;  // FP16: 19.5 + 2 ms, just not hidden.
  worker.encode_ms = {{"topk:0.05", 30}, {"topk:0.01", 30}, {"topk:0.001", 30}};
  CHECK(worker.Settle(&controller) == "fp16");
}

TEST_CASE("a link that gets slower or faster is followed", "[encode]") {
  CodecController controller;
  SimulatedWorker worker;
  worker.link_bytes_per_ms = 2e6;
  REQUIRE(worker.Settle(&controller) == "fp32");
  worker.link_bytes_per_ms = 12'500;
  CHECK(worker.Settle(&controller) == "topk:0.01");
  worker.link_bytes_per_ms = 2e6;
  // Only a probe finds that out: communication was hidden all the time.
  CHECK(worker.Settle(&controller, 400) == "fp32");
}

TEST_CASE("a residual that grows beyond measure takes compression back", "[encode]") {
  CodecController controller;
  SimulatedWorker worker;
  worker.link_bytes_per_ms = 700;
  REQUIRE(worker.Settle(&controller) == "topk:0.001");
  CodecController::Window window = worker.Window(controller);
  window.residual_ratio = 500;
  CHECK(controller.Observe(window));
  CHECK(controller.rung().push.ToString() == "topk:0.01");
  CHECK(worker.Settle(&controller) == "topk:0.01");
}

TEST_CASE("codecs that the server refuses are never tried", "[encode]") {
  CodecController controller(1u << static_cast<int>(CodecId::kSparseFp16));
  SimulatedWorker worker;
  worker.link_bytes_per_ms = 700;
  CHECK(worker.Settle(&controller) == "fp16");
  CodecController nothing_but_fp32(~uint32_t{0});
  CHECK(worker.Settle(&nothing_but_fp32) == "fp32");
}

}  // namespace recon
