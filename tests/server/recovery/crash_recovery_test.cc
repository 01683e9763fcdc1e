// A ParamServer with log and snapshots on a file system of the test's own, which is copied at any moment:
// what the death of the process, or a power failure, leaves then.

#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/storage/local_store.h"
#include "server/durability/recovery.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/snapshot_service.h"
#include "tests/server/data_plane/push_frames.h"
#include "tests/server/durability/sample_state.h"
#include "tests/support/faulty_file_system.h"

namespace recon {
namespace {

constexpr uint32_t kWorkers = 2;
constexpr uint64_t kStepsARound = 12;
// ThreadSanitizer looks for races, and is slow with large blocks of memory.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kRounds = 3, kSide = 40, kSegmentBytes = 64 << 10;
#else
constexpr uint64_t kRounds = 8, kSide = 300, kSegmentBytes = 4 << 20;
#endif

// Even, so that the mean of two workers' is a whole number: sums are exact in FP32, in any order.
float ValueOf(uint32_t worker, uint64_t step) {
  return static_cast<float>(2 * ((step * 7 + worker * 3) % 13));
}

// What the workers know: which pushes were acknowledged.
class Oracle {
 public:
  void Acknowledge(uint32_t worker, uint64_t step) {
    MutexLock lock(&mu_);
    acknowledged_.insert({worker, step});
  }
  std::set<std::pair<uint32_t, uint64_t>> acknowledged() const {
    MutexLock lock(&mu_);
    return acknowledged_;
  }

 private:
  mutable Mutex mu_;
  std::set<std::pair<uint32_t, uint64_t>> acknowledged_;
};

// One life of a server on `files`.
class Life {
 public:
  Life(FaultyFileSystem* files, int bound, bool sync, uint64_t cluster_epoch,
       const CorrectionRules& correction = {})
      : files_(files), bound_(bound), store_(*LocalStore::Open("/snapshots", /*writer=*/true, files)) {
    ParamServer::Options options = ParamServerHarness::MakeOptions(bound, OptimizerKind::kSgd, 1, 2);
    options.rules.cluster_epoch = cluster_epoch;
    options.rules.correction = correction;
    harness_ = std::make_unique<ParamServerHarness>(options);
    SnapshotService::Options snapshot_options;
    snapshot_options.writer.keep.last = 2;
    service_ = std::make_unique<SnapshotService>(snapshot_options, &server(), store_.get(), &metrics_);
    const SnapshotReader reader(store_.get());
    const auto restored = LoadNewest(reader, [&](const Manifest& manifest) {
      if (server().layout() == nullptr) RECON_RETURN_IF_ERROR(server().DefineModel(manifest.model()));
      return server().Restore(reader, manifest);
    });
    REQUIRE(restored.ok());
    if (*restored) {
      service_->NoteRestored(**restored);
      const auto end = ReplayLog(files, "/log", **restored, &server(), &control_);
      INFO(end.status());
      REQUIRE(end.ok());
      CHECK(end->records_lost == 0);
      replayed_ = end->records;
      if (NeedsSnapshotFirst(*end, sync, server().position().sequence)) Snapshot();
    } else {
      harness_->Define(SampleModel(kSide), std::vector<float>(kSide * kSide + 30, 0.0f));
      Snapshot();
    }
    PushLog::Options log_options;
    log_options.directory = "/log";
    log_options.sync = sync;
    log_options.segment_bytes = kSegmentBytes;
    server().log()->Set(*PushLog::Open(log_options, files, options.rules, server().position().sequence + 1));
  }

  ParamServer& server() { return harness_->server(); }
  uint64_t replayed() const { return replayed_; }

  void Snapshot() {
    service_->Take("test", [](const absl::StatusOr<SnapshotReply>&) {});
    service_->Flush();
  }
  void BeginSnapshot() {
    service_->Take("test", [](const absl::StatusOr<SnapshotReply>&) {});
  }

  // Sends every push up to `end` that was not acknowledged; again those that were, if `all`.
  void Push(Oracle* oracle, uint64_t end, bool all) {
    const auto before = oracle->acknowledged();
    for (uint32_t worker = 1; worker <= kWorkers; ++worker) {
      uint64_t next = 0;
      while (before.count({worker, next}) > 0) ++next;
      harness_->Join(worker, next);
    }
    for (uint64_t step = 0; step < end; ++step) {
      for (uint32_t worker = 1; worker <= kWorkers; ++worker) {
        if (all || before.count({worker, step}) == 0) PushOne(oracle, worker, step);
      }
    }
  }
  // Steps [begin, end) of all workers, whatever was acknowledged.
  void PushFrom(Oracle* oracle, uint64_t begin, uint64_t end) {
    for (uint32_t worker = 1; worker <= kWorkers; ++worker) harness_->Join(worker, begin);
    for (uint64_t step = begin; step < end; ++step) {
      for (uint32_t worker = 1; worker <= kWorkers; ++worker) PushOne(oracle, worker, step);
    }
  }
  // From a worker that such a call has made a member.
  // `version`: of the parameters that it says it was computed from; 0: unknown.
  void PushOne(Oracle* oracle, uint32_t worker, uint64_t step, uint64_t version = 0) {
    Frame frame = harness_->PushFrame(worker, step, ValueOf(worker, step));
    for (PartHeader& part : frame.parts) part.version = version;
    // The first worker's replies are written over its requests: these must be in the log by then.
    if (worker == 1) {
      frame.header.reply_codec = static_cast<uint8_t>(CodecId::kFp16);
      for (size_t i = 0; i < frame.parts.size(); ++i) harness_->EncodePart(&frame, i, CodecId::kFp16);
    }
    sent_.push_back(std::make_shared<Notification>());
    server().Handle(
        EncodeFrame(std::move(frame)), Now(), [] {},
        [oracle, worker, step, event = sent_.back()](const absl::StatusOr<ByteChain>& reply) {
          if (reply.ok()) oracle->Acknowledge(worker, step);
          event->Notify();
        },
        {ParamServerHarness::IncarnationOf(worker), nullptr, /*over_request=*/worker == 1,
         /*untouched=*/worker == 2});
  }
  void WaitForReplies() {
    for (const auto& event : sent_) event->WaitForNotification();
    sent_.clear();
  }

  void ChangeRules(int bound, const CorrectionRules& correction, uint64_t cluster_epoch) {
    ApplyRules rules = ParamServerHarness::MakeOptions(bound, OptimizerKind::kSgd, 1, 2).rules;
    rules.correction = correction;
    rules.cluster_epoch = cluster_epoch;
    const absl::Status changed = harness_->ChangeRules(rules);
    INFO(changed);
    REQUIRE(changed.ok());
  }

  // The one value that all parameters have.
  float Value() {
    const std::vector<float> values = harness_->Values(1);
    for (const float value : values) REQUIRE(value == values[0]);
    return values[0];
  }
  float Expected(uint64_t end) const {
    float sum = 0;
    for (uint64_t step = 0; step < end; ++step) {
      for (uint32_t worker = 1; worker <= kWorkers; ++worker) {
        sum += ValueOf(worker, step) / (bound_ == 0 ? kWorkers : 1);
      }
    }
    return -sum;
  }

  std::string Root() {
    std::string root;
    service_->Take("root", [&](const absl::StatusOr<SnapshotReply>& reply) { root = reply->state_root(); });
    service_->Flush();
    return root;
  }

  // Every push adds one value to all parameters: a snapshot in which they differ has part of one.
  static void CheckSnapshots(FaultyFileSystem* files) {
    const auto store = *LocalStore::Open("/snapshots", /*writer=*/false, files);
    const SnapshotReader reader(store.get());
    const std::vector<Generation> generations = *reader.List();
    for (const Generation generation : generations) {
      const auto manifest = reader.ReadManifest(generation);
      REQUIRE(manifest.ok());
      const ParamLayout layout = *ParamLayout::Create(manifest->model());
      const std::vector<PageRef> first = *reader.ReadChunk(*manifest, 0);
      for (int chunk = 0; chunk < manifest->chunks_size(); ++chunk) {
        const std::vector<PageRef> pages = *reader.ReadChunk(*manifest, chunk);
        for (size_t page = 0; page < pages.size(); ++page) {
          const uint32_t size =
              layout.shards()[static_cast<size_t>(chunk)].PageSize(static_cast<uint32_t>(page));
          for (uint32_t i = 0; i < size; ++i) REQUIRE(pages[page].data()[i] == first[0].data()[0]);
        }
      }
    }
  }

 private:
  FaultyFileSystem* const files_;
  const int bound_;
  Metrics metrics_;
  std::unique_ptr<LocalStore> store_;
  std::unique_ptr<ParamServerHarness> harness_;
  std::unique_ptr<SnapshotService> service_;
  std::vector<std::shared_ptr<Notification>> sent_;
  uint64_t replayed_ = 0;
  ControlState control_;
};

}  // namespace

TEST_CASE("killed at any moment, again and again: nothing acknowledged is lost, nothing is applied twice",
          "[crash]") {
  for (const int bound : {StalenessGate::kUnlimited, 2, 0}) {
    for (const bool power : {false, true}) {
      std::mt19937_64 random(static_cast<uint64_t>(bound * 2 + 5 + (power ? 100 : 0)));
      auto files = std::make_unique<FaultyFileSystem>();
      Oracle oracle;
      uint64_t replayed = 0;
      for (uint64_t round = 1; round <= kRounds; ++round) {
        CAPTURE(bound, power, round);
        const uint64_t end = round * kStepsARound;
        std::unique_ptr<FaultyFileSystem> image;
        std::unique_ptr<Oracle> known = std::make_unique<Oracle>();
        {
          Life life(files.get(), bound, /*sync=*/power, round);
          replayed += life.replayed();
          life.Push(&oracle, end, /*all=*/round % 3 == 0);
          if (round % 2 == 0) life.BeginSnapshot();
          Sleep(absl::Microseconds(random() % 20'000));
          // First what was acknowledged, then the image: it must have all of that.
          for (const auto& [worker, step] : oracle.acknowledged()) known->Acknowledge(worker, step);
          image = power ? files->AfterPowerFailure(random(), 512) : files->Copy();
          life.WaitForReplies();
          CHECK(life.Value() == life.Expected(end));
        }
        // The image lives on, with workers that only know what they were told until then.
        Life next(image.get(), bound, /*sync=*/power, 1000 + round);
        next.Push(known.get(), end, /*all=*/true);
        next.WaitForReplies();
        CHECK(known->acknowledged().size() == end * kWorkers);
        CHECK(next.Value() == next.Expected(end));
        Life::CheckSnapshots(image.get());
      }
      CHECK(replayed > 0);
    }
  }
}

TEST_CASE("replay makes the same bits as the life it repeats", "[crash]") {
  for (const int bound : {StalenessGate::kUnlimited, 0}) {
    FaultyFileSystem files;
    Oracle oracle;
    std::unique_ptr<FaultyFileSystem> image;
    std::string root;
    {
      Life life(&files, bound, false, 1);
      life.Push(&oracle, 20, false);
      life.WaitForReplies();
      image = files.Copy();
      root = life.Root();
    }
    Life again(image.get(), bound, false, 2);
    CHECK(again.replayed() >= 40);
    CHECK(again.Root() == root);
  }
}

TEST_CASE("a restarted server knows the processes whose pushes its log or snapshot has", "[crash]") {
  for (const bool in_snapshot : {false, true}) {
    FaultyFileSystem files;
    Oracle oracle;
    {
      Life life(&files, StalenessGate::kUnlimited, false, 1);
      life.PushFrom(&oracle, 0, 2);
      life.WaitForReplies();
      if (in_snapshot) life.Snapshot();
    }
    Life again(&files, StalenessGate::kUnlimited, false, 2);
    CHECK(again.server().members()->Knows(ParamServerHarness::IncarnationOf(1)));
    CHECK_FALSE(again.server().members()->Knows(Incarnation(4711)));
  }
}

// Staleness of a worker's push is that of the version it names: 0 here, which says nothing of it, or 1.
TEST_CASE("rules that change between pushes are replayed where they changed", "[crash]") {
  const int bounds[] = {StalenessGate::kUnlimited, 0, 2, 0, StalenessGate::kUnlimited};
  FaultyFileSystem files;
  Oracle oracle;
  std::unique_ptr<FaultyFileSystem> image;
  std::string root;
  float expected = 0;
  {
    Life life(&files, bounds[0], false, 1);
    for (uint64_t phase = 0; phase < 5; ++phase) {
      CAPTURE(phase);
      if (phase > 0) {
        // In a synchronous phase, that is of a step that only one has begun: it counts in the next.
        life.PushOne(&oracle, 1, 10 * phase);
        if (bounds[phase - 1] != 0) life.WaitForReplies();
        CorrectionRules correction;
        if (phase == 2) correction.kind = StalenessCorrection::kInverse;
        life.ChangeRules(bounds[phase], correction, 10 + phase);
        life.WaitForReplies();
        if (phase == 3) life.Snapshot();
      }
      const uint64_t first = phase == 0 ? 0 : 10 * phase + 1;
      life.PushFrom(&oracle, first, 10 * (phase + 1));
      life.WaitForReplies();
    }
    const auto acknowledged = oracle.acknowledged();
    for (const auto& [worker, step] : acknowledged) {
      // The first of a phase is the last of the one before.
      const int bound = bounds[step == 0 ? 0 : (step - 1) / 10];
      expected -= ValueOf(worker, step) / (bound == 0 ? kWorkers : 1);
    }
    CHECK(acknowledged.size() == 2 * 46 + 2);
    CHECK(life.Value() == expected);
    image = files.Copy();
    root = life.Root();
  }
  Life again(image.get(), bounds[4], false, 20);
  CHECK(again.replayed() > 0);
  CHECK(again.Root() == root);
}

namespace {

// What all parameters are after two lives of stale gradients, and a state root that every way to replay them
// has.
float AfterStalePushes(const CorrectionRules& correction) {
  constexpr uint64_t kSteps = 40;
  FaultyFileSystem files;
  Oracle oracle;
  std::unique_ptr<FaultyFileSystem> image;
  std::string root;
  float value = 0;
  for (const uint64_t first : {uint64_t{0}, kSteps}) {
    Life life(&files, StalenessGate::kUnlimited, false, 1 + first, correction);
    uint64_t version = first * kWorkers;
    life.PushFrom(&oracle, first, first + 1);
    version += kWorkers;
    for (uint64_t step = first + 1; step < first + kSteps; ++step) {
      if (step % 20 == 0) life.Snapshot();
      for (uint32_t worker = 1; worker <= kWorkers; ++worker) {
        // From 0 to 9 updates ago: of those that are kept, of those that are not, and of those before the
        // cut.
        life.PushOne(&oracle, worker, step, version - std::min(version - 1, (step + worker) % 10));
        ++version;
      }
    }
    life.WaitForReplies();
    value = life.Value();
    image = files.Copy();
    root = life.Root();
  }
  CHECK(oracle.acknowledged().size() == 2 * kSteps * kWorkers);
  const std::string newest = "/snapshots/manifests/MANIFEST-0000000000000004";
  REQUIRE(image->Content(newest) != "");
  for (const bool damaged : {false, true}) {
    // Whoever replays may have an epoch of its own, that of the log (as time travel has), and no correction.
    for (const uint64_t cluster_epoch : {uint64_t{1}, 1 + kSteps, uint64_t{99}}) {
      CAPTURE(damaged, cluster_epoch);
      const auto copy = image->Copy();
      if (damaged) copy->SetContent(newest, copy->Content(newest).substr(1));
      Life life(copy.get(), StalenessGate::kUnlimited, false, cluster_epoch);
      CHECK(life.replayed() >= (damaged ? kSteps : kSteps / 2 - 1) * kWorkers);
      life.PushFrom(&oracle, 2 * kSteps, 2 * kSteps);
      CHECK(life.Value() == value);
      CHECK(life.Root() == root);
    }
  }
  return value;
}

}  // namespace

TEST_CASE("gradients are compared with the same versions again, whoever replays, and from whichever snapshot",
          "[crash]") {
  const float none = AfterStalePushes({});
  const float inverse = AfterStalePushes({StalenessCorrection::kInverse, 0});
  const float gap_aware = AfterStalePushes({StalenessCorrection::kGapAware, 6});
  const float compensated = AfterStalePushes({StalenessCorrection::kDelayCompensated, 6});
  // None is another, nor what it would be if nothing were found to compare with.
  CHECK(std::set<float>{none, inverse, gap_aware, compensated}.size() == 4);
}

TEST_CASE("a damaged newest snapshot: the one before and the log lose nothing", "[crash]") {
  FaultyFileSystem files;
  Oracle oracle;
  {
    Life life(&files, 0, false, 1);
    life.Push(&oracle, 10, false);
    life.WaitForReplies();
    life.Snapshot();
    life.Push(&oracle, 20, false);
    life.WaitForReplies();
    life.Snapshot();
    life.Push(&oracle, 30, false);
    life.WaitForReplies();
  }
  const std::string newest = "/snapshots/manifests/MANIFEST-0000000000000003";
  std::string content = files.Content(newest);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
  files.SetContent(newest, content);
  Life life(&files, 0, false, 2);
  CHECK(life.replayed() >= 60);
  life.Push(&oracle, 31, false);
  life.WaitForReplies();
  CHECK(life.Value() == life.Expected(31));
}

TEST_CASE("what a failed sync left in memory only is made safe before more is acknowledged", "[crash]") {
  for (int call = 1; call <= 12; ++call) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      CAPTURE(call, seed);
      FaultyFileSystem files;
      Oracle oracle;
      {
        Life life(&files, StalenessGate::kUnlimited, /*sync=*/true, 1);
        files.FailCall(call, FaultyFileSystem::Fault::kIoError, /*for_good=*/false);
        life.Push(&oracle, 5, false);
        life.WaitForReplies();
      }
      files.FailNothing();
      {
        // It sees writes that the disk never got.
        Life life(&files, StalenessGate::kUnlimited, /*sync=*/true, 2);
        life.Push(&oracle, 8, false);
        life.WaitForReplies();
        CHECK(oracle.acknowledged().size() == 8 * kWorkers);
      }
      const auto image = files.AfterPowerFailure(seed, 512);
      Life life(image.get(), StalenessGate::kUnlimited, /*sync=*/true, 3);
      life.Push(&oracle, 9, /*all=*/false);
      life.WaitForReplies();
      CHECK(life.Value() == life.Expected(9));
    }
  }
}

TEST_CASE("a synchronous state without its log: pushes are safe again at once", "[crash]") {
  FaultyFileSystem files;
  Oracle oracle;
  {
    Life life(&files, 0, false, 1);
    life.Push(&oracle, 10, false);
    life.WaitForReplies();
    life.PushOne(&oracle, 1, 10);  // The snapshot needs this record: the step is not closed.
    life.Snapshot();
  }
  const std::vector<std::string> segments = *files.List("/log");
  for (const std::string& name : segments) REQUIRE(files.Remove("/log/" + name).ok());
  {
    Life life(&files, 0, false, 2);
    life.Push(&oracle, 20, false);
    life.WaitForReplies();
  }
  Life life(&files, 0, false, 3);
  CHECK(life.replayed() >= 20);
  life.Push(&oracle, 20, false);
  CHECK(life.Value() == life.Expected(20));
}

TEST_CASE("a log that fails: pushes are refused, what was acknowledged is there afterwards", "[crash]") {
  for (const int bound : {StalenessGate::kUnlimited, 0}) {
    for (int call = 1; call <= 12; ++call) {
      CAPTURE(bound, call);
      FaultyFileSystem files;
      Oracle oracle;
      {
        Life life(&files, bound, true, 1);
        life.Push(&oracle, 5, false);
        life.WaitForReplies();
        files.FailCall(call, FaultyFileSystem::Fault::kFull, /*for_good=*/true);
        life.Push(&oracle, 10, false);
        life.WaitForReplies();
        if (oracle.acknowledged().size() < 10 * kWorkers) CHECK_FALSE(life.server().log()->status().ok());
      }
      files.FailNothing();
      Life life(&files, bound, true, 2);
      life.Push(&oracle, 10, false);
      life.WaitForReplies();
      CHECK(oracle.acknowledged().size() == 10 * kWorkers);
      CHECK(life.Value() == life.Expected(10));
    }
  }
}

}  // namespace recon
