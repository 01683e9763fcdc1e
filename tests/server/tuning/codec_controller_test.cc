#include "server/tuning/codec_controller.h"

#include <algorithm>
#include <map>
#include <string>

#include "catch2/catch.hpp"
#include "tests/server/tuning/simulated_job.h"

namespace recon {
namespace {

CodecController::Window WindowOf(const SimulatedJob& job, const CodecController::Rung& rung) {
  CodecController::Window window;
  window.step_seconds = 1e-3 * job.StepMs(rung);
  window.compute_seconds = 1e-3 * job.compute_ms;
  window.encode_seconds = 1e-3 * job.EncodeMs(rung);
  window.stall_seconds = window.step_seconds - 1e-3 * (job.compute_ms + job.EncodeMs(rung));
  window.push_bytes = job.PushBytes(rung);
  window.pull_bytes = job.PullBytes(rung);
  window.link_bytes_per_second = 1e3 * std::max(window.push_bytes, window.pull_bytes) / job.LinkMs(rung);
  return window;
}

std::string Settle(const SimulatedJob& job, CodecController* controller, int windows = 30) {
  for (int i = 0; i < windows; ++i) controller->Observe(WindowOf(job, controller->rung()));
  return controller->rung().push.ToString();
}

}  // namespace

TEST_CASE("a slow link gets as much compression as hides communication, and no more", "[tuning]") {
  SimulatedJob job;
  CodecController controller;
  CHECK(Settle(job, &controller) == "topk:0.01");
  CHECK(controller.rung().pull == CodecId::kFp16);
  CodecController slower;
  job.link_bytes_per_ms = 700;
  CHECK(Settle(job, &slower) == "topk:0.001");
}

TEST_CASE("a fast link gets none, nor tries Top-K", "[tuning]") {
  CodecController controller;
  SimulatedJob job;
  job.link_bytes_per_ms = 2e6;
  for (int i = 0; i < 30; ++i) {
    controller.Observe(WindowOf(job, controller.rung()));
    REQUIRE_FALSE(controller.rung().push.sparse());
  }
  CHECK(controller.rung().push.ToString() == "fp32");
  CHECK(controller.rung().pull == CodecId::kFp32);
}

TEST_CASE("where nothing waits for the link nothing is left out, though cores are shared", "[tuning]") {
  SimulatedJob job;
  job.link_bytes_per_ms = 2e6;
  job.encode_ms = {{"fp32", 9}, {"fp16", 5}, {"topk:0.05", 3}, {"topk:0.01", 2}, {"topk:0.001", 0.1}};
  CodecController controller;
  for (int i = 0; i < 300; ++i) {
    CodecController::Window window = WindowOf(job, controller.rung());
    window.cpu_wait = 1;
    window.stall_seconds = 0;  // As over shared memory.
    controller.Observe(window);
    REQUIRE_FALSE(controller.rung().push.sparse());
  }
  CHECK(controller.rung().push.ToString() == "fp16");
}

TEST_CASE("over shared memory nothing is left out, however long pushes wait for the server", "[tuning]") {
  SimulatedJob job;  // As slow as a link that takes topk.
  CodecController controller;
  const auto observe = [&](bool no_network) {
    CodecController::Window window = WindowOf(job, controller.rung());
    window.no_network = no_network;
    controller.Observe(window);
  };
  for (int i = 0; i < 100; ++i) {
    observe(true);
    REQUIRE_FALSE(controller.rung().push.sparse());
  }
  // A worker on another machine comes, and goes.
  for (int i = 0; i < 30; ++i) observe(false);
  CHECK(controller.rung().push.ToString() == "topk:0.01");
  observe(true);
  CHECK(controller.rung().push.ToString() == "fp16");
}

TEST_CASE("a codec that is slower than what it saves is left", "[tuning]") {
  CodecController controller;
  SimulatedJob job;
  job.link_bytes_per_ms = 110'000;  // FP16: 19.5 + 2 ms, just not hidden.
  job.encode_ms = {{"topk:0.05", 30}, {"topk:0.01", 30}, {"topk:0.001", 30}};
  CHECK(Settle(job, &controller) == "fp16");
}

TEST_CASE("a link that gets slower or faster is followed", "[tuning]") {
  CodecController controller;
  SimulatedJob job;
  job.link_bytes_per_ms = 2e6;
  REQUIRE(Settle(job, &controller) == "fp32");
  job.link_bytes_per_ms = 12'500;
  CHECK(Settle(job, &controller) == "topk:0.01");
  job.link_bytes_per_ms = 2e6;
  // Only a probe finds that out: communication was hidden all the time.
  CHECK(Settle(job, &controller, 400) == "fp32");
}

TEST_CASE("a residual that grows beyond measure takes compression back", "[tuning]") {
  CodecController controller;
  SimulatedJob job;
  job.link_bytes_per_ms = 700;
  REQUIRE(Settle(job, &controller) == "topk:0.001");
  CodecController::Window window = WindowOf(job, controller.rung());
  window.residual_ratio = 500;
  CHECK(controller.Observe(window));
  CHECK(controller.rung().push.ToString() == "topk:0.01");
  CHECK(Settle(job, &controller) == "topk:0.01");
}

TEST_CASE("codecs that the server refuses are never tried", "[tuning]") {
  CodecController controller(1u << static_cast<int>(CodecId::kSparseFp16));
  SimulatedJob job;
  job.link_bytes_per_ms = 700;
  CHECK(Settle(job, &controller) == "fp16");
  CodecController nothing_but_fp32(~uint32_t{0});
  CHECK(Settle(job, &nothing_but_fp32) == "fp32");
}

}  // namespace recon
