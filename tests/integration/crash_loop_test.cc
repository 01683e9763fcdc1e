// A real server, killed with SIGKILL again and again while pushes are under way, and an oracle that knows
// which of them were acknowledged.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mutex.h"
#include "common/base/sleep.h"
#include "common/rpc/grpc_transport.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "common/tensor/param_layout.h"
#include "tests/integration/process_job.h"
#include "worker/comm/frames.h"
#include "worker/comm/param_client.h"

namespace recon {
namespace {

// 50 kills take half a minute; RECON_CRASH_ROUNDS asks for more. Sanitizers are for the code, not for the
// odds.
int Rounds() {
#if defined(__SANITIZE_ADDRESS__)
  constexpr int kRounds = 12;
#else
  constexpr int kRounds = 50;
#endif
  const char* text = std::getenv("RECON_CRASH_ROUNDS");
  return text == nullptr ? kRounds : std::atoi(text);
}

struct Mode {
  std::string durability;
  std::string sync;
  // A synchronous step of several workers would be their mean, and steps of those who are dead none at all.
  int workers;
};

ModelSpec TwoTensors() {
  ModelSpec model;
  model.set_name("two");
  for (const char* name : {"a", "b"}) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name(name);
    tensor->set_group(name);
    tensor->add_shape(40'000);
  }
  return model;
}

// A worker that pushes known whole numbers and holds on to each push until it is acknowledged.
class Pusher {
 public:
  Pusher(std::string name, std::string address) : name_(std::move(name)), address_(std::move(address)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Pusher() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  uint64_t acknowledged() const { return acknowledged_.load(); }
  // Of the pushes that were acknowledged; call it after Stop().
  double sum() const { return sum_; }
  const std::string& error() const { return error_; }

 private:
  static float ValueOf(uint64_t step) { return static_cast<float>(1 + step % 7); }

  void Run() {
    const auto channel = *ConnectTo(address_, {});
    const Caller caller = Caller::Worker(secret_);
    ControlClient control(channel, absl::Seconds(2), caller);
    GrpcTransport transport({channel}, std::make_shared<SendWindow>(1, 1), caller);
    ParamClient params(&transport);
    uint64_t step = 0;
    // A push that was sent is sent until it is acknowledged: else nobody knew whether it counts.
    const absl::Time give_up = Now() + absl::Minutes(10);
    while ((!stop_ || uncertain_) && Now() < give_up) {
      const auto reply = Register(&control, step);
      if (!reply.ok()) {
        if (absl::IsInvalidArgument(reply.status())) error_ = std::string(reply.status().message());
        Sleep(absl::Milliseconds(10));
        continue;
      }
      identity_.set_worker(reply->worker());
      identity_.set_incarnation(secret_.incarnation().value());
      identity_.set_cluster_epoch(reply->cluster_epoch());
      if (!reply->has_values() && !SendInitialValues(&control, &params)) continue;
      uncertain_ = true;
      while (uncertain_ && Push(&params, step)) {
        sum_ += ValueOf(step);
        acknowledged_ = ++step;
        uncertain_ = !stop_;
      }
    }
  }

  absl::StatusOr<RegisterReply> Register(ControlClient* control, uint64_t step) {
    RegisterRequest request;
    request.set_name(name_);
    request.set_incarnation(secret_.incarnation().value());
    *request.mutable_model() = TwoTensors();
    request.set_train_samples(1000);
    request.set_test_samples(10);
    request.set_next_step(step);
    return control->Register(request);
  }

  bool SendInitialValues(ControlClient* control, ParamClient* params) {
    AcquireRequest request;
    *request.mutable_identity() = identity_;
    const auto reply = control->Acquire(request);
    if (!reply.ok() || !reply->needs_initial_values()) return false;
    return Call(params, FrameKind::kInit, 0, 0);
  }

  bool Push(ParamClient* params, uint64_t step) {
    return Call(params, FrameKind::kPush, step, ValueOf(step));
  }

  bool Call(ParamClient* params, FrameKind kind, uint64_t step, float value) {
    std::vector<EncodedShard> shards = PlainShards(layout_, std::vector<float>(layout_.params(), value));
    for (EncodedShard& shard : shards) shard.version = 0;
    FrameHeader header;
    header.step = step;
    header.samples = 1;
    const auto replies =
        params->CallAll(kind, FramesFor(layout_, header, identity_, shards), absl::Seconds(2));
    return std::all_of(replies.begin(), replies.end(), [](const auto& reply) { return reply.ok(); });
  }

  const std::string name_;
  const std::string address_;
  const WorkerSecret secret_ = WorkerSecret::Draw();
  const ParamLayout layout_ = *ParamLayout::Create(TwoTensors());
  WorkerIdentity identity_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> acknowledged_{0};
  bool uncertain_ = false;  // Whether the push under way has been applied.
  double sum_ = 0;
  std::string error_;
  std::thread thread_;
};

// The one value of all parameters in the newest snapshot.
double ValueOfNewest(const std::string& directory) {
  const auto store = *LocalStore::Open(directory, /*writer=*/false);
  const SnapshotReader reader(store.get());
  const std::vector<Generation> generations = *reader.List();
  const Manifest manifest = *reader.ReadManifest(generations.back());
  const ParamLayout layout = *ParamLayout::Create(manifest.model());
  double value = 0;
  for (uint32_t shard = 0; shard < layout.shard_count(); ++shard) {
    const std::vector<PageRef> pages = *reader.ReadChunk(manifest, static_cast<int>(shard));
    if (shard == 0) value = pages[0].data()[0];
    for (uint32_t i = 0; i < layout.shards()[shard].size; ++i) {
      REQUIRE(pages[i / kPageParams].data()[i % kPageParams] == value);
    }
  }
  return value;
}

}  // namespace

TEST_CASE("SIGKILL under load, again and again: no acknowledged push is lost, none is applied twice",
          "[crash]") {
  for (const Mode& mode : {Mode{"log", "asp", 2}, Mode{"sync", "asp", 2}, Mode{"log", "bsp", 1}}) {
    INFO(mode.durability << " " << mode.sync);
    ProcessJob job({"--durability", mode.durability, "--optimizer", "sgd", "--learning-rate", "1", "--sync",
                    mode.sync, "--snapshot-interval", "150ms", "--snapshot-keep", "2", "--evict-after", "60s",
                    "--suspect-after", "50s"});
    REQUIRE(job.StartServer());
    std::vector<std::unique_ptr<Pusher>> pushers;
    for (int i = 0; i < mode.workers; ++i) {
      pushers.push_back(std::make_unique<Pusher>(absl::StrCat("worker", i), job.address()));
    }
    const auto acknowledged = [&] {
      uint64_t sum = 0;
      for (const auto& pusher : pushers) sum += pusher->acknowledged();
      return sum;
    };
    std::mt19937_64 random(20261121);
    uint64_t before = 0;
    for (int round = 0; round < Rounds(); ++round) {
      CAPTURE(round);
      REQUIRE(Eventually([&] { return acknowledged() > before + 4; }));
      Sleep(absl::Milliseconds(random() % 60));
      before = acknowledged();
      job.server().Kill();
      REQUIRE(job.StartServer());
    }
    double sum = 0;
    for (const auto& pusher : pushers) {
      pusher->Stop();
      CHECK(pusher->error().empty());
      sum += pusher->sum();
    }
    job.server().Signal(SIGTERM);
    REQUIRE(job.server().Wait(absl::Seconds(30)) == 0);
    CHECK(ValueOfNewest(job.snapshots()) == -sum);
    CHECK_FALSE(absl::StrContains(job.ServerLog(), "DAMAGED"));
    CHECK(absl::StrContains(job.ServerLog(), "replayed "));
  }
}

#if defined(RECON_FAULT_POINTS)
TEST_CASE("dying between any two steps of the log loses nothing that was acknowledged", "[crash]") {
  for (const char* point : {"log.before_segment", "log.before_head", "log.before_directory_sync",
                            "log.before_write", "log.before_sync", "log.before_acknowledging", "log.trim"}) {
    for (const int occurrence : {1, 2}) {
      INFO(point << ", occurrence " << occurrence);
      ProcessJob job({"--durability", "sync", "--optimizer", "sgd", "--learning-rate", "1",
                      "--snapshot-interval", "50ms", "--evict-after", "60s", "--suspect-after", "50s"});
      // Of this size, so that there are several segments in a short time.
      const std::string small = "RECON_LOG_SEGMENT_BYTES=1000000";
      const bool at_start =
          !job.StartServer({absl::StrCat("RECON_FAULT=", point, ":", occurrence, "=kill"), small});
      if (at_start) REQUIRE(job.StartServer({small}));
      Pusher one("one", job.address());
      if (!at_start) {
        REQUIRE(job.server().Wait(absl::Seconds(60)) == 128 + SIGKILL);
        REQUIRE(job.StartServer({small}));
      }
      const uint64_t before = one.acknowledged();
      REQUIRE(Eventually([&] { return one.acknowledged() > before + 5; }));
      one.Stop();
      job.server().Signal(SIGTERM);
      REQUIRE(job.server().Wait(absl::Seconds(30)) == 0);
      CHECK(ValueOfNewest(job.snapshots()) == -one.sum());
      CHECK_FALSE(absl::StrContains(job.ServerLog(), "DAMAGED"));
    }
  }
}

TEST_CASE("a full disk or an I/O error under the log: the server says so and ends; nothing is lost",
          "[crash]") {
  for (const char* fault :
       {"log.before_write:3=enospc", "log.before_sync:4=eio", "log.before_segment:2=enospc"}) {
    INFO(fault);
    ProcessJob job({"--durability", "sync", "--optimizer", "sgd", "--learning-rate", "1"});
    const std::string small = "RECON_LOG_SEGMENT_BYTES=1000000";
    REQUIRE(job.StartServer({absl::StrCat("RECON_FAULT=", fault), small}));
    Pusher one("one", job.address());
    REQUIRE(job.server().Wait(absl::Seconds(60)) == 1);
    CHECK(absl::StrContains(job.ServerLog(), "the push log has failed"));
    REQUIRE(job.StartServer({small}));
    const uint64_t before = one.acknowledged();
    REQUIRE(Eventually([&] { return one.acknowledged() > before + 5; }));
    one.Stop();
    job.server().Signal(SIGTERM);
    REQUIRE(job.server().Wait(absl::Seconds(30)) == 0);
    CHECK(ValueOfNewest(job.snapshots()) == -one.sum());
  }
}
#endif

}  // namespace recon
