#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/snapshot/snapshot_reader.h"
#include "tests/server/cluster/simulated_worker.h"

namespace recon {

inline const WorkerId kOne(1);
inline const WorkerId kTwo(2);

// Three servers of one job, in which nothing breaks but what a test breaks, and workers that the test plays.
class SettledJob {
 public:
  explicit SettledJob(int bound) : head_(snapshots_.get(), &net_, bound) {}

  // The generation that a snapshot of this reason gets; as soon as all servers are there.
  uint64_t Snapshot(const std::string& reason) {
    absl::StatusOr<SnapshotReply> reply;
    REQUIRE(Becomes([&] {
      head_.With([&](HeadLife* head) { reply = head->TakeSnapshot(reason); });
      return reply.ok();
    }));
    return reply->generation();
  }
  Registered Register(WorkerId worker, uint64_t next_step) {
    absl::StatusOr<Registered> registered;
    REQUIRE(Becomes([&] {
      head_.With([&](HeadLife* head) {
        registered = head->Register(worker, ProcessOf(worker), next_step, /*resumes=*/false);
      });
      return registered.ok();
    }));
    return *registered;
  }
  // The worker's push, or what these servers get of it, is answered.
  void Push(WorkerId worker, uint64_t step, const std::vector<uint32_t>& servers = {0, 1, 2}) {
    const uint64_t epoch = Register(worker, step).cluster_epoch;
    REQUIRE(Becomes([&] {
      Exchange exchange;
      for (const uint32_t server : servers) {
        exchange.Send(
            nodes_, server,
            FrameFor(server, FrameKind::kPushPull, worker, ProcessOf(worker), epoch, step, /*value=*/1),
            ProcessOf(worker));
      }
      REQUIRE(exchange.Await(deadline_));
      for (const auto& [server, reply] : exchange.replies()) {
        if (!reply.ok()) return false;
      }
      return true;
    }));
    next_step_ = std::max(next_step_, step + 1);
  }
  // A push of 1 in the next step that the worker may begin.
  void PushNext(WorkerId worker) { Push(worker, Register(worker, next_step_).step); }
  // Waits until every shard has so many pushes of 1, and all servers are of one epoch.
  bool Has(float pushes) {
    const bool has = Becomes([&] {
      const std::optional<std::vector<float>> values = Pull();
      if (values) pulled_ = *values;
      return values &&
             std::all_of(values->begin(), values->end(), [pushes](float value) { return value == -pushes; });
    });
    if (!has) UNSCOPED_INFO(Describe());
    return has;
  }
  // The server's process dies, and another one begins without anything on its disk.
  void LoseDisk(uint32_t server) {
    if (server == 0) return head_.LoseDisk();
    (server == 1 ? second_ : third_).LoseDisk();
  }
  void Restart(uint32_t server) {
    if (server == 0) return head_.Restart();
    (server == 1 ? second_ : third_).Restart();
  }
  // So many messages pass, or no more come.
  void AwaitMessages(uint64_t count) {
    const uint64_t end = net_.messages() + count;
    for (int quiet = 0; quiet < 3 && net_.messages() < end;) {
      Pulse();
      if (!net_.AwaitMessages(net_.messages() + 1, absl::Milliseconds(10))) ++quiet;
    }
  }
  // How often the job has gone back.
  uint64_t history() { return head_.history(); }
  void RestartHead() { head_.Restart(); }
  void RestartAll() {
    second_.Restart();
    head_.Restart();
    third_.Restart();
  }
  // All of them have heard of it.
  void AwaitFrontier(uint64_t step) {
    REQUIRE(Becomes([&] {
      uint64_t of_head = 0;
      head_.With([&](HeadLife* head) { of_head = head->frontier(); });
      return of_head == step && second_.frontier() == step && third_.frontier() == step;
    }));
  }
  size_t Published() const {
    const auto store = *LocalStore::Open("/snapshots", /*writer=*/false, snapshots_.get());
    return SnapshotReader(store.get()).List()->size();
  }

 private:
  static Incarnation ProcessOf(WorkerId worker) { return Incarnation(10 + worker.value()); }
  // One value of each shard, of all servers; none if one of them does not answer.
  std::optional<std::vector<float>> Pull() {
    const WorkerId reader(99);
    absl::StatusOr<Registered> registered;
    head_.With([&](HeadLife* head) { registered = head->Register(reader, ProcessOf(reader), 0, false); });
    if (!registered.ok()) return std::nullopt;
    Exchange exchange;
    for (uint32_t server = 0; server < kClusterServers; ++server) {
      exchange.Send(
          nodes_, server,
          FrameFor(server, FrameKind::kPull, reader, ProcessOf(reader), registered->cluster_epoch, 0, 0),
          ProcessOf(reader));
    }
    if (!exchange.Await(deadline_)) return std::nullopt;
    head_.With([&](HeadLife* head) { head->Expel(reader); });
    std::vector<float> values;
    for (const auto& [server, reply] : exchange.replies()) {
      if (!reply.ok()) return std::nullopt;
      const Frame frame = *DecodeFrame(*reply);
      for (const ByteChain& payload : frame.payloads) {
        float value = 0;
        std::memcpy(&value, payload.ToString().data(), sizeof(value));
        values.push_back(value);
      }
    }
    return values.size() == ServersOfShards().size() ? std::make_optional(values) : std::nullopt;
  }
  // Asks again whenever something has happened.
  template <typename Condition>
  bool Becomes(Condition condition) {
    while (!condition()) {
      if (Now() > deadline_) return false;
      Pulse();
      net_.AwaitMessages(net_.messages() + 3, absl::Milliseconds(2));
    }
    return true;
  }

  std::string Describe() {
    std::string said;
    head_.With([&](HeadLife* head) {
      said =
          absl::StrCat("history ", head_.history(), ", values ", absl::StrJoin(pulled_, " "),
                       "\nhead: ", head->Missing(), " ", head->failure().ToString(), ", ", head->Describe());
    });
    for (FollowerNode* node : nodes_.others) {
      absl::StrAppend(&said, "\nanother: ", node->failure().ToString(), ", ", node->Describe());
    }
    return said;
  }
  void Pulse() {
    head_.Pulse();
    second_.Pulse();
    third_.Pulse();
  }

  uint64_t next_step_ = 0;
  std::vector<float> pulled_;  // By Has(), for whoever looks why.
  const absl::Time deadline_ = Now() + absl::Seconds(60);
  const std::unique_ptr<FaultyFileSystem> snapshots_ = StoreOfZeros();
  MemoryNet net_{1};
  HeadNode head_;
  FollowerNode second_{ServerIdOf(1), snapshots_.get(), &net_};
  FollowerNode third_{ServerIdOf(2), snapshots_.get(), &net_};
  const ClusterNodes nodes_{&head_, {&second_, &third_}, &net_};
};

}  // namespace recon
