#include "tools/bench/codecs.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/codec/codec.h"
#include "common/codec/half_codec.h"
#include "common/codec/int8_codec.h"
#include "common/codec/select_kernels.h"
#include "common/codec/selection.h"
#include "common/codec/sparsifier.h"
#include "common/tensor/page.h"
#include "nlohmann/json.hpp"
#include "tools/bench/median.h"

namespace recon {
namespace {

constexpr int kThreadsMax = 2;
constexpr int kWarmUpPushes = 20;
// Values one call of an encoder gets: a shard of the largest size.
constexpr size_t kShard = 8 * kPageParams;

// Gradient-like values: 64 layers of different scale, each normally distributed.
std::vector<float> GradientLike(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  float scale = 1;
  for (size_t i = 0; i < count; ++i) {
    if (i % (count / 64 + 1) == 0) scale = std::exp(normal(random));
    values[i] = scale * normal(random);
  }
  return values;
}

// Runs `work(begin, end)` over [0, count) in shards, spread over threads; seconds it took.
double Timed(int threads, size_t count, const std::function<void(size_t, size_t)>& work) {
  const size_t shards = (count + kShard - 1) / kShard;
  const auto part = [&](int thread) {
    for (size_t shard = shards * thread / threads; shard < shards * (thread + 1) / threads; ++shard) {
      work(shard * kShard, std::min(count, (shard + 1) * kShard));
    }
  };
  const absl::Time start = Now();
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(part, thread);
  part(0);
  for (std::thread& other : others) other.join();
  return absl::ToDoubleSeconds(Now() - start);
}

// Everything the measurements work on, allocated and touched before the first.
struct Arena {
  explicit Arena(const CodecsOptions& options)
      : count(options.values),
        gradients{GradientLike(count, 1), GradientLike(count, 2)},
        decoded(count),
        bytes(4 * count + 4096) {}

  const size_t count;
  const std::vector<float> gradients[2];
  std::vector<float> decoded;
  std::vector<uint8_t> bytes;
};

// What a sparsifying encoder keeps.
struct Feedback {
  explicit Feedback(size_t count) : residual(count), guesses(count / kPageParams + 1) {}

  std::vector<float> residual;
  std::vector<uint32_t> guesses;
};

void SparsifyShard(const SparsifyOptions& options, Feedback* feedback, const float* gradient, size_t begin,
                   size_t end, std::string* payload) {
  thread_local Sparsifier sparsifier;
  SparseWriter writer(CodecId::kSparseFp16);
  for (size_t at = begin; at < end; at += kPageParams) {
    PageMemory memory;
    memory.residual = feedback->residual.data() + at;
    memory.guess = &feedback->guesses[at / kPageParams];
    const auto page = static_cast<uint32_t>(at / kPageParams);
    sparsifier.AddPage(options, gradient + at, std::min(end - at, kPageParams), page, memory, &writer);
  }
  *payload = writer.Finish();
}

class Bench {
 public:
  explicit Bench(const CodecsOptions& options)
      : options_(options), arena_(options), payloads_(arena_.count / kShard + 1) {}

  nlohmann::ordered_json Run() {
    for (int round = 0; round < options_.rounds + 1; ++round) {
      measuring_ = round > 0;  // The first one warms up pages, guesses and residuals.
      gradient_ = arena_.gradients[round % 2].data();
      for (int threads = 1; threads <= kThreadsMax; ++threads) Round(threads);
      NthElement();
    }
    return Report();
  }

 private:
  void Note(const std::string& name, int threads, double seconds) {
    if (measuring_) seconds_[{name, threads}].push_back(seconds);
  }
  double Seconds(const std::string& name, int threads) { return Median(seconds_[{name, threads}]); }

  void Round(int threads) {
    float* out = arena_.decoded.data();
    const float* other = arena_.gradients[gradient_ == arena_.gradients[0].data() ? 1 : 0].data();
    uint8_t* bytes = arena_.bytes.data();
    const size_t count = arena_.count;
    Note("memcpy", threads, Timed(threads, count, [&](size_t begin, size_t end) {
           std::memcpy(out + begin, gradient_ + begin, (end - begin) * sizeof(float));
         }));
    Note("triad", threads, Timed(threads, count, [&](size_t begin, size_t end) {
           for (size_t i = begin; i < end; ++i) out[i] = gradient_[i] + 3.0f * other[i];
         }));
    for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
      const std::string name = CodecName(codec);
      const size_t width = EncodedBytes(codec, 1);
      Note(name + " encode", threads, Timed(threads, count, [&](size_t begin, size_t end) {
             Encode(codec, gradient_ + begin, end - begin, bytes + width * begin);
           }));
      Note(name + " decode", threads, Timed(threads, count, [&](size_t begin, size_t end) {
             Decode(codec, bytes + width * begin, end - begin, out + begin);
           }));
    }
    ScaledFp16(threads, bytes, out);
    Int8(threads, bytes, out);
    SparsifyOptions topk;
    topk.ratio = options_.ratio;
    Sparse("topk", topk, threads);
    SparsifyOptions sampled = topk;
    sampled.rule = SparseRule::kTopKSampled;
    Sparse("topk sampled", sampled, threads);
    SparsifyOptions randomk = topk;
    randomk.rule = SparseRule::kRandomK;
    Sparse("randomk", randomk, threads);
  }

  static void EachPage(size_t begin, size_t end, const std::function<void(size_t, size_t)>& page) {
    for (size_t at = begin; at < end; at += kPageParams) page(at, std::min(end - at, kPageParams));
  }

  // As gradients go, each page with its exponent.
  void ScaledFp16(int threads, uint8_t* bytes, float* out) {
    std::vector<int> exponents(arena_.count / kPageParams + 1);
    Note("fp16 gradient encode", threads, Timed(threads, arena_.count, [&](size_t begin, size_t end) {
           EachPage(begin, end, [&](size_t at, size_t size) {
             int& exponent = exponents[at / kPageParams];
             exponent = ExponentFor(LargestMagnitudeBits(gradient_ + at, size));
             EncodeFp16(gradient_ + at, size, bytes + 2 * at, exponent);
           });
         }));
    Note("fp16 gradient decode", threads, Timed(threads, arena_.count, [&](size_t begin, size_t end) {
           EachPage(begin, end, [&](size_t at, size_t size) {
             DecodeFp16(bytes + 2 * at, size, out + at, exponents[at / kPageParams]);
           });
         }));
  }

  void Int8(int threads, uint8_t* bytes, float* out) {
    std::vector<float> scales(arena_.count / kPageParams + 1);
    Note("int8 encode", threads, Timed(threads, arena_.count, [&](size_t begin, size_t end) {
           EachPage(begin, end, [&](size_t at, size_t size) {
             EncodeStats stats;
             scales[at / kPageParams] = Int8Scale(gradient_ + at, size, &stats);
             EncodeInt8Page(gradient_ + at, size, scales[at / kPageParams], 7, bytes + at);
           });
         }));
    Note("int8 decode", threads, Timed(threads, arena_.count, [&](size_t begin, size_t end) {
           EachPage(begin, end, [&](size_t at, size_t size) {
             DecodeInt8(bytes + at, size, scales[at / kPageParams], out + at);
           });
         }));
  }

  void Sparse(const std::string& name, const SparsifyOptions& rule, int threads) {
    auto [found, is_new] = feedback_.try_emplace(name, arena_.count);
    Feedback& feedback = found->second;
    // Residuals grow for some dozen pushes; measured is what training has for the rest of its time.
    for (int push = 0; is_new && push < kWarmUpPushes; ++push) {
      Timed(threads, arena_.count, [&](size_t begin, size_t end) {
        SparsifyShard(rule, &feedback, arena_.gradients[push % 2].data(), begin, end,
                      &payloads_[begin / kShard]);
      });
    }
    Note(name + " encode", threads, Timed(threads, arena_.count, [&](size_t begin, size_t end) {
           SparsifyShard(rule, &feedback, gradient_, begin, end, &payloads_[begin / kShard]);
         }));
    std::vector<ByteChain> chains;
    for (std::string& payload : payloads_) chains.push_back(ByteChain::FromString(std::move(payload)));
    Note(name + " decode", threads, Timed(threads, arena_.count, [&](size_t begin, size_t end) {
           const auto size = static_cast<uint32_t>(end - begin);
           float* out = arena_.decoded.data() + begin;
           const bool ok = ForEachSparsePage(CodecId::kSparseFp16, size, chains[begin / kShard],
                                             [&](const SparsePage& page) {
                                               float* values = out + page.page * kPageParams;
                                               for (size_t i = 0; i < page.indices.size(); ++i) {
                                                 values[page.indices[i]] = page.values[i];
                                               }
                                             })
                               .ok();
           if (!ok) sink_ok_ = false;
         }));
    uint64_t bytes = 0;
    for (const ByteChain& chain : chains) bytes += chain.size();
    bytes_[name] = bytes;
  }

  // The k-th largest magnitude of the whole gradient, as a plain program would find it.
  void NthElement() {
    std::vector<float>& magnitudes = arena_.decoded;
    for (size_t i = 0; i < arena_.count; ++i) magnitudes[i] = std::fabs(gradient_[i]);
    const absl::Time start = Now();
    const auto k = static_cast<ptrdiff_t>(options_.ratio * static_cast<double>(arena_.count));
    std::nth_element(magnitudes.begin(), magnitudes.begin() + k, magnitudes.end(), std::greater<>());
    Note("nth_element", 1, absl::ToDoubleSeconds(Now() - start));
  }

  nlohmann::ordered_json Report() {
    const double fp32_gb = 4e-9 * static_cast<double>(arena_.count);
    // What the machine moves at best, bytes read and written.
    const auto bandwidth = [&](int threads) {
      return std::max(2 * fp32_gb / Seconds("memcpy", threads), 3 * fp32_gb / Seconds("triad", threads));
    };
    nlohmann::ordered_json result;
    result["bench"] = "codecs";
    result["device"] = "cpu";
    result["values"] = arena_.count;
    result["rounds"] = options_.rounds;
    for (int threads = 1; threads <= kThreadsMax; ++threads) {
      auto& figures = result["threads_" + std::to_string(threads)];
      figures["memcpy_GBps"] = 2 * fp32_gb / Seconds("memcpy", threads);
      figures["triad_GBps"] = 3 * fp32_gb / Seconds("triad", threads);
      for (const auto& [key, values] : seconds_) {
        if (key.second != threads || key.first == "memcpy" || key.first == "triad") continue;
        if (key.first == "nth_element") continue;
        figures[key.first + " fp32_GBps"] = fp32_gb / Median(values);
      }
    }
    for (const auto& [name, bytes] : bytes_) result["bytes"][name] = bytes;
    result["nth_element_ms"] = 1e3 * Seconds("nth_element", 1);
    result["topk_ms"] = 1e3 * Seconds("topk encode", 1);
    auto& ratios = result["ratios"];
    for (int threads = 1; threads <= kThreadsMax; ++threads) {
      const std::string suffix = threads == 1 ? "" : "_2_threads";
      for (const std::string codec : {"fp16", "bf16"}) {
        for (const std::string way : {"encode", "decode"}) {
          ratios[codec + "_" + way + "_of_bandwidth" + suffix] =
              1.5 * fp32_gb / Seconds(codec + " " + way, threads) / bandwidth(threads);
        }
      }
      // One pass: the gradient read, the residual read and written.
      ratios["topk_of_bandwidth_bound" + suffix] =
          3 * fp32_gb / Seconds("topk encode", threads) / bandwidth(threads);
    }
    ratios["topk_vs_nth_element"] = Seconds("nth_element", 1) / Seconds("topk encode", 1);
    result["decoded_without_error"] = sink_ok_.load();
    return result;
  }

  const CodecsOptions options_;
  Arena arena_;
  std::map<std::string, Feedback> feedback_;
  std::vector<std::string> payloads_;
  const float* gradient_ = nullptr;
  bool measuring_ = false;
  std::atomic<bool> sink_ok_{true};
  std::map<std::pair<std::string, int>, std::vector<double>> seconds_;
  std::map<std::string, uint64_t> bytes_;
};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> RunCodecs(const CodecsOptions& options) {
  return Bench(options).Run();
}

}  // namespace recon
