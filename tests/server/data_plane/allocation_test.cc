// What a push takes from the heap, once pools are filled: a program of its own, because it counts every
// operator new there is in it. (gRPC allocates for itself; it has no part in this.)

#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/shm/shm_listener.h"
#include "common/shm/shm_transport.h"
#include "common/storage/file_system.h"
#include "server/durability/push_log.h"
#include "tests/server/data_plane/push_frames.h"
#include "tests/support/count_allocations.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

constexpr uint32_t kShards = 6;
constexpr uint32_t kShardsInFrame = 3;
constexpr uint64_t kSteps = 40;
constexpr uint32_t kWorker = 1;

ModelSpec Model() {
  ModelSpec model;
  model.set_name("six shards");
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("weights");
  tensor->add_shape(kShards * kShardParamsMax);
  return model;
}

struct Answers {
  void Count(const absl::StatusOr<ByteChain>& reply) {
    if (!reply.ok()) errors.fetch_add(1);
    all.fetch_add(1);
  }
  std::atomic<uint64_t> all{0}, errors{0};
};

// Sends a request and counts its answer.
using Send = std::function<void(const ByteChain& request, Answers* answers)>;

// Frames of kSteps pushes with gradients in `memory`, in the order in which they are pushed.
std::vector<ByteChain> Pushes(ParamServerHarness* harness, uint64_t first_step, CodecId reply,
                              const std::function<std::shared_ptr<uint8_t[]>(size_t)>& memory) {
  const size_t bytes = EncodedBytes(CodecId::kFp16, kShardParamsMax);
  const std::vector<float> values(kShardParamsMax, 1e-3f);
  const Frame all = harness->MakeFrame(FrameKind::kPushPull, WorkerId(kWorker),
                                       ParamServerHarness::IncarnationOf(kWorker), 0, {});
  std::vector<ByteChain> frames;
  for (uint64_t step = first_step; step < first_step + kSteps; ++step) {
    for (uint32_t first = 0; first < kShards; first += kShardsInFrame) {
      Frame frame;
      frame.header = all.header;
      frame.header.step = step;
      frame.header.reply_codec = static_cast<uint8_t>(reply);
      for (uint32_t i = first; i < first + kShardsInFrame; ++i) {
        frame.parts.push_back(all.parts[i]);
        frame.parts.back().codec = static_cast<uint8_t>(CodecId::kFp16);
        const std::shared_ptr<uint8_t[]> gradient =
            memory(bytes);  // Of its own: a reply may be written over it.
        Encode(CodecId::kFp16, values.data(), values.size(), gradient.get());
        frame.payloads.emplace_back().Append(gradient.get(), bytes, gradient);
      }
      frames.push_back(EncodeFrame(std::move(frame)));
    }
  }
  return frames;
}

// The fewest allocations of a round of pushes, two of them under way; 0 ends it. Pools grow with the most
// that has been under way at a time, which the first rounds need not reach.
uint64_t FewestAllocations(ParamServerHarness* harness, CodecId reply, const Send& send,
                           const std::function<std::shared_ptr<uint8_t[]>(size_t)>& memory) {
  uint64_t fewest = UINT64_MAX;
  for (uint64_t round = 0; round < 50 && fewest > 0; ++round) {
    const std::vector<ByteChain> frames = Pushes(harness, round * kSteps, reply, memory);
    Answers answers;
    const uint64_t before = CountedAllocations();
    for (size_t i = 0; i < frames.size(); ++i) {
      while (answers.all.load() + 2 * kShards / kShardsInFrame <= i) std::this_thread::yield();
      send(frames[i], &answers);
    }
    while (answers.all.load() < frames.size()) std::this_thread::yield();
    fewest = std::min(fewest, CountedAllocations() - before);
    REQUIRE(answers.errors.load() == 0);
  }
  return fewest;
}

}  // namespace

TEST_CASE("a pool keeps so much, and gives the rest back to the heap", "[allocation]") {
  constexpr size_t kKept = kPooledBytesKept / kPooledBytesMax;
  std::vector<void*> blocks(2 * kKept);
  for (int round = 0; round < 2; ++round) {
    for (void*& block : blocks) block = TakePooled(kPooledBytesMax);
    for (void* block : blocks) GivePooled(block, kPooledBytesMax);
    const uint64_t before = CountedAllocations();
    for (void*& block : blocks) block = TakePooled(kPooledBytesMax);
    CHECK(CountedAllocations() - before == kKept);
    for (void* block : blocks) GivePooled(block, kPooledBytesMax);
  }
}

TEST_CASE("a push allocates nothing, on its way to the server and back", "[allocation]") {
  ParamServerHarness harness(StalenessGate::kUnlimited, OptimizerKind::kMomentum, 1e-3);
  harness.Define(Model(), std::vector<float>(kShards * kShardParamsMax));
  harness.Join(kWorker);
  const TempDir directory;
  if (GENERATE(false, true)) {
    INFO("with a push log");
    PushLog::Options options;
    options.directory = directory.path() + "/log";
    harness.server().log()->Set(
        *PushLog::Open(options, FileSystem::Local(), ApplyRules(), harness.server().position().sequence + 1));
    harness.server().log()->NoteSnapshot(1);
  }

  SECTION("through shared memory: both ends") {
    const std::string name = absl::StrCat("recon-allocation-", getpid());
    const auto listener = *ShmListener::Start(name, [&](const ByteChain& request, TakenCallback taken,
                                                        Transport::Done done, RequestContext context) {
      context.sender = ParamServerHarness::IncarnationOf(kWorker);
      harness.server().Handle(request, Now(), std::move(taken), std::move(done), std::move(context));
    });
    ShmTransport transport(name, nullptr);
    REQUIRE(transport.Connected());
    const auto send = [&](const ByteChain& request, Answers* answers) {
      transport.Call(request, [answers](const absl::StatusOr<ByteChain>& reply) { answers->Count(reply); });
    };
    const auto memory = [&](size_t bytes) { return transport.RequestMemory(bytes); };
    CHECK(FewestAllocations(&harness, CodecId::kFp16, send, memory) == 0);
  }
  SECTION("handed over by a transport that lends the request's memory for the reply") {
    const auto send = [&](const ByteChain& request, Answers* answers) {
      const auto done = [answers](const absl::StatusOr<ByteChain>& reply) { answers->Count(reply); };
      harness.server().Handle(request, Now(), [] {}, done,
                              {ParamServerHarness::IncarnationOf(kWorker), nullptr, /*over_request=*/true});
    };
    const auto memory = [](size_t bytes) { return std::shared_ptr<uint8_t[]>(new uint8_t[bytes]); };
    CHECK(FewestAllocations(&harness, CodecId::kFp16, send, memory) == 0);
  }
  SECTION("with a reply of the pages themselves") {
    const auto send = [&](const ByteChain& request, Answers* answers) {
      const auto done = [answers](const absl::StatusOr<ByteChain>& reply) { answers->Count(reply); };
      harness.server().Handle(request, Now(), [] {}, done, {ParamServerHarness::IncarnationOf(kWorker)});
    };
    const auto memory = [](size_t bytes) { return std::shared_ptr<uint8_t[]>(new uint8_t[bytes]); };
    CHECK(FewestAllocations(&harness, CodecId::kFp32, send, memory) == 0);
  }
}

}  // namespace recon
