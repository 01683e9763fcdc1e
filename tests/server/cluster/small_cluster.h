#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/codec/frame.h"
#include "common/optim/update_rules.h"
#include "common/storage/local_store.h"
#include "common/tensor/shard_assignment.h"
#include "proto/cluster.pb.h"
#include "server/durability/snapshot_writer.h"
#include "server/store/shard.h"
#include "tests/support/faulty_file_system.h"

// A job of three servers and a model of six shards, as small as can be.
namespace recon {

inline constexpr uint32_t kClusterServers = 3;
inline constexpr uint64_t kClusterJob = 77;
inline constexpr uint32_t kShardValues = 4;

inline ModelSpec SixShards() {
  ModelSpec model;
  model.set_name("six");
  for (int i = 0; i < 6; ++i) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name("tensor" + std::to_string(i));
    tensor->set_group("group" + std::to_string(i));
    tensor->add_shape(kShardValues);
  }
  return model;
}

inline std::vector<uint32_t> ServersOfShards() {
  return AssignShards(*ParamLayout::Create(SixShards()), kClusterServers);
}

// Plain SGD of rate 1: a push of x takes x away.
inline ApplyRules ClusterRules(int bound, uint64_t cluster_epoch) {
  ApplyRules rules;
  rules.optimizer.kind = OptimizerKind::kSgd;
  rules.optimizer.learning_rate = 1;
  rules.bound = bound;
  rules.cluster_epoch = cluster_epoch;
  rules.job_id = kClusterJob;
  return rules;
}

inline Assignment ClusterAssignment(const ApplyRules& rules) {
  Assignment assignment;
  assignment.set_servers(kClusterServers);
  assignment.set_job_id(kClusterJob);
  *assignment.mutable_rules() = EncodeRules(rules);
  assignment.set_state("sgd");
  assignment.set_durability("log");
  assignment.set_log_segment_bytes(16 << 10);
  assignment.set_snapshot_dir("/snapshots");
  assignment.set_zstd_level(1);
  assignment.set_snapshot_keep(2);
  assignment.set_snapshot_memory_percent(100);
  return assignment;
}

inline ServerHello HelloOf(uint64_t server_id) {
  ServerHello hello;
  hello.set_server_id(server_id);
  hello.set_address("host:" + std::to_string(server_id));
  return hello;
}
// With a data directory that has that place's state.
inline ServerHello HelloWithData(uint64_t server_id, uint32_t place) {
  ServerHello hello = HelloOf(server_id);
  hello.set_job_id(kClusterJob);
  hello.set_server(place);
  hello.set_servers(kClusterServers);
  return hello;
}

// The number of the server that has that place.
inline uint64_t ServerIdOf(uint32_t place) { return place == 0 ? 0 : 100 + place; }

// One server's part of a frame in which all values are `value`.
inline ByteChain FrameFor(uint32_t server, FrameKind kind, WorkerId worker, Incarnation incarnation,
                          uint64_t cluster_epoch, uint64_t step, float value) {
  const std::vector<uint32_t> servers = ServersOfShards();
  Frame frame;
  frame.header.kind = static_cast<uint8_t>(kind);
  frame.header.worker = worker.value();
  frame.header.incarnation = incarnation.value();
  frame.header.cluster_epoch = cluster_epoch;
  frame.header.step = step;
  frame.header.order_key = worker.value();
  frame.header.samples = 1;
  frame.header.push_parts = static_cast<uint32_t>(servers.size());
  for (uint32_t shard = 0; shard < servers.size(); ++shard) {
    if (servers[shard] != server) continue;
    PartHeader part;
    part.shard = shard;
    part.count = kShardValues;
    part.version = kind == FrameKind::kPull ? kNoVersion : 0;
    frame.parts.push_back(part);
    const std::vector<float> values(kShardValues, value);
    std::string bytes(reinterpret_cast<const char*>(values.data()), kShardValues * sizeof(float));
    frame.payloads.push_back(ByteChain::FromString(kind == FrameKind::kPull ? "" : bytes));
  }
  return EncodeFrame(std::move(frame));
}

// Its first snapshot: all zeros, as the three servers would have written it.
inline std::unique_ptr<FaultyFileSystem> StoreOfZeros() {
  auto files = std::make_unique<FaultyFileSystem>();
  const auto store = *LocalStore::Open("/snapshots", /*writer=*/true, files.get());
  const ParamLayout layout = *ParamLayout::Create(SixShards());
  const std::vector<uint32_t> servers = ServersOfShards();
  SnapshotWriter::Options options;
  options.threads = 1;
  SnapshotWriter writer(store.get(), options);
  std::vector<Manifest> parts;
  std::vector<ServerPart> described(kClusterServers);
  for (uint32_t server = 0; server < kClusterServers; ++server) {
    std::vector<ShardCut> cuts(layout.shard_count());
    for (uint32_t shard = 0; shard < cuts.size(); ++shard) {
      if (servers[shard] == server) cuts[shard].pages = {{PageRef::Zeroed()}};
    }
    parts.push_back(
        *writer.WritePart(layout, std::move(cuts), Generation(1), server, SnapshotWriter::Pace::kNow));
    described[server].set_id(ServerIdOf(server));
    described[server].set_log_from(1);
  }
  SnapshotWriter::Description description;
  description.optimizer = "sgd";
  description.log_from = 1;
  description.cluster_epoch = 1;
  description.job_id = kClusterJob;
  description.reason = "initial";
  const auto published = writer.Publish(layout, description, Generation(1), std::move(parts), described);
  if (!published.ok()) throw std::runtime_error(std::string(published.status().message()));
  return files;
}

}  // namespace recon
