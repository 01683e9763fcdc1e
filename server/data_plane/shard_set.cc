#include "server/data_plane/shard_set.h"

#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/cpu_usage.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/codec/frame_about.h"
#include "common/snapshot/manifest.h"
#include "common/tensor/page.h"
#include "common/trace/span_names.h"
#include "common/transport/send_window.h"

namespace recon {
namespace {

// For each thread that applies: most wait for the disk while others decode.
constexpr int kReadersPerThread = 6;
// A smaller gradient rarely makes parameters infinite, and whoever sends one may say of it what he likes:
// every so-many-th update is looked at, too. A look costs a thirtieth of an update.
constexpr float kLargeNorm = 1e12f;
constexpr uint64_t kUpdatesBetweenLooks = 64;
// Whoever waits for a server sees how far it is.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);

void RaiseTo(uint64_t value, std::atomic<uint64_t>* highest) {
  uint64_t seen = highest->load(std::memory_order_relaxed);
  while (seen < value && !highest->compare_exchange_weak(seen, value)) {
  }
}

GroupPolicy PolicyFor(const ApplyRules& rules, const ParamLayout& layout, uint32_t shard) {
  const uint32_t group = layout.shards()[shard].group;
  GroupPolicy policy = rules.PolicyOf(layout.groups()[group]);
  policy.averaged = layout.averaged(group);
  return policy;
}

// The tensor that has this parameter of a shard, in the shard's order.
std::string NameOfParameter(const ParamLayout& layout, uint32_t shard, uint64_t parameter) {
  const uint64_t at = layout.shards()[shard].offset + parameter;
  for (const TensorPlacement& tensor : layout.tensors()) {
    if (at >= tensor.offset && at < tensor.offset + tensor.size) return tensor.name;
  }
  return absl::StrCat("shard ", shard);
}

// Whether its reply (replayed ones have none) waits for nobody and has all parameters in 16 bits.
bool AnswersAtOnce(const Operation& op) {
  return op.done != nullptr && op.kind == FrameKind::kPushPull && op.rules->bound < 0 &&
         op.frame.header.reply_codec != static_cast<uint8_t>(CodecId::kFp32);
}

// Running means and counters come back whole, whatever the worker asks for: it says next how far they moved
// from there.
CodecId ReplyCodec(const Operation& op, const Shard& shard) {
  return shard.averaged() ? CodecId::kFp32 : static_cast<CodecId>(op.frame.header.reply_codec);
}

// As ReplyCodec(); the range of FP16 is that of parameters, and small gradients would be 0.
CodecId MeanCodec(const Operation& op, const Shard& shard) {
  const CodecId codec = ReplyCodec(op, shard);
  return codec == CodecId::kFp16 ? CodecId::kBf16 : codec;
}

}  // namespace

uint64_t VersionsKept(uint64_t pages, const ApplyRules& rules) {
  if (rules.optimizer.kind != OptimizerKind::kMean) return rules.correction.versions;
  const uint64_t bytes = std::max<uint64_t>(1, pages) * kPageBytes;
  return std::clamp<uint64_t>(limits::kMeansBytes / bytes, limits::kMeansKeptMin, limits::kMeansKeptMax);
}

ShardSet::ShardSet(uint32_t servers, int threads, int state_planes)
    : servers_(servers), threads_(threads), state_planes_(state_planes), lanes_("lane", threads) {}

absl::Status ShardSet::Define(ShardMap map, const ApplyRules& rules, uint64_t planes) {
  const ParamLayout& layout = *map.layout();
  std::vector<std::unique_ptr<Shard>> shards(map.size());
  try {
    ReservePages(map.owned_pages() * planes);
    for (const uint32_t i : map.owned()) {
      const GroupPolicy policy = PolicyFor(rules, layout, i);
      shards[i] =
          std::make_unique<Shard>(ShardId(i), layout.shards()[i], state_planes_, rules.optimizer, policy);
      shards[i]->SetRules(rules, policy);  // Its lane knows nothing of it yet.
      if (rules.optimizer.kind == OptimizerKind::kMean && !HoldsState(layout, i)) {
        shards[i]->means()->Reset(static_cast<uint32_t>(VersionsKept(map.owned_pages(), rules)));
      }
    }
  } catch (const std::bad_alloc&) {  // A limit of the process or its container is lower.
    return absl::ResourceExhaustedError(absl::StrCat("model ", layout.model().name(), " needs ",
                                                     map.owned_pages() * planes * kPageBytes,
                                                     " bytes with its optimizer state: out of memory"));
  }
  // As many as a large frame has, but every lane has some.
  const size_t in_frame = FrameBytesFor(servers_) / (2 * kShardParamsMax);
  const size_t for_lanes = map.owned().size() / (2 * static_cast<size_t>(lanes_.size()));
  shards_in_a_row_ = static_cast<uint32_t>(std::max<size_t>(1, std::min(in_frame, for_lanes)));
  shards_ = std::move(shards);
  staged_.resize(shards_.size());
  map_ = std::move(map);
  return absl::OkStatus();
}

void ShardSet::PostBehind(uint32_t shard, Lane::Task task) {
  lanes_.PostBehind(LaneKey(shard), std::move(task));
}

void ShardSet::OnLanes(const OperationPtr& op, PartStep step, bool applies, NextStep next) {
  const auto lane_of = [this](const PartHeader& part) { return lanes_.LaneOf(LaneKey(part.shard)); };
  absl::InlinedVector<bool, 64> has_parts(static_cast<size_t>(lanes_.size()), false);
  for (const PartHeader& part : op->frame.parts) has_parts[static_cast<size_t>(lane_of(part))] = true;
  op->lanes_left = static_cast<int>(std::count(has_parts.begin(), has_parts.end(), true));
  for (int lane = 0; lane < lanes_.size(); ++lane) {
    if (!has_parts[static_cast<size_t>(lane)]) continue;
    auto share = [this, op, step, applies, next, lane, lane_of] {
      {
        const ThreadCpuTimer timer(applies ? &apply_nanos_ : nullptr);
        const trace::Span span(applies ? trace::kApplying : trace::kReplying, AboutFrame(op->frame));
        for (size_t i = 0; i < op->frame.parts.size(); ++i) {
          if (lane_of(op->frame.parts[i]) == lane) (this->*step)(op.get(), i);
        }
      }
      const int left = op->lanes_left.fetch_sub(1, std::memory_order_acq_rel);
      RECON_CHECK_GT(left, 0);
      if (left == 1) next(op);
    };
    lanes_.Post(static_cast<uint32_t>(lane), Pooled(std::move(share)));
  }
}

void ShardSet::Apply(const OperationPtr& op, NextStep next) { OnLanes(op, &ShardSet::ApplyPart, true, next); }

void ShardSet::EncodeReply(const OperationPtr& op, NextStep next) {
  OnLanes(op, &ShardSet::EncodePart, false, next);
}

void ShardSet::ApplyPart(Operation* op, size_t index) {
  const PartHeader& part = op->frame.parts[index];
  RECON_CHECK(lanes_.IsCurrent(LaneKey(part.shard)));
  EncodedGradient gradient{static_cast<CodecId>(part.codec), part.count, std::move(op->frame.payloads[index]),
                           part.exponent};
  if (op->kind == FrameKind::kInit) {
    shards_[part.shard]->SetInitialValues(gradient);
  } else if (op->kind == FrameKind::kState) {
    Stage(part.shard, gradient);
  } else {
    ApplyGradient(op, index, std::move(gradient));
  }
  if (op->done == nullptr) return;
  op->reply_parts[index].shard = part.shard;
  op->reply_parts[index].count = part.count;
  op->reply_parts[index].codec = static_cast<uint8_t>(ReplyCodec(*op, *shards_[part.shard]));
  op->reply_parts[index].version = shards_[part.shard]->version();
}

void ShardSet::ApplyGradient(Operation* op, size_t index, EncodedGradient gradient) {
  const PartHeader& part = op->frame.parts[index];
  const FrameHeader& header = op->frame.header;
  Shard& shard = *shards_[part.shard];
  Shard::PushId id{op->worker, op->incarnation, header.step};
  if (op->left_out) {
    if (op->rules->bound != 0) shard.LeaveOut(id);
    return;
  }
  // 0 is also what a worker says that does not know: its version is from before a restart.
  if (part.version != 0) id.base = shard.WithoutLeftOut(part.version);
  if (part.has_learning_rate != 0) id.learning_rate = part.learning_rate;
  const double clip = shard.averaged() ? 0 : op->rules->optimizer.clip_norm;
  const double scale = clip > 0 && header.gradient_norm > clip ? clip / header.gradient_norm : 1;
  // Without a version it is unknown how old the gradient is; where there was no update yet it is not.
  const bool known = part.version != 0 || shard.version() == 0;
  const uint64_t staleness = known ? shard.version() - std::min(part.version, shard.version()) : 0;
  const uint64_t cut_before = shard.counts().cut_values;
  PushOutcome outcome;
  if (op->rules->bound == 0) {
    Contribution contribution;
    contribution.order_key = header.order_key;
    contribution.samples = header.samples;
    contribution.weight = header.samples * scale;
    contribution.norm = header.gradient_norm;
    contribution.learning_rate = id.learning_rate;
    contribution.gradient = std::move(gradient);
    outcome = shard.Contribute(id, std::move(contribution));
  } else if (AnswersAtOnce(*op) && shard.averaged()) {
    outcome = shard.Apply(id, gradient, scale);
    op->reply_payloads[index] = shard.Encoded(CodecId::kFp32);
  } else if (AnswersAtOnce(*op) && !IsSparse(gradient.codec)) {
    const auto codec = static_cast<CodecId>(header.reply_codec);
    const auto memory = [&] { return op->reply_buffer.ForPart(op->frame, index, gradient.payload); };
    outcome = shard.ApplyAndEncode(id, gradient, scale, codec, memory, &op->reply_payloads[index]);
  } else {
    outcome = shard.Apply(id, gradient, scale);
  }
  op->outcomes[index] = outcome;
  NoteCutValues(shard, cut_before);
  if (outcome != PushOutcome::kTaken) return;
  op->parts_taken.fetch_add(1, std::memory_order_relaxed);
  if (op->rules->bound != 0) LookWhetherFinite(shard, op->worker, header.step, header.gradient_norm);
  if (known) op->staleness_known.store(true, std::memory_order_relaxed);
  RaiseTo(staleness, &op->staleness_max);
  RaiseTo(shard.version(), &updates_);
}

void ShardSet::LookWhetherFinite(const Shard& shard, WorkerId worker, uint64_t step, float norm) {
  const bool large = !(norm < kLargeNorm);
  if (!large && shard.version() % kUpdatesBetweenLooks != 0) return;
  if (found_non_finite_.load(std::memory_order_relaxed)) return;
  const std::optional<uint64_t> first = shard.FirstNonFinite();
  if (!first) return;
  const NonFiniteUpdate found{worker, step, large,
                              NameOfParameter(*map_.layout(), shard.id().value(), *first), WallNow()};
  {
    MutexLock lock(&found_mu_);
    if (non_finite_) return;
    non_finite_ = found;
    found_non_finite_ = true;
  }
  LogError("PARAMETERS ARE NOT FINITE, {} worker number {} at step {}: the first is in {}",
           large ? "after the large gradient of" : "noticed up to 63 updates after the cause, at the push of",
           worker.value(), step, found.tensor);
}

void ShardSet::NoteCutValues(const Shard& shard, uint64_t before) {
  const uint64_t cut = shard.counts().cut_values - before;
  if (cut == 0) return;
  cut_values_.fetch_add(cut, std::memory_order_relaxed);
  if (said_cut_values_.exchange(true)) return;
  LogWarn(
      "workers ask for parameters in 16 bits, and {} of the shard with {} are cut: fp16 ends at 65504. Say "
      "--pull-codec bf16 or fp32; this is said once, recon_server_cut_values_total counts them",
      cut, NameOfParameter(*map_.layout(), shard.id().value(), 0));
}

std::optional<NonFiniteUpdate> ShardSet::non_finite() const {
  MutexLock lock(&found_mu_);
  return non_finite_;
}

std::optional<UnlikeRates> ShardSet::unlike_rates() const {
  MutexLock lock(&found_mu_);
  return unlike_rates_;
}

void ShardSet::EncodeMean(Operation* op, size_t index) {
  const PartHeader& part = op->frame.parts[index];
  const uint64_t step = op->frame.header.step;
  StepMeans::Encoded mean;
  Shard& shard = *shards_[part.shard];
  const StepMeans::Is is = shard.means()->Encode(step, MeanCodec(*op, shard), &mean);
  PartHeader& reply = op->reply_parts[index];
  reply.shard = part.shard;
  reply.count = part.count;
  reply.version = is == StepMeans::Is::kHere ? step + 1 : is == StepMeans::Is::kOpen ? 0 : kNoVersion;
  reply.codec = static_cast<uint8_t>(mean.codec);
  op->reply_payloads[index] = std::move(mean.payload);
  if (mean.pushes > 0) op->mean_pushes.store(mean.pushes, std::memory_order_relaxed);
}

void ShardSet::Stage(uint32_t shard, const EncodedGradient& values) {
  std::vector<PageRef>& staged = staged_[shard];
  staged.clear();
  for (uint32_t page = 0; page < map_.layout()->shards()[shard].pages(); ++page)
    staged.push_back(PageRef::New());
  ForEachTile(values, [&staged](size_t offset, absl::Span<const float> tile) {
    bool cloned = false;
    float* const page = staged[offset / kPageParams].Writable(&cloned);
    std::copy(tile.begin(), tile.end(), page + offset % kPageParams);
  });
}

void ShardSet::CommitStaged(const std::set<uint32_t>& shards, uint64_t version) {
  for (const uint32_t i : shards) {
    lanes_.Post(LaneKey(i), [this, i, version] { shards_[i]->Replace(std::move(staged_[i]), version); });
  }
}

absl::StatusOr<ShardSet::StatePages> ShardSet::ReadState(const SnapshotReader& reader,
                                                         const Manifest& manifest) {
  Mutex mu;
  StatePages state;
  const int roles = static_cast<int>(manifest.state_planes()) + 1;
  const auto read = [&](uint32_t shard) -> absl::Status {
    if (!HoldsState(*map_.layout(), shard)) return absl::OkStatus();
    RECON_ASSIGN_OR_RETURN(std::vector<std::vector<PageRef>> chunks,
                           reader.ReadChunks(manifest, static_cast<int>(shard) * roles, 1));
    MutexLock lock(&mu);
    state[shard] = std::move(chunks.front());
    return absl::OkStatus();
  };
  RECON_RETURN_IF_ERROR(LoadAll("reading the workers' state", read));
  return state;
}

void ShardSet::ReplaceState(StatePages state, uint64_t version) {
  for (auto& [shard, pages] : state) {
    lanes_.Post(LaneKey(shard), [this, shard = shard, version, pages = std::move(pages)]() mutable {
      shards_[shard]->Replace(std::move(pages), version);
    });
  }
}

void ShardSet::EncodePart(Operation* op, size_t index) {
  const PartHeader& part = op->frame.parts[index];
  RECON_CHECK(lanes_.IsCurrent(LaneKey(part.shard)));
  const bool pushed_mean =
      op->kind == FrameKind::kPushPull && op->rules->optimizer.kind == OptimizerKind::kMean;
  if (pushed_mean || op->kind == FrameKind::kPullMean) return EncodeMean(op, index);
  Shard& shard = *shards_[part.shard];
  const uint64_t cut_before = shard.counts().cut_values;
  const CodecId codec = ReplyCodec(*op, shard);
  Shard::Update update{codec, ByteChain()};
  if (op->kind == FrameKind::kPull && part.payload_bytes > 0) {
    update = shard.EncodedUnlike(codec, static_cast<CodecId>(part.codec), op->frame.payloads[index]);
  } else if (shard.version() != part.version) {
    update = shard.EncodedSince(codec, part.version);
  }
  NoteCutValues(shard, cut_before);
  PartHeader& reply = op->reply_parts[index];
  reply.shard = part.shard;
  reply.count = part.count;
  reply.version = shard.version();
  reply.codec = static_cast<uint8_t>(update.codec);
  op->reply_payloads[index] = std::move(update.payload);
}

void ShardSet::Close(const StepClosing& closing) {
  const auto contributors =
      std::make_shared<const std::set<Contributor>>(closing.contributors.begin(), closing.contributors.end());
  for (const uint32_t i : closing.shards) {
    if (!map_.has(i)) continue;
    lanes_.Post(LaneKey(i),
                [this, i, step = closing.step, contributors] { CloseShard(i, step, *contributors); });
  }
}

void ShardSet::CloseShard(uint32_t number, uint64_t step, const std::set<Contributor>& contributors) {
  const ThreadCpuTimer timer(&apply_nanos_);
  const trace::Span span(trace::kClosing, {0, step, number + 1});
  Shard& shard = *shards_[number];
  const std::optional<Shard::Closed> closed = shard.CloseStep(step, contributors);
  RaiseTo(shard.version(), &updates_);
  if (!closed) return;
  LookWhetherFinite(shard, closed->largest, step, closed->norm);
  if (const std::optional<Shard::UnlikeRates>& unlike = closed->unlike_rates) {
    MutexLock lock(&found_mu_);
    if (!unlike_rates_) {
      unlike_rates_ = {unlike->first, unlike->other, unlike->first_rate, unlike->other_rate, step};
    }
  }
}

void ShardSet::ForEach(const std::function<void(Shard*)>& step) {
  for (const uint32_t i : map_.owned()) {
    lanes_.Post(LaneKey(i), [this, i, step] { step(shards_[i].get()); });
  }
}

void ShardSet::SetRules(const ApplyRulesPtr& rules) {
  ForEach([this, rules](Shard* shard) {
    shard->SetRules(*rules, PolicyFor(*rules, *map_.layout(), shard->id().value()));
  });
}

void ShardSet::HideVersions() {
  ForEach([](Shard* shard) { shard->HideVersions(); });
}

void ShardSet::DropContributions() {
  ForEach([](Shard* shard) { shard->DropContributions(); });
}

void ShardSet::BeginHistory(uint64_t first_step) {
  ForEach([first_step](Shard* shard) {
    shard->ForgetLeftOut();
    shard->DropContributions();
    if (first_step > 0) shard->CloseStep(first_step - 1, {});
  });
  MutexLock lock(&found_mu_);
  non_finite_.reset();
  found_non_finite_ = false;
}

void ShardSet::Cut(StateCut cut, bool hide, absl::AnyInvocable<void(StateCut)> done) {
  struct Collector {
    StateCut cut;
    std::atomic<size_t> left;
    absl::AnyInvocable<void(StateCut)> done;
  };
  auto collector = std::make_shared<Collector>();
  collector->cut = std::move(cut);
  collector->left = map_.owned().size();
  collector->done = std::move(done);
  collector->cut.shards.resize(map_.size());
  if (map_.owned().empty()) {  // More servers than shards.
    lanes_.Post(0, [collector] { collector->done(std::move(collector->cut)); });
  }
  ForEach([collector, hide](Shard* shard) {
    if (hide) shard->HideVersions();
    collector->cut.shards[shard->id().value()] = shard->Cut();
    if (collector->left.fetch_sub(1, std::memory_order_acq_rel) == 1)
      collector->done(std::move(collector->cut));
  });
}

absl::Status ShardSet::Restore(const SnapshotReader& reader, const Manifest& manifest) {
  const int planes = static_cast<int>(manifest.state_planes());
  return LoadAll(absl::StrCat("restoring snapshot ", manifest.generation()),
                 [&](uint32_t shard) -> absl::Status {
                   ShardCut cut = shards_[shard]->Cut();
                   RECON_ASSIGN_OR_RETURN(
                       std::vector<std::vector<PageRef>> chunks,
                       reader.ReadChunks(manifest, static_cast<int>(shard) * (planes + 1), planes + 1));
                   std::move(chunks.begin(), chunks.end(), cut.pages.begin());
                   const ShardEntry& entry = manifest.shards(static_cast<int>(shard));
                   cut.version = entry.version();
                   const Ledger& ledger = LedgerOf(manifest, shard);
                   cut.ledger.assign(ledger.entries().begin(), ledger.entries().end());
                   cut.first_open_step = std::max(manifest.frontier_step(), entry.first_open_step());
                   if (cut.first_open_step == entry.first_open_step()) cut.mean_pushes = entry.mean_pushes();
                   shards_[shard]->Restore(std::move(cut));
                   // The version of a state is no number of updates.
                   if (HoldsState(*map_.layout(), shard)) return absl::OkStatus();
                   RaiseTo(shards_[shard]->version(), &updates_);
                   return absl::OkStatus();
                 });
}

absl::Status ShardSet::LoadInitialValues(
    const std::function<absl::StatusOr<std::vector<PageRef>>(uint32_t shard)>& pages_of) {
  return LoadAll("loading initial parameters", [&](uint32_t shard) -> absl::Status {
    RECON_ASSIGN_OR_RETURN(std::vector<PageRef> pages, pages_of(shard));
    Notification loaded;
    lanes_.Post(LaneKey(shard), [&] {
      ShardCut cut = shards_[shard]->Cut();
      cut.pages[0] = std::move(pages);
      shards_[shard]->Restore(std::move(cut));
      loaded.Notify();
    });
    loaded.WaitForNotification();
    return absl::OkStatus();
  });
}

absl::Status ShardSet::LoadAll(const std::string& what,
                               const std::function<absl::Status(uint32_t shard)>& load) {
  const std::vector<uint32_t>& owned = map_.owned();
  std::vector<absl::Status> statuses(shards_.size());
  Mutex mu;
  size_t left = owned.size();
  LanePool readers("restore", kReadersPerThread * threads_);
  for (uint32_t at = 0; at < owned.size(); ++at) {
    readers.Post(at, [&, i = owned[at]] {
      statuses[i] = load(i);
      MutexLock lock(&mu);
      --left;
    });
  }
  const auto wait_a_while = [&] {
    MutexLock lock(&mu);
    if (mu.AwaitFor(kProgressInterval, [&] { return left == 0; })) return true;
    const size_t done = owned.size() - left;
    LogInfo("{}: {} of {} shards, {} %", what, done, owned.size(), 100 * done / owned.size());
    return false;
  };
  while (!wait_a_while()) {
  }
  for (const absl::Status& status : statuses) RECON_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

double ShardSet::apply_seconds() const {
  const double threads =
      std::max<double>(1, std::min<double>(threads_, static_cast<double>(map_.owned().size())));
  return static_cast<double>(apply_nanos_.load()) / 1e9 / threads;
}

}  // namespace recon
