#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <utility>

#include "catch2/catch.hpp"
#include "worker/cuda/cuda_module.h"
#include "worker/data/cluster_dataset.h"
#include "worker/encode/cpu_encoder.h"
#include "worker/model/mlp_backend.h"

namespace recon {
namespace {

EncodePlan Plan(const char* weights, const char* biases, uint64_t seed, bool flush) {
  EncodePlan plan;
  plan.groups = {*ParseCodecSpec(weights), *ParseCodecSpec(biases)};
  plan.seed = seed;
  if (flush) plan.flush.assign(1000, true);
  return plan;
}

constexpr size_t kTransportBytes = size_t{64} << 20;

// One range of memory, of which the encoder asks for its payloads' in turn.
struct TransportMemory {
  std::shared_ptr<uint8_t[]> Next(size_t bytes) {
    used = (used + 63) / 64 * 64;
    REQUIRE(used + bytes <= kTransportBytes);
    return {all, begin + std::exchange(used, used + bytes)};
  }

  const std::shared_ptr<uint8_t[]> all{static_cast<uint8_t*>(std::aligned_alloc(4096, kTransportBytes)),
                                       [](uint8_t* memory) { std::free(memory); }};
  uint8_t* const begin = all.get();
  size_t used = 0;
};

}  // namespace

TEST_CASE("the CUDA encoder gives the CPU encoder's bytes for a device's gradients", "[gpu]") {
  const auto module = LoadCudaModule();
  const absl::StatusOr<int> devices = module.ok() ? (*module)->device_count() : module.status();
  if (!devices.ok()) {
    WARN("SKIP: " << devices.status().message());
    return;
  }
  // Several runs of pages, shards that end within a page, two groups.
  const MlpModel model = *ParseMlp("33-70001-300-5");
  const ParamLayout layout = *ParamLayout::Create(model.spec);
  const auto backend = *(*module)->make_mlp(model, 0, Precision::kFp32);
  backend->Bind(&layout);
  TransportMemory transport;
  REQUIRE((*module)->pinning.pin(transport.begin, kTransportBytes));
  const std::shared_ptr<void> unpin(transport.begin, (*module)->pinning.unpin);
  const TrainAndTest data = MakeClusters(1000, 1, 33, 5);
  std::vector<float> parameters(layout.params());
  backend->InitialValues(7, absl::MakeSpan(parameters));
  for (const bool bf16 : {false, true}) {
    EncoderOptions options;
    options.bf16_residual = bf16;
    CpuEncoder cpu(options, &layout);
    const auto gpu = backend->NewEncoder(options);
    REQUIRE(gpu.ok());
    const auto on_device = backend->NewGradientBuffer();
    REQUIRE(on_device.ok());
    uint64_t push = 0;
    for (const auto& [weights, biases] :
         std::vector<std::pair<const char*, const char*>>{{"fp32", "fp16"},
                                                          {"fp16", "fp16"},
                                                          {"bf16", "int8"},
                                                          {"int8", "int8"},
                                                          {"topk:0.01", "topk:0.01"},
                                                          {"topk:0.001", "fp16"},
                                                          {"topk:0.25", "int8"},
                                                          {"randomk:0.05", "fp32"},
                                                          {"threshold:0.0001", "fp16"},
                                                          {"fp16", "fp16"}}) {
      for (const bool flush : {false, true}) {
        INFO(weights << ", " << biases << (flush ? ", flush" : ""));
        ++push;
        Batch batch;
        std::vector<uint32_t> indices;
        for (uint32_t i = 0; i < 32; ++i) indices.push_back((i * 7 + static_cast<uint32_t>(push)) % 1000);
        data.train->Read(indices, &batch);
        // Twice the same gradient: once to where the CPU's encoder finds it.
        GradientBuffer on_host;
        on_host.host.resize(layout.params());
        REQUIRE(backend->Gradient(batch, {parameters, 1}, absl::MakeSpan(on_host.host)).ok());
        REQUIRE(backend->GradientInto(batch, {parameters, 1}, on_device->get()).ok());
        const auto expected = cpu.Encode(&on_host, Plan(weights, biases, push, flush));
        // Every other push to memory as shared memory's transport gives it, pinned.
        const bool in_transport = push % 2 == 0;
        EncodePlan plan = Plan(weights, biases, push, flush);
        transport.used = 0;
        if (in_transport) plan.memory = [&](uint32_t, size_t bytes) { return transport.Next(bytes); };
        const auto got = (*gpu)->Encode(on_device->get(), plan);
        REQUIRE(got.ok());
        for (uint32_t shard = 0; shard < layout.shard_count(); ++shard) {
          INFO("shard " << shard);
          REQUIRE(got->shards[shard].codec == expected->shards[shard].codec);
          REQUIRE(got->shards[shard].exponent == expected->shards[shard].exponent);
          CHECK(got->shards[shard].lost == expected->shards[shard].lost);
          REQUIRE(got->shards[shard].payload.ToString() == expected->shards[shard].payload.ToString());
        }
        for (uint32_t shard = 0; in_transport && shard < layout.shard_count(); ++shard) {
          // Where it is sent from, but for what the host puts before it (int8's scales).
          const ByteChain::Piece& body = got->shards[shard].payload.pieces().back();
          CHECK(body.data >= transport.begin);
          CHECK(body.data + body.size <= transport.begin + kTransportBytes);
        }
        CHECK(got->norm == Approx(expected->norm).epsilon(1e-6));
        CHECK(got->stats.saturated == expected->stats.saturated);
      }
    }
  }
}

}  // namespace recon
