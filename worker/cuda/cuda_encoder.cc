#include "worker/cuda/cuda_encoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "worker/cuda/encode_kernels.h"

namespace recon::cuda {
namespace {

// Shards are encoded in runs of about so many pages (32 MiB of FP32), in turn on two streams: while one run
// is copied to the host, the next is encoded.
constexpr uint32_t kRunPages = 128;
constexpr int kStreams = 2;

PageRule RuleOf(const CodecSpec& spec, bool flush, bool sampled) {
  if (flush && spec.keeps_back()) return PageRule::kFp32;
  switch (spec.kind) {
    case CodecKind::kFp32:
      return PageRule::kFp32;
    case CodecKind::kFp16:
      return PageRule::kFp16;
    case CodecKind::kBf16:
      return PageRule::kBf16;
    case CodecKind::kInt8:
      return PageRule::kInt8;
    case CodecKind::kTopK:
      return sampled ? PageRule::kTopKSampled : PageRule::kTopK;
    case CodecKind::kRandomK:
      return PageRule::kRandomK;
    case CodecKind::kThreshold:
      break;
  }
  return PageRule::kThreshold;
}

CodecId CodecOf(PageRule rule) {
  switch (rule) {
    case PageRule::kFp32:
      return CodecId::kFp32;
    case PageRule::kFp16:
      return CodecId::kFp16;
    case PageRule::kBf16:
      return CodecId::kBf16;
    case PageRule::kInt8:
      return CodecId::kInt8;
    default:
      return CodecId::kSparseFp16;
  }
}

bool IsSparse(PageRule rule) { return rule >= PageRule::kTopK; }

// Pages of consecutive shards that are encoded together.
struct Run {
  uint32_t first_shard = 0, end_shard = 0;
  uint32_t first_page = 0, pages = 0;
  bool any_sparse = false;
  bool plain_halves = true;  // FP16 or BF16 without residual: the tile kernel.
  uint64_t dense_bytes = 0;  // Of all payloads, if none is sparse.
};

// Device and pinned memory of one stream.
struct Lane {
  Stream stream;
  Event sized;
  DeviceBuffer<PageTask> tasks;
  DeviceBuffer<PackTask> packs;
  DeviceBuffer<PageResult> results;
  DeviceBuffer<uint64_t> starts;
  DeviceBuffer<uint8_t> scratch, slots, packed;
  PinnedBuffer host_tasks, host_results;
};

class CudaEncoder : public GradientEncoder {
 public:
  CudaEncoder(const EncoderOptions& options, const ParamLayout* layout, int device)
      : options_(options), layout_(layout), device_(device), holds_residual_(layout->shard_count()) {
    uint32_t page = 0;
    for (const ShardPlacement& shard : layout->shards()) {
      first_pages_.push_back(page);
      page += shard.pages();
    }
    first_pages_.push_back(page);
    kept_squares_.resize(page);
  }

  absl::Status Open() {
    RECON_RETURN_IF_ERROR(Check(cudaSetDevice(device_), "cudaSetDevice"));
    for (Lane& lane : lanes_) {
      RECON_RETURN_IF_ERROR(lane.stream.Open());
      RECON_RETURN_IF_ERROR(lane.sized.Open());
    }
    RECON_RETURN_IF_ERROR(guesses_.ReserveZeroed(first_pages_.back(), lanes_[0].stream.get()));
    return Check(cudaStreamSynchronize(lanes_[0].stream.get()), "guesses");
  }

  absl::StatusOr<EncodedPush> Encode(GradientBuffer* gradient, const EncodePlan& plan) override {
    RECON_RETURN_IF_ERROR(Check(cudaSetDevice(device_), "cudaSetDevice"));  // Of the calling thread.
    EncodedPush push;
    absl::Status status = EncodeAsync(static_cast<DeviceGradient*>(gradient), plan, &push);
    // Whatever came of it: nothing may still use the gradient or a buffer when they are used again, or go.
    for (Lane& lane : lanes_) status.Update(Check(cudaStreamSynchronize(lane.stream.get()), "encode"));
    RECON_RETURN_IF_ERROR(status);
    return push;
  }

 private:
  absl::Status EncodeAsync(DeviceGradient* device_gradient, const EncodePlan& plan, EncodedPush* push) {
    RECON_RETURN_IF_ERROR(AllocateMemory(plan));
    for (Lane& lane : lanes_) {
      RECON_RETURN_IF_ERROR(Check(cudaStreamWaitEvent(lane.stream.get(), device_gradient->ready.get(), 0),
                                  "wait for the gradient"));
    }
    push->shards.resize(layout_->shard_count());
    for (uint32_t i = 0; i < layout_->shard_count(); ++i) push->shards[i].left_out = !plan.Has(i);
    RECON_RETURN_IF_ERROR(Clip(device_gradient->values.get(), push));
    // A run is started on its stream before the one before it is collected from the other.
    std::vector<Run> runs = Runs(plan);
    for (size_t i = 0; i <= runs.size(); ++i) {
      if (i < runs.size()) {
        RECON_RETURN_IF_ERROR(Start(runs[i], plan, device_gradient->values.get(), &lanes_[i % kStreams]));
      }
      if (i == 0) continue;
      RECON_RETURN_IF_ERROR(Collect(runs[i - 1], plan, &lanes_[(i - 1) % kStreams], push));
    }
    push->norm = std::sqrt(push->norm);
    push->residual_norm = std::sqrt(std::accumulate(kept_squares_.begin(), kept_squares_.end(), 0.0));
    return absl::OkStatus();
  }

  absl::Status Clip(float* gradient, EncodedPush* push) {
    if (options_.clip_norm <= 0) return absl::OkStatus();
    const cudaStream_t stream = lanes_[0].stream.get();
    RECON_RETURN_IF_ERROR(squares_.Reserve(kSquaresSums));
    RECON_RETURN_IF_ERROR(host_squares_.Reserve(kSquaresSums * sizeof(double)));
    SumSquares(gradient, layout_->params(), squares_.get(), stream);
    RECON_RETURN_IF_ERROR(
        Check(cudaMemcpyAsync(host_squares_.get(), squares_.get(), kSquaresSums * sizeof(double),
                              cudaMemcpyDeviceToHost, stream),
              "norm"));
    RECON_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream), "norm"));
    double sum = 0;
    for (int i = 0; i < kSquaresSums; ++i) sum += reinterpret_cast<const double*>(host_squares_.get())[i];
    push->gradient_norm = std::sqrt(sum);
    if (push->gradient_norm <= options_.clip_norm) return absl::OkStatus();
    Scale(gradient, layout_->params(), static_cast<float>(options_.clip_norm / push->gradient_norm), stream);
    push->gradient_norm = options_.clip_norm;
    return Check(cudaStreamSynchronize(stream), "clipping");  // The other stream reads it, too.
  }

  absl::Status AllocateMemory(const EncodePlan& plan) {
    const bool needed =
        options_.feedback && std::any_of(plan.groups.begin(), plan.groups.end(),
                                         [](const CodecSpec& spec) { return spec.keeps_back(); });
    if (!needed || memory_ready_) return absl::OkStatus();
    const cudaStream_t stream = lanes_[0].stream.get();
    if (options_.bf16_residual) {
      RECON_RETURN_IF_ERROR(residual_bf16_.ReserveZeroed(layout_->params(), stream));
    } else {
      RECON_RETURN_IF_ERROR(residual_.ReserveZeroed(layout_->params(), stream));
    }
    if (options_.momentum > 0) RECON_RETURN_IF_ERROR(velocity_.ReserveZeroed(layout_->params(), stream));
    RECON_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream), "residual"));
    memory_ready_ = true;
    return absl::OkStatus();
  }

  std::vector<Run> Runs(const EncodePlan& plan) const {
    std::vector<Run> runs;
    for (uint32_t i = 0; i < layout_->shard_count(); ++i) {
      if (!plan.Has(i)) continue;
      const ShardPlacement& shard = layout_->shards()[i];
      const CodecSpec& spec = plan.groups[shard.group];
      const PageRule rule = RuleOf(spec, plan.Flushes(i), options_.sampled);
      // Sparse payloads shift what follows: dense ones keep to runs of their own, encoded to where they
      // belong.
      if (runs.empty() || runs.back().end_shard != i || runs.back().pages + shard.pages() > kRunPages ||
          runs.back().any_sparse != IsSparse(rule)) {
        runs.emplace_back();
        runs.back().first_shard = i;
        runs.back().first_page = first_pages_[i];
      }
      Run& run = runs.back();
      run.end_shard = i + 1;
      run.pages += shard.pages();
      run.any_sparse = IsSparse(rule);
      const bool residual = (spec.keeps_back() && options_.feedback) || holds_residual_[i];
      run.plain_halves &= (rule == PageRule::kFp16 || rule == PageRule::kBf16) && !residual;
      if (!IsSparse(rule)) run.dense_bytes += AlignedBytes(CodecOf(rule), shard.size);
    }
    return runs;
  }

  // Payloads without sparse ones before them begin at multiples of 16.
  static uint64_t AlignedBytes(CodecId codec, uint32_t count) {
    return (EncodedBytes(codec, count) + 15) / 16 * 16;
  }

  absl::Status Start(const Run& run, const EncodePlan& plan, float* gradient, Lane* lane) {
    const cudaStream_t stream = lane->stream.get();
    const auto pages = static_cast<int>(run.pages);
    const uint64_t slots = run.any_sparse ? run.pages * kSlotBytes : 0;
    const uint64_t packed = std::max<uint64_t>(slots, run.dense_bytes) + run.pages * 64;
    RECON_RETURN_IF_ERROR(lane->tasks.Reserve(run.pages));
    RECON_RETURN_IF_ERROR(lane->packs.Reserve(run.pages));
    RECON_RETURN_IF_ERROR(lane->results.Reserve(run.pages));
    RECON_RETURN_IF_ERROR(lane->starts.Reserve(run.pages + 1));
    RECON_RETURN_IF_ERROR(lane->scratch.Reserve(ScanScratchBytes(pages)));
    RECON_RETURN_IF_ERROR(lane->slots.Reserve(slots));
    RECON_RETURN_IF_ERROR(lane->packed.Reserve(packed));
    RECON_RETURN_IF_ERROR(lane->host_tasks.Reserve(run.pages * (sizeof(PageTask) + sizeof(PackTask))));
    RECON_RETURN_IF_ERROR(lane->host_results.Reserve(run.pages * sizeof(PageResult)));

    auto* tasks = reinterpret_cast<PageTask*>(lane->host_tasks.get());
    auto* packs = reinterpret_cast<PackTask*>(tasks + run.pages);
    FillTasks(run, plan, tasks, packs);
    RECON_RETURN_IF_ERROR(lane->tasks.Upload(tasks, run.pages, stream));
    RECON_RETURN_IF_ERROR(lane->packs.Upload(packs, run.pages, stream));

    uint8_t* out = run.any_sparse ? lane->slots.get() : lane->packed.get();
    if (run.plain_halves) {
      EncodeTiles(lane->tasks.get(), pages, gradient, out, lane->results.get(), stream);
    } else {
      PageMemoryTable memory;
      memory.gradient = gradient;
      memory.residual = residual_.get();
      memory.residual_bf16 = residual_bf16_.get();
      memory.velocity = velocity_.get();
      memory.guesses = guesses_.get();
      memory.momentum = options_.momentum;
      memory.seed = static_cast<uint32_t>(plan.seed);
      EncodePages(lane->tasks.get(), pages, memory, out, lane->results.get(), stream);
    }
    if (run.any_sparse) {
      RECON_RETURN_IF_ERROR(Check(ScanBodies(lane->results.get(), pages, lane->starts.get(),
                                             lane->scratch.get(), lane->scratch.size(), stream),
                                  "scan of sizes"));
      PackPages(lane->tasks.get(), lane->packs.get(), lane->results.get(), lane->starts.get(), pages, out,
                lane->packed.get(), stream);
    }
    RECON_RETURN_IF_ERROR(Check(cudaGetLastError(), "encode kernels"));
    // The one thing the host must know of a step: how large it became.
    RECON_RETURN_IF_ERROR(
        Check(cudaMemcpyAsync(lane->host_results.get(), lane->results.get(), run.pages * sizeof(PageResult),
                              cudaMemcpyDeviceToHost, stream),
              "sizes"));
    return Check(cudaEventRecord(lane->sized.get(), stream), "cudaEventRecord");
  }

  void FillTasks(const Run& run, const EncodePlan& plan, PageTask* tasks, PackTask* packs) {
    uint32_t page = 0;
    uint32_t head_bytes = 0;
    uint64_t dense_at = 0;
    for (uint32_t i = run.first_shard; i < run.end_shard; ++i) {
      const ShardPlacement& shard = layout_->shards()[i];
      const CodecSpec& spec = plan.groups[shard.group];
      const PageRule rule = RuleOf(spec, plan.Flushes(i), options_.sampled);
      const bool keep = spec.keeps_back() && options_.feedback;
      const uint32_t own_head = rule == PageRule::kInt8 ? shard.pages() * sizeof(float)
                                : IsSparse(rule)        ? shard.pages() * kSparsePageHeaderBytes
                                                        : 0;
      const uint32_t first_page = page;
      for (uint32_t in_shard = 0; in_shard < shard.pages(); ++in_shard, ++page) {
        PageTask& task = tasks[page];
        task = PageTask();
        task.offset = shard.offset + uint64_t{in_shard} * kPageValues;
        task.count = shard.PageSize(in_shard);
        task.number = first_pages_[i] + in_shard;
        task.rule = rule;
        task.keep = keep;
        task.add_residual = keep || holds_residual_[i];
        task.k = ShareOf(spec.ratio, task.count);
        task.sample_rank = ShareOf(spec.ratio, (task.count + kSampleStride - 1) / kSampleStride);
        task.magnitude_min = BitsOf(spec.threshold);
        task.hash_limit = static_cast<uint64_t>(std::ceil(spec.ratio * 0x1p32));
        // int8 scales without sparse neighbours come from the results: only bodies are in the output.
        const uint64_t width = rule == PageRule::kInt8 ? 1 : EncodedBytes(CodecOf(rule), 1);
        task.out = run.any_sparse ? page * kSlotBytes : dense_at + width * in_shard * kPageValues;
        packs[page] = {first_page, head_bytes, own_head};
      }
      head_bytes += own_head;
      if (!IsSparse(rule)) dense_at += AlignedBytes(CodecOf(rule), shard.size);
      holds_residual_[i] = keep;
    }
  }

  absl::Status Collect(const Run& run, const EncodePlan& plan, Lane* lane, EncodedPush* push) {
    RECON_RETURN_IF_ERROR(Check(cudaEventSynchronize(lane->sized.get()), "encode"));
    const auto* results = reinterpret_cast<const PageResult*>(lane->host_results.get());
    const auto* tasks = reinterpret_cast<const PageTask*>(lane->host_tasks.get());
    uint64_t packed_bytes = 0;
    for (uint32_t page = 0; page < run.pages; ++page) {
      const OutOfRange& counts = results[page].out_of_range;
      push->stats.Add({counts.saturated, counts.underflown, counts.non_finite});
      push->norm += results[page].sent_squares;
      kept_squares_[run.first_page + page] = results[page].residual_squares;
      packed_bytes += results[page].body_bytes;
      if (IsSparse(tasks[page].rule)) packed_bytes += kSparsePageHeaderBytes;
      if (tasks[page].rule == PageRule::kInt8) packed_bytes += sizeof(float);
    }
    if (!run.any_sparse) packed_bytes = run.dense_bytes;
    const std::vector<Body> bodies = BodiesOf(run, plan, tasks, results);
    for (const Body& body : bodies) {
      EncodedShard& encoded = push->shards[body.shard];
      encoded.codec = body.codec;
      static_assert(kShardPagesMax == 1, "a part has one exponent");
      const uint32_t first = first_pages_[body.shard] - run.first_page;
      encoded.exponent = static_cast<int8_t>(results[first].exponent);
      const OutOfRange& counts = results[first].out_of_range;
      encoded.lost = uint64_t{counts.saturated} + counts.underflown;
      if (body.codec == CodecId::kInt8 && !run.any_sparse) {
        encoded.payload = ScalesOf(results + first, layout_->shards()[body.shard].pages());
      }
    }
    RECON_ASSIGN_OR_RETURN(const bool at_transport, DownloadToTransport(plan, bodies, lane, push));
    if (at_transport) return absl::OkStatus();
    RECON_ASSIGN_OR_RETURN(const std::shared_ptr<PinnedBuffer> host, TakePinned(packed_bytes));
    for (const Body& body : bodies) {
      push->shards[body.shard].payload.Append(host->get() + body.from, body.bytes, host);
    }
    return Download(lane, 0, packed_bytes, host->get());
  }

  // A shard's payload in the run's output, without an int8 payload's scales where these are not in it.
  struct Body {
    uint32_t shard = 0;
    CodecId codec = CodecId::kFp32;
    uint64_t from = 0, bytes = 0;
  };
  std::vector<Body> BodiesOf(const Run& run, const EncodePlan& plan, const PageTask* tasks,
                             const PageResult* results) const {
    std::vector<Body> bodies;
    uint64_t at = 0;
    for (uint32_t i = run.first_shard; i < run.end_shard; ++i) {
      const ShardPlacement& shard = layout_->shards()[i];
      const PageRule rule = RuleOf(plan.groups[shard.group], plan.Flushes(i), options_.sampled);
      const uint32_t first = first_pages_[i] - run.first_page;
      Body& body = bodies.emplace_back();
      body.shard = i;
      body.codec = CodecOf(rule);
      if (!run.any_sparse) {
        body.from = tasks[first].out;
        body.bytes = shard.size * (rule == PageRule::kInt8 ? 1 : EncodedBytes(body.codec, 1));
        continue;
      }
      body.from = at;
      body.bytes = IsSparse(rule)            ? shard.pages() * kSparsePageHeaderBytes
                   : rule == PageRule::kInt8 ? shard.pages() * sizeof(float)
                                             : 0;
      for (uint32_t page = 0; page < shard.pages(); ++page) body.bytes += results[first + page].body_bytes;
      at += body.bytes;
    }
    return bodies;
  }

  // Begins to bring the payloads to where the transport sends them from. False if it has no pinned memory for
  // all of them.
  absl::StatusOr<bool> DownloadToTransport(const EncodePlan& plan, const std::vector<Body>& bodies,
                                           Lane* lane, EncodedPush* push) const {
    if (!plan.memory) return false;
    std::vector<std::shared_ptr<uint8_t[]>> memory;
    for (const Body& body : bodies) {
      memory.push_back(plan.memory(body.shard, body.bytes));
      if (memory.back() == nullptr || !IsPinned(memory.back().get())) return false;
    }
    for (size_t i = 0; i < bodies.size(); ++i) {
      push->shards[bodies[i].shard].payload.Append(memory[i].get(), bodies[i].bytes, memory[i]);
    }
    // What lies side by side at both ends, and so in one range of pinned memory, is one copy.
    for (size_t first = 0, end = 0; first < bodies.size(); first = end) {
      uint64_t bytes = 0;
      while (end < bodies.size() && bodies[end].from == bodies[first].from + bytes &&
             memory[end].get() == memory[first].get() + bytes && OneOwner(memory[first], memory[end])) {
        bytes += bodies[end++].bytes;
      }
      RECON_RETURN_IF_ERROR(Download(lane, bodies[first].from, bytes, memory[first].get()));
    }
    return true;
  }

  static bool OneOwner(const std::shared_ptr<uint8_t[]>& a, const std::shared_ptr<uint8_t[]>& b) {
    return !a.owner_before(b) && !b.owner_before(a);
  }

  // The bytes are there when the stream has been waited for.
  static absl::Status Download(Lane* lane, uint64_t from, uint64_t bytes, uint8_t* to) {
    return Check(
        cudaMemcpyAsync(to, lane->packed.get() + from, bytes, cudaMemcpyDeviceToHost, lane->stream.get()),
        "download of payloads");
  }

  static ByteChain ScalesOf(const PageResult* results, uint32_t pages) {
    std::string scales;
    for (uint32_t page = 0; page < pages; ++page) {
      scales.append(reinterpret_cast<const char*>(&results[page].scale), sizeof(float));
    }
    return ByteChain::FromString(std::move(scales));
  }

  // A pinned buffer that no push refers to any more, or a new one: allocating them is slow.
  absl::StatusOr<std::shared_ptr<PinnedBuffer>> TakePinned(uint64_t bytes) {
    for (const std::shared_ptr<PinnedBuffer>& buffer : pinned_) {
      if (buffer.use_count() > 1) continue;
      std::atomic_thread_fence(std::memory_order_acquire);  // Behind the last reader's release.
      RECON_RETURN_IF_ERROR(buffer->Reserve(bytes));
      return buffer;
    }
    auto buffer = std::make_shared<PinnedBuffer>();
    RECON_RETURN_IF_ERROR(buffer->Reserve(bytes));
    pinned_.push_back(buffer);
    return buffer;
  }

  const EncoderOptions options_;
  const ParamLayout* const layout_;
  const int device_;
  std::vector<uint32_t> first_pages_;  // Of each shard, and behind the last.
  std::vector<bool> holds_residual_;
  std::vector<double> kept_squares_;  // Of each page, as of the last push that had it.
  DeviceBuffer<float> residual_, velocity_;
  DeviceBuffer<uint16_t> residual_bf16_;
  DeviceBuffer<uint32_t> guesses_;
  DeviceBuffer<double> squares_;
  PinnedBuffer host_squares_;
  bool memory_ready_ = false;
  Lane lanes_[kStreams];
  std::vector<std::shared_ptr<PinnedBuffer>> pinned_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GradientEncoder>> MakeCudaEncoder(const EncoderOptions& options,
                                                                 const ParamLayout* layout, int device) {
  auto encoder = std::make_unique<CudaEncoder>(options, layout, device);
  RECON_RETURN_IF_ERROR(encoder->Open());
  return std::unique_ptr<GradientEncoder>(std::move(encoder));
}

absl::StatusOr<std::unique_ptr<DeviceGradient>> MakeDeviceGradient(const ParamLayout& layout, int device) {
  RECON_RETURN_IF_ERROR(Check(cudaSetDevice(device), "cudaSetDevice"));
  auto gradient = std::make_unique<DeviceGradient>();
  RECON_RETURN_IF_ERROR(gradient->values.Reserve(layout.params()));
  RECON_RETURN_IF_ERROR(gradient->ready.Open());
  return gradient;
}

}  // namespace recon::cuda
