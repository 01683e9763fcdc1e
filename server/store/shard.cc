#include "server/store/shard.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/pool_allocator.h"
#include "common/codec/codec.h"
#include "common/codec/half_codec.h"
#include "common/codec/page_hash.h"
#include "common/codec/selection.h"
#include "common/optim/optimizer_kernels.h"

namespace recon {

namespace {

static_assert(kPageParams % kTileParams == 0, "a tile never spans two pages");
// Parameters and two planes of optimizer state.
constexpr size_t kMaxRoles = 3;

// Zheng et al., ICML 2017, section 6.
constexpr double kDelayCompensation = 0.04;
// A shorter step has no inverse in FP32.
constexpr double kStepMin = 1e-37;

std::optional<Shard::UnlikeRates> FindUnlikeRates(const std::vector<Contribution>& contributions) {
  const Contribution& first = contributions.front();
  if (!first.learning_rate) return std::nullopt;
  for (const Contribution& other : contributions) {
    const double rate = other.learning_rate.value_or(*first.learning_rate);
    const auto [low, high] = std::minmax(*first.learning_rate, rate);
    if (high > low * Shard::kRatesApart) return {{first.worker, other.worker, *first.learning_rate, rate}};
  }
  return std::nullopt;
}

}  // namespace

Shard::Shard(ShardId id, const ShardPlacement& placement, int state_planes, const OptimizerConfig& config,
             const GroupPolicy& policy)
    : id_(id),
      placement_(placement),
      config_(config),
      policy_(policy),
      means_(placement),
      history_(placement.size) {
  RECON_CHECK(state_planes >= 0 && 1 + static_cast<size_t>(state_planes) <= kMaxRoles);
  pages_.resize(1 + static_cast<size_t>(state_planes));
  for (Pages& role : pages_) {
    for (uint32_t page = 0; page < placement.pages(); ++page) role.push_back(PageRef::Zeroed());
  }
}

float* Shard::StateTile(const UpdateCoefficients& c, int plane, size_t offset) {
  // Planes that this optimizer leaves alone are not cloned for it.
  return plane <= StatePlanes(c.kind) ? WritableTile(plane, offset) : nullptr;
}

float* Shard::WritableTile(int role, size_t offset) {
  bool cloned = false;
  float* page = pages_[role][offset / kPageParams].Writable(&cloned);
  if (cloned) ++counts_.pages_cloned;
  return page + offset % kPageParams;
}

void Shard::UpdateTile(const UpdateCoefficients& c, size_t offset, absl::Span<const float> gradient,
                       Reply* reply) {
  UpdateRun(c, CodecId::kFp32, offset, reinterpret_cast<const uint8_t*>(gradient.data()), gradient.size(),
            reply);
}

double Shard::Discount(const PushId& id) const {
  // The number of a version that is not known says nothing.
  if (correction_.kind == StalenessCorrection::kNone || id.base == kNoVersion || averaged()) return 1;
  const bool compared = correction_.kind != StalenessCorrection::kInverse && kept_.Find(id.base) != nullptr;
  return compared ? 1 : InverseStaleness(Staleness(id));
}

Shard::Comparison Shard::ComparisonFor(const PushId& id, const EncodedGradient& gradient,
                                       const UpdateCoefficients& c) const {
  Comparison comparison;
  if (kept_.capacity() == 0 || Staleness(id) == 0 || averaged()) return comparison;
  comparison.old = kept_.Find(id.base);
  if (comparison.old == nullptr) return comparison;
  if (correction_.kind == StalenessCorrection::kDelayCompensated) {
    comparison.coefficient = static_cast<float>(kDelayCompensation * c.gradient_scale);
    return comparison;
  }
  // Adam makes steps of one size, whatever the gradient's.
  const bool adaptive = c.kind == OptimizerKind::kAdam || c.kind == OptimizerKind::kAdamW;
  const double step = adaptive ? c.step_size : c.learning_rate * c.gradient_scale * RootMeanSquare(gradient);
  if (step > kStepMin && std::isfinite(step)) {
    comparison.coefficient = static_cast<float>(1 / step);
  } else {
    comparison.old = nullptr;  // It moves nothing, or is none.
  }
  return comparison;
}

void Shard::Correct(const Comparison& comparison, const float* now, const float* old, size_t count,
                    float* gradient) const {
  const auto correct = correction_.kind == StalenessCorrection::kGapAware ? CorrectByGap : CompensateDelay;
  correct(now, old, comparison.coefficient, count, gradient);
}

void Shard::UpdateDense(const UpdateCoefficients& c, const Comparison& comparison,
                        const EncodedGradient& gradient, Reply* reply) {
  history_.NoteAll(version_ + 1);
  if (comparison.old == nullptr && IsValueCodec(gradient.codec)) {
    UpdateCoefficients scaled = c;
    scaled.encoded_scale = PowerOfTwo(gradient.exponent);
    return ForEachRun(gradient, [&](size_t offset, const uint8_t* values, size_t count) {
      UpdateRun(scaled, gradient.codec, offset, values, count, reply);
    });
  }
  alignas(64) float corrected[kTileParams];
  ForEachTile(gradient, [&](size_t offset, absl::Span<const float> tile) {
    if (comparison.old != nullptr) {
      std::copy(tile.begin(), tile.end(), corrected);
      Correct(comparison, WritableTile(0, offset), comparison.At(offset), tile.size(), corrected);
      tile = {corrected, tile.size()};
    }
    UpdateTile(c, offset, tile, reply);
  });
}

void Shard::UpdateRun(const UpdateCoefficients& c, CodecId codec, size_t offset, const uint8_t* gradient,
                      size_t count, Reply* reply) {
  float* const params = WritableTile(0, offset);
  float* const state1 = StateTile(c, 1, offset);
  float* const state2 = StateTile(c, 2, offset);
  if (reply == nullptr) return ApplyEncodedUpdate(c, codec, gradient, count, params, state1, state2);
  reply->writer.Write(EncodedBytes(reply->codec, 1), count, [&](uint8_t* to, size_t first, size_t run) {
    counts_.cut_values += ApplyEncodedUpdate(c, codec, gradient + EncodedBytes(codec, first), run,
                                             params + first, state1 != nullptr ? state1 + first : nullptr,
                                             state2 != nullptr ? state2 + first : nullptr, reply->codec, to);
  });
}

void Shard::UpdatePage(const UpdateCoefficients& c, const Comparison& comparison, const SparsePage& page) {
  const size_t offset = size_t{page.page} * kPageParams;
  alignas(64) float corrected[kTileParams], old[kTileParams];
  if (page.all) {
    for (size_t at = 0; at < page.values.size(); at += kTileParams) {
      absl::Span<const float> tile = page.values.subspan(at, kTileParams);
      if (comparison.old != nullptr) {
        std::copy(tile.begin(), tile.end(), corrected);
        Correct(comparison, WritableTile(0, offset + at), comparison.At(offset + at), tile.size(), corrected);
        tile = {corrected, tile.size()};
      }
      UpdateTile(c, offset + at, tile, nullptr);
    }
    history_.NoteWholePage(version_ + 1, page.page);
    return;
  }
  // The named values go through the kernel side by side: the same bits as in a dense update.
  alignas(64) float gathered[kMaxRoles][kTileParams];
  const size_t roles_used = 1 + static_cast<size_t>(StatePlanes(c.kind));
  float* roles[kMaxRoles] = {};
  float* columns[kMaxRoles] = {};
  for (size_t role = 0; role < roles_used; ++role) {
    roles[role] = WritableTile(static_cast<int>(role), offset);
    columns[role] = gathered[role];
  }
  for (size_t at = 0; at < page.indices.size(); at += kTileParams) {
    const absl::Span<const uint16_t> indices = page.indices.subspan(at, kTileParams);
    for (size_t role = 0; role < roles_used; ++role) {
      for (size_t i = 0; i < indices.size(); ++i) gathered[role][i] = roles[role][indices[i]];
    }
    const float* gradient = page.values.data() + at;
    if (comparison.old != nullptr) {
      const float* from = comparison.At(offset);
      for (size_t i = 0; i < indices.size(); ++i) old[i] = from[indices[i]];
      std::copy(gradient, gradient + indices.size(), corrected);
      Correct(comparison, columns[0], old, indices.size(), corrected);
      gradient = corrected;
    }
    ApplyUpdate(c, gradient, indices.size(), columns[0], columns[1], columns[2]);
    for (size_t role = 0; role < roles_used; ++role) {
      for (size_t i = 0; i < indices.size(); ++i) roles[role][indices[i]] = gathered[role][i];
    }
  }
  history_.NotePage(version_ + 1, page.page, page.indices);
}

void Shard::SetInitialValues(const EncodedGradient& values) {
  RECON_CHECK_EQ(values.count, size());
  ForEachTile(values, [this](size_t offset, absl::Span<const float> tile) {
    std::memcpy(WritableTile(0, offset), tile.data(), tile.size() * sizeof(float));
  });
  encoded_version_ = kNoVersion;
  kept_.Reset(kept_.capacity());
  kept_.Keep(version_, pages_[0]);
}

Shard::Outcome Shard::Apply(const PushId& id, const EncodedGradient& gradient, double scale) {
  RECON_CHECK_EQ(gradient.count, size());
  if (ledger_.Forgotten(id.worker, id.incarnation, id.step)) return Outcome::kLate;
  if (!ledger_.Take(id.worker, id.incarnation, id.step)) return Outcome::kDuplicate;
  const UpdateCoefficients c =
      CoefficientsFor(config_, policy_, version_, scale * Discount(id), id.learning_rate);
  const Comparison comparison = ComparisonFor(id, gradient, c);
  if (IsSparse(gradient.codec)) {
    // The payload was checked when it came in.
    (void)ForEachSparsePage(
        gradient.codec, gradient.count, gradient.payload,
        [&](const SparsePage& page) { UpdatePage(c, comparison, page); }, gradient.exponent);
  } else {
    UpdateDense(c, comparison, gradient, nullptr);
  }
  kept_.Keep(++version_, pages_[0]);
  return Outcome::kTaken;
}

Shard::Outcome Shard::ApplyAndEncode(const PushId& id, const EncodedGradient& gradient, double scale,
                                     CodecId codec, absl::FunctionRef<ByteChain()> memory,
                                     ByteChain* encoded) {
  RECON_CHECK_EQ(gradient.count, size());
  RECON_CHECK(encoded->size() == 0);
  if (ledger_.Forgotten(id.worker, id.incarnation, id.step)) return Outcome::kLate;
  if (!ledger_.Take(id.worker, id.incarnation, id.step)) {
    *encoded = Encoded(codec);
    return Outcome::kDuplicate;
  }
  const UpdateCoefficients c =
      CoefficientsFor(config_, policy_, version_, scale * Discount(id), id.learning_rate);
  const ByteChain bytes = memory();
  RECON_CHECK_EQ(bytes.size(), EncodedBytes(codec, size()), "a reply's memory");
  Reply reply{codec, ByteWriter(bytes)};
  UpdateDense(c, ComparisonFor(id, gradient, c), gradient, &reply);
  kept_.Keep(++version_, pages_[0]);
  encoded->Append(bytes);
  Lend(codec, *encoded);
  return Outcome::kTaken;
}

void Shard::LeaveOut(const PushId& id) {
  if (ledger_.Forgotten(id.worker, id.incarnation, id.step)) return;
  if (ledger_.Take(id.worker, id.incarnation, id.step)) left_out_.push_back(version_ + left_out_.size());
}

uint64_t Shard::WithoutLeftOut(uint64_t version) const {
  const auto first_not_in_it = std::lower_bound(left_out_.begin(), left_out_.end(), version);
  const auto left_out = static_cast<uint64_t>(first_not_in_it - left_out_.begin());
  RECON_CHECK_LE(left_out, version);
  return version - left_out;
}

void Shard::Lend(CodecId codec, const ByteChain& encoded) {
  encoded_.Lend(encoded);
  encoded_codec_ = codec;
  encoded_version_ = version_;
}

Shard::Outcome Shard::Contribute(const PushId& id, Contribution contribution) {
  if (ledger_.Forgotten(id.worker, id.incarnation, id.step)) return Outcome::kLate;
  if (ledger_.Taken(id.worker, id.incarnation, id.step)) return Outcome::kDuplicate;
  if (id.step < first_open_step_) return Outcome::kLate;
  auto& contributions = contributions_[id.step];
  for (const Contribution& other : contributions) {
    if (other.worker == id.worker && other.incarnation == id.incarnation) return Outcome::kPending;
  }
  RECON_CHECK_EQ(contribution.gradient.count, size());
  contribution.worker = id.worker;
  contribution.incarnation = id.incarnation;
  contributions.push_back(std::move(contribution));
  return Outcome::kTaken;
}

std::optional<Shard::Closed> Shard::CloseStep(uint64_t step, const std::set<Contributor>& contributors) {
  first_open_step_ = std::max(first_open_step_, step + 1);
  means_.NoteOpen(first_open_step_);
  std::vector<Contribution> counted;
  const auto found = contributions_.find(step);
  if (found != contributions_.end()) counted = std::move(found->second);
  contributions_.erase(contributions_.begin(), contributions_.upper_bound(step));
  RECON_CHECK(contributions_.empty() || contributions_.begin()->first >= first_open_step_,
              "a contribution to a closed step is left");
  counted.erase(std::remove_if(counted.begin(), counted.end(),
                               [&](const Contribution& c) {
                                 return contributors.count({c.worker, c.incarnation}) == 0;
                               }),
                counted.end());
  if (counted.empty()) return std::nullopt;
  // By what was computed, not by who came first: the sum must not depend on timing.
  std::sort(counted.begin(), counted.end(), [](const Contribution& a, const Contribution& b) {
    return std::make_pair(a.order_key, a.worker) < std::make_pair(b.order_key, b.worker);
  });
  double samples = 0;
  Closed closed{counted.front().worker, counted.front().norm, FindUnlikeRates(counted)};
  unlike_steps_ = closed.unlike_rates ? unlike_steps_ + 1 : 0;
  if (unlike_steps_ < kUnlikeSteps) closed.unlike_rates.reset();
  for (const Contribution& contribution : counted) {
    samples += contribution.samples;
    if (contribution.norm > closed.norm) {
      closed.largest = contribution.worker;
      closed.norm = contribution.norm;
    }
    ledger_.Take(contribution.worker, contribution.incarnation, step);
  }
  if (config_.kind == OptimizerKind::kMean) {
    TakeMean(step, counted, samples);
    return closed;
  }
  const UpdateCoefficients c =
      CoefficientsFor(config_, policy_, version_, 1 / samples, counted.front().learning_rate);
  if (AnySparse(counted)) {
    ForEachSumPage(counted, [&](const SparsePage& page) { UpdatePage(c, Comparison(), page); });
  } else {
    ForEachSumTile(
        counted, [&](size_t offset, absl::Span<const float> tile) { UpdateTile(c, offset, tile, nullptr); });
    history_.NoteAll(version_ + 1);
  }
  ++version_;
  return closed;
}

void Shard::TakeMean(uint64_t step, const std::vector<Contribution>& counted, double samples) {
  // New pages: clones of what is written over would be copied in vain.
  for (PageRef& page : pages_[0]) page = PageRef::Zeroed();
  const auto scale = static_cast<float>(1 / samples);
  const auto write = [this](size_t offset, absl::Span<const float> values, float factor) {
    float* const to = WritableTile(0, offset);
    for (size_t i = 0; i < values.size(); ++i) to[i] = values[i] * factor;
  };
  const Contribution& first = counted.front();
  const bool alone = averaged() || counted.size() == 1;
  if (alone && !IsSparse(first.gradient.codec)) {
    // As it came: a sum by weights that is divided again may be off by a rounding.
    const auto factor = averaged() ? 1 : static_cast<float>(first.weight / samples);
    ForEachTile(first.gradient,
                [&](size_t offset, absl::Span<const float> values) { write(offset, values, factor); });
  } else if (AnySparse(counted)) {
    ForEachSumPage(counted, [&](const SparsePage& page) {
      const size_t offset = size_t{page.page} * kPageParams;
      if (page.all) return write(offset, page.values, scale);
      float* const to = WritableTile(0, offset);
      for (size_t i = 0; i < page.indices.size(); ++i) to[page.indices[i]] = page.values[i] * scale;
    });
  } else {
    ForEachSumTile(counted,
                   [&](size_t offset, absl::Span<const float> values) { write(offset, values, scale); });
  }
  history_.NoteAll(++version_);
  means_.Keep(step, pages_[0], static_cast<uint32_t>(counted.size()));
}

void Shard::Replace(std::vector<PageRef> pages, uint64_t version) {
  RECON_CHECK_EQ(pages.size(), pages_[0].size(), "pages that take the place of others");
  pages_[0] = std::move(pages);
  version_ = version;
  history_.NoteAll(version_);
}

std::optional<uint64_t> Shard::FirstNonFinite() const {
  for (uint32_t page = 0; page < placement_.pages(); ++page) {
    const float* const values = pages_[0][page].data();
    const size_t count = placement_.PageSize(page);
    if (AllFinite32(reinterpret_cast<const uint8_t*>(values), count)) continue;
    const float* const found =
        std::find_if(values, values + count, [](float value) { return !std::isfinite(value); });
    return uint64_t{page} * kPageParams + static_cast<uint64_t>(found - values);
  }
  return std::nullopt;
}

ByteChain Shard::Encoded(CodecId codec) {
  ByteChain chain;
  if (codec == CodecId::kFp32) {
    for (uint32_t page = 0; page < placement_.pages(); ++page) {
      auto owner = MakePooled<const PageRef>(pages_[0][page]);
      chain.Append(owner->data(), placement_.PageSize(page) * sizeof(float), owner);
    }
    return chain;
  }
  if (encoded_codec_ == codec && encoded_version_ == version_) {
    chain = encoded_.Get();
    if (chain.size() > 0) return chain;
  }
  const uint64_t size = EncodedBytes(codec, placement_.size);
  const std::shared_ptr<uint8_t[]> bytes(new uint8_t[size]);
  for (uint32_t page = 0; page < placement_.pages(); ++page) {
    // Parameters beyond the codec's range are cut to it: a replica is an approximation by choice.
    counts_.cut_values += Encode(codec, pages_[0][page].data(), placement_.PageSize(page),
                                 bytes.get() + EncodedBytes(codec, page * kPageParams))
                              .saturated;
  }
  chain.Append(bytes.get(), size, bytes);
  Lend(codec, chain);
  return chain;
}

Shard::Update Shard::EncodedSince(CodecId codec, uint64_t base) {
  if (base > version_ || history_.AllChangedSince(base)) return {codec, Encoded(codec)};
  if (update_codec_ == codec && update_base_ == base && update_version_ == version_) {
    ByteChain update = update_.Get();
    if (update.size() > 0) return {SparseCodec(codec), std::move(update)};
  }
  const uint64_t dense_bytes = EncodedBytes(codec, placement_.size);
  const uint64_t value_bytes = EncodedBytes(codec, 1);
  SparseWriter writer(SparseCodec(codec));
  std::vector<uint16_t> indices;
  std::vector<float> values;
  for (uint32_t page = 0; page < placement_.pages() && writer.bytes() < dense_bytes; ++page) {
    const float* from = pages_[0][page].data();
    const uint32_t size = placement_.PageSize(page);
    indices.clear();
    const ChangeHistory::Extent extent = history_.Since(base, page, &indices);
    // An index costs a byte at least.
    if (extent == ChangeHistory::Extent::kAll || indices.size() * (value_bytes + 1) > size * value_bytes) {
      writer.AddWholePage(size, from);
      continue;
    }
    values.resize(indices.size());
    for (size_t i = 0; i < indices.size(); ++i) values[i] = from[indices[i]];
    writer.AddPage(size, indices, values.data());
  }
  // Not kept: it would hold the pages, and the next update would have to clone them.
  if (writer.bytes() >= dense_bytes) return {codec, Encoded(codec)};
  counts_.cut_values += writer.stats().saturated;
  Update update{SparseCodec(codec), ByteChain::FromString(writer.Finish())};
  update_.Lend(update.payload);
  update_codec_ = codec;
  update_base_ = base;
  update_version_ = version_;
  return update;
}

Shard::Update Shard::EncodedUnlike(CodecId codec, CodecId hashed, const ByteChain& hashes) {
  RECON_CHECK_EQ(hashes.size(), placement_.pages() * kPageHashBytes);
  ByteReader reader(hashes);
  uint8_t scratch[kPageHashBytes];
  std::set<uint32_t> unlike;
  for (uint32_t page = 0; page < placement_.pages(); ++page) {
    const std::string hash = PageHash(hashed, pages_[0][page].data(), placement_.PageSize(page));
    const uint8_t* known = reader.Read(kPageHashBytes, scratch);
    if (std::memcmp(hash.data(), known, kPageHashBytes) != 0) unlike.insert(page);
  }
  if (unlike.empty()) return {codec, ByteChain()};
  if (unlike.size() == placement_.pages()) return {codec, Encoded(codec)};
  SparseWriter writer(SparseCodec(codec));
  for (uint32_t page = 0; page < placement_.pages(); ++page) {
    if (unlike.count(page) > 0) {
      writer.AddWholePage(placement_.PageSize(page), pages_[0][page].data());
    } else {
      writer.AddPage(placement_.PageSize(page), {}, nullptr);
    }
  }
  return {SparseCodec(codec), ByteChain::FromString(writer.Finish())};
}

void Shard::SetRules(const ApplyRules& rules, const GroupPolicy& policy) {
  config_ = rules.optimizer;
  policy_ = policy;
  correction_ = rules.correction;
  const bool same = cluster_epoch_ == rules.cluster_epoch && kept_.capacity() == correction_.versions;
  cluster_epoch_ = rules.cluster_epoch;
  if (same) return;
  kept_.Reset(correction_.versions);
  kept_.Keep(version_, pages_[0]);
}

ShardCut Shard::Cut() const {
  const uint32_t pushes = first_open_step_ > 0 ? means_.PushesOf(first_open_step_ - 1) : 0;
  return {version_, first_open_step_, pages_, ledger_.Entries(), pushes};
}

void Shard::Restore(ShardCut cut) {
  RECON_CHECK_EQ(cut.pages.size(), pages_.size(), "planes of a cut");
  for (const Pages& role : cut.pages) RECON_CHECK_EQ(role.size(), placement_.pages(), "pages of a cut");
  version_ = cut.version;
  pages_ = std::move(cut.pages);
  ledger_.Restore(cut.ledger);
  first_open_step_ = cut.first_open_step;
  encoded_version_ = kNoVersion;
  update_version_ = kNoVersion;
  history_.NoteAll(version_);
  kept_.Reset(kept_.capacity());
  kept_.Keep(version_, pages_[0]);
  means_.Reset(means_.capacity());
  means_.NoteOpen(first_open_step_);
  if (first_open_step_ > 0) means_.Keep(first_open_step_ - 1, pages_[0], cut.mean_pushes);
}

}  // namespace recon
