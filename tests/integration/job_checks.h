#pragma once

#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "common/tensor/param_layout.h"
#include "tests/integration/in_process_job.h"
#include "worker/comm/frames.h"
#include "worker/comm/param_client.h"
#include "worker/model/mlp_model.h"

namespace recon {

// What tests of whole jobs look at; of the data set that InProcessJob's workers have.
inline constexpr uint64_t kSamples = 1050;

inline void CheckAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    INFO(status);
    CHECK(status.ok());
  }
}

// The outcome of a job that is finished: its last snapshot, whatever that was taken for.
inline Manifest FinalManifest(const SnapshotReader& reader) {
  const std::vector<Generation> generations = *reader.List();
  return generations.empty() ? Manifest() : *reader.ReadManifest(generations.back());
}

inline std::string FinalStateRoot(InProcessJob* job) {
  const auto store = *LocalStore::Open(job->flags.snapshots.directory, /*writer=*/false);
  return FinalManifest(SnapshotReader(store.get())).state_root();
}

inline std::vector<float> FinalParameters(InProcessJob* job) {
  const auto store = *LocalStore::Open(job->flags.snapshots.directory, /*writer=*/false);
  const SnapshotReader reader(store.get());
  const Manifest manifest = FinalManifest(reader);
  std::vector<float> values;
  for (int i = 0; i < manifest.chunks_size(); ++i) {
    if (manifest.chunks(i).role() != 0) continue;
    const std::vector<PageRef> pages = *reader.ReadChunk(manifest, i);  // Each shard here is one page.
    values.insert(values.end(), pages[0].data(),
                  pages[0].data() + manifest.chunks(i).raw_bytes() / sizeof(float));
  }
  return values;
}

// What a worker would register with that only the test plays.
inline RegisterRequest RequestOf(const std::string& name) {
  RegisterRequest request;
  request.set_name(name);
  request.set_incarnation(PlayedSecret().incarnation().value());
  *request.mutable_model() = ParseMlp("16-24-4")->spec;
  request.set_train_samples(kSamples);
  request.set_test_samples(150);
  return request;
}

// A push of all parameters, each gradient `value`, in the name of that worker.
inline absl::Status PushAs(const WorkerIdentity& identity, uint64_t step, float value, Transport* transport) {
  const ParamLayout layout = *ParamLayout::Create(RequestOf("").model());
  ParamClient client(transport);
  FrameHeader header;
  header.step = step;
  header.samples = 1;
  std::vector<EncodedShard> shards = PlainShards(layout, std::vector<float>(layout.params(), value));
  for (EncodedShard& shard : shards) shard.version = 0;  // Unknown.
  absl::Status status;
  for (const auto& reply :
       client.CallAll(FrameKind::kPush, FramesFor(layout, header, identity, shards), absl::Seconds(20))) {
    status.Update(reply.status());
  }
  return status;
}

}  // namespace recon
