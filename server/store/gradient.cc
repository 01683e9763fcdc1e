#include "server/store/gradient.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "common/codec/codec.h"
#include "common/codec/int8_codec.h"
#include "common/codec/select_kernels.h"
#include "common/optim/optimizer_kernels.h"
#include "common/tensor/page.h"

namespace recon {
namespace {

static_assert(kPageParams % kTileParams == 0, "a tile has one int8 scale");

// Decodes a dense gradient, or adds it to a sum, from front to back.
class TileDecoder {
 public:
  explicit TileDecoder(const EncodedGradient& gradient)
      : codec_(gradient.codec), exponent_(gradient.exponent), reader_(gradient.payload) {
    RECON_CHECK(!IsSparse(codec_), "a sparse gradient has no tiles");
    RECON_CHECK_EQ(gradient.payload.size(), EncodedBytes(codec_, gradient.count));
    if (codec_ != CodecId::kInt8) return;
    scales_.resize(PagesOf(gradient.count));
    for (float& scale : scales_) std::memcpy(&scale, reader_.Read(sizeof(float), scratch_), sizeof(float));
  }

  // The next `count` values: kTileParams but for the last. Straight from the network's buffers.
  void Next(size_t count, float* values) {
    ForEachRunOf(count, [&](size_t at, const uint8_t* bytes, size_t run) {
      if (codec_ == CodecId::kInt8) {
        DecodeInt8(bytes, run, scales_[at_ / kPageParams], values + at);
      } else {
        Decode(codec_, bytes, run, values + at, exponent_);
      }
    });
  }

  // Adds them, each times `weight`, to `sum`.
  void AddNext(size_t count, float weight, float* sum) {
    if (codec_ == CodecId::kInt8) {
      alignas(64) float values[kTileParams];
      Next(count, values);
      return AddWeighted(values, weight, count, sum);
    }
    ForEachRunOf(count, [&](size_t at, const uint8_t* bytes, size_t run) {
      AddWeightedEncoded(codec_, exponent_, bytes, weight, run, sum + at);
    });
  }

 private:
  // Their encoded bytes, in pieces.
  template <typename Sink>
  void ForEachRunOf(size_t count, const Sink& sink) {
    const size_t width = codec_ == CodecId::kInt8 ? 1 : EncodedBytes(codec_, 1);
    for (size_t done = 0, run = 0; done < count; done += run) {
      const uint8_t* bytes = reader_.ReadRun(width, count - done, scratch_, &run);
      sink(done, bytes, run);
    }
    at_ += count;
  }

  const CodecId codec_;
  const int exponent_;
  ByteReader reader_;
  std::vector<float> scales_;
  size_t at_ = 0;
  uint8_t scratch_[sizeof(float)];  // For a value that lies in two buffers.
};

// A whole shard's sum, kept by a thread from one closing to the next.
struct SumScratch {
  std::vector<float> sum;
  std::vector<uint64_t> named;  // One bit a value.
  std::vector<uint16_t> indices;
  std::vector<float> values;
};

void AddSparse(const Contribution& contribution, SumScratch* scratch) {
  const auto weight = static_cast<float>(contribution.weight);
  const EncodedGradient& gradient = contribution.gradient;
  // The payload was checked when it came in.
  (void)ForEachSparsePage(
      gradient.codec, gradient.count, gradient.payload,
      [&](const SparsePage& page) {
        const size_t base = size_t{page.page} * kPageParams;
        for (size_t i = 0; i < page.values.size(); ++i) {
          const size_t at = base + (page.all ? i : page.indices[i]);
          scratch->sum[at] += weight * page.values[i];
          scratch->named[at / 64] |= uint64_t{1} << at % 64;
        }
      },
      gradient.exponent);
}

void AddDense(const Contribution& contribution, std::vector<float>* sum) {
  TileDecoder decoder(contribution.gradient);
  for (size_t at = 0; at < sum->size(); at += kTileParams) {
    const size_t count = std::min<size_t>(kTileParams, sum->size() - at);
    decoder.AddNext(count, static_cast<float>(contribution.weight), sum->data() + at);
  }
}

// The named values of one page; false if there are none.
bool CollectPage(SumScratch* scratch, SparsePage* page) {
  const size_t base = size_t{page->page} * kPageParams;
  scratch->indices.clear();
  scratch->values.clear();
  for (size_t word = 0; word * 64 < page->page_size; ++word) {
    for (uint64_t bits = scratch->named[base / 64 + word]; bits != 0; bits &= bits - 1) {
      const size_t index = word * 64 + static_cast<size_t>(__builtin_ctzll(bits));
      scratch->indices.push_back(static_cast<uint16_t>(index));
      scratch->values.push_back(scratch->sum[base + index]);
    }
  }
  page->indices = scratch->indices;
  page->values = scratch->values;
  return !scratch->indices.empty();
}

}  // namespace

void ForEachRun(const EncodedGradient& gradient,
                absl::FunctionRef<void(size_t offset, const uint8_t* values, size_t count)> sink) {
  RECON_CHECK(IsValueCodec(gradient.codec));
  const size_t width = EncodedBytes(gradient.codec, 1);
  uint8_t scratch[sizeof(float)];
  ByteReader reader(gradient.payload);
  for (size_t at = 0, run = 0; at < gradient.count; at += run) {
    const size_t page_left = kPageParams - at % kPageParams;
    const uint8_t* values =
        reader.ReadRun(width, std::min<size_t>(page_left, gradient.count - at), scratch, &run);
    sink(at, values, run);
  }
}

void ForEachTile(const EncodedGradient& gradient, TileSink sink) {
  alignas(64) float values[kTileParams];
  TileDecoder decoder(gradient);
  for (size_t at = 0; at < gradient.count; at += kTileParams) {
    const size_t count = std::min<size_t>(kTileParams, gradient.count - at);
    decoder.Next(count, values);
    sink(at, absl::MakeConstSpan(values, count));
  }
}

void ForEachSumTile(const std::vector<Contribution>& contributions, TileSink sink) {
  alignas(64) float sum[kTileParams];
  std::vector<TileDecoder> decoders;
  decoders.reserve(contributions.size());
  for (const Contribution& contribution : contributions) {
    RECON_CHECK_EQ(contribution.gradient.count, contributions.front().gradient.count);
    decoders.emplace_back(contribution.gradient);
  }
  const size_t total = contributions.empty() ? 0 : contributions.front().gradient.count;
  for (size_t at = 0; at < total; at += kTileParams) {
    const size_t count = std::min<size_t>(kTileParams, total - at);
    std::memset(sum, 0, sizeof(sum));
    for (size_t i = 0; i < contributions.size(); ++i) {
      decoders[i].AddNext(count, static_cast<float>(contributions[i].weight), sum);
    }
    sink(at, absl::MakeConstSpan(sum, count));
  }
}

void ForEachSumPage(const std::vector<Contribution>& contributions,
                    absl::FunctionRef<void(const SparsePage&)> sink) {
  RECON_CHECK(!contributions.empty());
  thread_local SumScratch scratch;
  const uint32_t total = contributions.front().gradient.count;
  scratch.sum.assign(total, 0.0f);
  scratch.named.assign((total + 63) / 64, 0);
  bool all = false;
  for (const Contribution& contribution : contributions) {
    RECON_CHECK_EQ(contribution.gradient.count, total);
    if (IsSparse(contribution.gradient.codec)) {
      AddSparse(contribution, &scratch);
    } else {
      AddDense(contribution, &scratch.sum);
      all = true;
    }
  }
  for (uint32_t number = 0; number < PagesOf(total); ++number) {
    SparsePage page;
    page.page = number;
    page.page_size = static_cast<uint32_t>(std::min<size_t>(kPageParams, total - number * kPageParams));
    page.all = all;
    if (all) {
      page.values = absl::MakeConstSpan(scratch.sum).subspan(number * kPageParams, page.page_size);
    } else if (!CollectPage(&scratch, &page)) {
      continue;
    }
    sink(page);
  }
}

double RootMeanSquare(const EncodedGradient& gradient) {
  double sum = 0;
  if (IsSparse(gradient.codec)) {
    // The payload was checked when it came in.
    (void)ForEachSparsePage(
        gradient.codec, gradient.count, gradient.payload,
        [&](const SparsePage& page) { sum += SumOfSquares(page.values.data(), page.values.size()); },
        gradient.exponent);
  } else {
    ForEachTile(gradient,
                [&](size_t, absl::Span<const float> tile) { sum += SumOfSquares(tile.data(), tile.size()); });
  }
  return std::sqrt(sum / gradient.count);
}

bool AnySparse(const std::vector<Contribution>& contributions) {
  return std::any_of(contributions.begin(), contributions.end(),
                     [](const Contribution& c) { return IsSparse(c.gradient.codec); });
}

}  // namespace recon
