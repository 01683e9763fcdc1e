#pragma once

#include <vector>

#include "common/tensor/param_layout.h"
#include "server/durability/snapshot_writer.h"
#include "server/store/shard.h"

namespace recon {

// A model of two shards in two groups; the larger has `side` x `side` values, one page, not all of it, by
// default.
inline ModelSpec SampleModel(uint64_t side = 250) {
  ModelSpec model;
  model.set_name("sample");
  TensorSpec* weight = model.add_tensors();
  weight->set_name("weight");
  weight->add_shape(side);
  weight->add_shape(side);
  TensorSpec* bias = model.add_tensors();
  bias->set_name("bias");
  bias->add_shape(30);
  bias->set_group("no_decay");
  return model;
}

// One state plane; every value is `value`, every version `version`.
inline std::vector<ShardCut> SampleCut(const ParamLayout& layout, float value, uint64_t version) {
  std::vector<ShardCut> cuts;
  for (const ShardPlacement& shard : layout.shards()) {
    ShardCut cut;
    cut.version = version;
    cut.pages.resize(2);
    for (auto& role : cut.pages) {
      for (uint32_t page = 0; page < shard.pages(); ++page) {
        role.push_back(PageRef::Zeroed());
        bool cloned;
        float* values = role.back().Writable(&cloned);
        for (uint32_t i = 0; i < shard.PageSize(page); ++i) values[i] = value + static_cast<float>(i);
      }
    }
    LedgerEntry entry;
    entry.set_worker(3);
    entry.set_incarnation(77);
    entry.set_last_step(version);
    entry.set_window(1);
    cut.ledger.push_back(entry);
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

inline SnapshotWriter::Description SampleDescription() {
  SnapshotWriter::Description description;
  description.optimizer = "momentum";
  description.state_planes = 1;
  description.sequence = 11;
  description.cluster_epoch = 2;
  description.frontier_step = 5;
  description.created_unix_ms = 1'700'000'000'000;
  description.reason = "requested";
  return description;
}

}  // namespace recon
