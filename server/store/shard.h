#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/base/byte_chain.h"
#include "common/base/ids.h"
#include "common/optim/apply_rules.h"
#include "common/optim/optimizer.h"
#include "common/tensor/page.h"
#include "common/tensor/param_layout.h"
#include "server/store/change_history.h"
#include "server/store/gradient.h"
#include "server/store/kept_versions.h"
#include "server/store/lent_bytes.h"
#include "server/store/push_ledger.h"
#include "server/store/step_means.h"
#include "server/sync/step_closing.h"

namespace recon {

// A consistent copy of one shard: page references, not bytes.
struct ShardCut {
  uint64_t version = 0;
  // First synchronous step that is not closed.
  uint64_t first_open_step = 0;
  // pages[role][page]; role 0 = parameters, then the optimizer's planes.
  std::vector<std::vector<PageRef>> pages;
  std::vector<LedgerEntry> ledger;
  // The mean of the last closed step is of so many pushes, where workers have the optimizer; 0: it is
  // unknown.
  uint32_t mean_pushes = 0;
};

// The unit of ownership, ordering and ledger: parameters and optimizer state of one range of the flat
// space, updated in place.
//
// Threads: lane only, every method. Pages it has handed out may be read and dropped anywhere.
// Units: `version` counts updates; payloads are in the shard's order of parameters.
class Shard {
 public:
  // Parameters and `state_planes` planes of state are zero, version 0. `config` needs no more planes.
  Shard(ShardId id, const ShardPlacement& placement, int state_planes, const OptimizerConfig& config,
        const GroupPolicy& policy);

  ShardId id() const { return id_; }
  uint64_t version() const { return version_; }
  uint32_t size() const { return placement_.size; }
  // Pushes say how far its values have moved; see GroupPolicy.
  bool averaged() const { return policy_.averaged; }
  // Of its life: pages cloned because someone still held them, and parameters cut to the largest value of a
  // 16-bit codec, each time they were encoded anew.
  struct Counts {
    uint64_t pages_cloned = 0;
    uint64_t cut_values = 0;
  };
  const Counts& counts() const { return counts_; }

  struct PushId {
    WorkerId worker;
    Incarnation incarnation;
    uint64_t step = 0;
    // This shard's version that its gradient was computed from, if that is known.
    uint64_t base = kNoVersion;
    // That its update goes by; none: the server's.
    std::optional<double> learning_rate;
  };
  using Outcome = PushOutcome;
  // Values for a reader.
  struct Update {
    CodecId codec = CodecId::kFp32;
    ByteChain payload;
  };

  // Replaces the parameters (dense payload of size() values); the version stays 0.
  void SetInitialValues(const EncodedGradient& values);

  // One update: gradient * scale through the optimizer; version + 1. A sparse gradient updates the
  // parameters it names and their optimizer state, nothing else; see optimizer.h.
  Outcome Apply(const PushId& id, const EncodedGradient& gradient, double scale);
  // The same for a dense gradient, and `encoded` is what Encoded(codec) would be then: values are encoded
  // while they are in the cache. `codec` is fp16 or bf16. `memory` gives EncodedBytes() that are nobody
  // else's (the gradient's own payload, if it has as many) and of one owner; only a push that is applied
  // asks.
  Outcome ApplyAndEncode(const PushId& id, const EncodedGradient& gradient, double scale, CodecId codec,
                         absl::FunctionRef<ByteChain()> memory, ByteChain* encoded);

  // This push has no effect, now or when it is sent again: it is left out when records are applied that came
  // after it. Versions that later ones name are taken for what they are without its update, until
  // ForgetLeftOut().
  void LeaveOut(const PushId& id);
  void ForgetLeftOut() { left_out_.clear(); }
  // A version that a record names, as it is without what was left out.
  uint64_t WithoutLeftOut(uint64_t version) const;

  // Synchronous mean: keeps a contribution until its step is closed. It enters the ledger only then,
  // so that a cut never says it has a gradient whose update it lacks.
  Outcome Contribute(const PushId& id, Contribution contribution);
  // One update with the mean over what `contributors` sent for `step`; drops what others sent
  // for it and for earlier steps. No update if there is none.
  struct UnlikeRates {
    WorkerId first, other;  // The update went by the first's.
    double first_rate = 0, other_rate = 0;
  };
  struct Closed {
    WorkerId largest;  // Whose gradient was the largest.
    float norm = 0;
    // Two that named learning rates which are further apart than kRatesApart, where any did so in each of the
    // last kUnlikeSteps.
    std::optional<UnlikeRates> unlike_rates;
  };
  static constexpr double kRatesApart = 1.1;
  static constexpr int kUnlikeSteps = 8;
  std::optional<Closed> CloseStep(uint64_t step, const std::set<Contributor>& contributors);

  // With the optimizer `mean`: what closing steps has left. Those up to the shard's first open step may be
  // there.
  StepMeans* means() { return &means_; }
  // These take the place of the parameters, as a version that no other values have had.
  void Replace(std::vector<PageRef> pages, uint64_t version);

  // The parameters as a payload of `codec`. FP32 refers to the pages; a 16-bit encoding of this version is
  // shared by all that ask while somebody has it.
  ByteChain Encoded(CodecId codec);
  // What a reader that has version `base` needs to have this one: the values that changed, as a sparse
  // payload, where that is smaller than all of them. `codec` is fp32, fp16 or bf16.
  Update EncodedSince(CodecId codec, uint64_t base);
  // What a reader needs that has pages of these hashes (PageHash() with the codec `hashed`): the pages of
  // which the hash is another, whole. Without payload if there is none.
  Update EncodedUnlike(CodecId codec, CodecId hashed, const ByteChain& hashes);

  // The first parameter that is not finite; none: all are.
  std::optional<uint64_t> FirstNonFinite() const;

  // What later updates go by. Versions that were kept are forgotten when the cluster epoch is another one.
  void SetRules(const ApplyRules& rules, const GroupPolicy& policy);

  // Gradients of versions before this one are not compared with them any more: after a restart from a cut
  // that is taken now they could not be.
  void HideVersions() { kept_.Hide(version_); }

  // Those of steps that are not closed.
  void DropContributions() { contributions_.clear(); }

  ShardCut Cut() const;
  // The reverse of Cut(). `cut` must have this shard's shape.
  void Restore(ShardCut cut);

 private:
  using Pages = std::vector<PageRef>;

  // With the parameters that a gradient was computed from, value by value.
  struct Comparison {
    const Pages* old = nullptr;  // Null: none.
    float coefficient = 0;       // As the correction's kernel takes it.

    const float* At(size_t offset) const {
      return (*old)[offset / kPageParams].data() + offset % kPageParams;
    }
  };

  // Where new parameters are encoded, from front to back.
  struct Reply {
    CodecId codec;
    ByteWriter writer;
  };

  // The step's mean takes the place of the values; averaged ones are what the first contribution says.
  void TakeMean(uint64_t step, const std::vector<Contribution>& counted, double samples);
  // Writes values [offset, offset + count) of a role through the copy-on-write rule.
  float* WritableTile(int role, size_t offset);
  // The same of a plane of state (1 or 2); null if the optimizer has none such.
  float* StateTile(const UpdateCoefficients& c, int plane, size_t offset);
  void Lend(CodecId codec, const ByteChain& encoded);
  void UpdateTile(const UpdateCoefficients& c, size_t offset, absl::Span<const float> gradient, Reply* reply);
  // The update that makes version_ + 1, by a dense gradient. `reply`: null if none is wanted.
  void UpdateDense(const UpdateCoefficients& c, const Comparison& comparison, const EncodedGradient& gradient,
                   Reply* reply);
  // Of values that lie in one page, and come next in the reply. `codec` is fp32, fp16 or bf16.
  void UpdateRun(const UpdateCoefficients& c, CodecId codec, size_t offset, const uint8_t* gradient,
                 size_t count, Reply* reply);
  // One page of the update that makes version_ + 1.
  void UpdatePage(const UpdateCoefficients& c, const Comparison& comparison, const SparsePage& page);

  // What the whole gradient is multiplied with because it is stale.
  double Discount(const PushId& id) const;
  Comparison ComparisonFor(const PushId& id, const EncodedGradient& gradient,
                           const UpdateCoefficients& c) const;
  void Correct(const Comparison& comparison, const float* now, const float* old, size_t count,
               float* gradient) const;
  uint64_t Staleness(const PushId& id) const { return version_ - std::min(id.base, version_); }

  // Set in the constructor.
  const ShardId id_;
  const ShardPlacement placement_;

  // Lane only.
  OptimizerConfig config_;
  GroupPolicy policy_;
  CorrectionRules correction_;
  uint64_t cluster_epoch_ = 0;  // Of the rules.
  KeptVersions kept_;
  StepMeans means_;
  uint64_t version_ = 0;
  std::vector<Pages> pages_;
  PushLedger ledger_;
  ChangeHistory history_;
  std::map<uint64_t, std::vector<Contribution>> contributions_;
  uint64_t first_open_step_ = 0;
  int unlike_steps_ = 0;  // Steps in a row whose contributions named unlike rates.
  // Versions, as they were, that an update was made of which is left out; ascending.
  std::vector<uint64_t> left_out_;
  Counts counts_;
  // The last 16-bit encoding and the last answer of EncodedSince(), and what they are of.
  LentBytes encoded_;
  CodecId encoded_codec_ = CodecId::kFp32;
  uint64_t encoded_version_ = kNoVersion;
  LentBytes update_;
  CodecId update_codec_ = CodecId::kFp32;
  uint64_t update_base_ = kNoVersion;
  uint64_t update_version_ = kNoVersion;
};

}  // namespace recon
