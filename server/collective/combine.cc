#include "server/collective/combine.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/types/span.h"
#include "common/base/check.h"

namespace recon {
namespace {

// Unsigned, so that what overflows wraps.
template <typename T, bool kInteger = std::is_integral_v<T>>
struct Wrapping {
  using Type = std::make_unsigned_t<T>;
};
template <typename T>
struct Wrapping<T, false> {
  using Type = T;
};

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    using U = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
};
struct Multiply {
  template <typename T>
  T operator()(T a, T b) const {
    using U = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
};
// What is not equal to itself is not a number, and stays.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

// `from` needs no alignment. Written so that compilers make vectors of it.
template <typename T, typename Op>
void Into(T* __restrict to, const uint8_t* __restrict from, size_t count, Op op) {
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = op(to[i], value);
  }
}

template <typename T>
void Into(ReduceOp op, T* to, const uint8_t* from, size_t count) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return Into(to, from, count, Add());
    case ReduceOp::kMin:
      return Into(to, from, count, Min());
    case ReduceOp::kMax:
      return Into(to, from, count, Max());
    case ReduceOp::kProduct:
      return Into(to, from, count, Multiply());
  }
}

template <typename T>
ByteChain Owned(std::shared_ptr<T[]> values, size_t bytes) {
  ByteChain chain;
  chain.Append(values.get(), bytes, std::shared_ptr<const void>(values, values.get()));
  return chain;
}

template <typename T>
void Divide(ReduceOp op, size_t members, T* values, size_t count) {
  if (op != ReduceOp::kMean || members < 2) return;
  if constexpr (std::is_floating_point_v<T>) {
    const T divisor = static_cast<T>(members);
    for (size_t i = 0; i < count; ++i) values[i] /= divisor;
  }
}

// Values that are reduced in the type they come in.
template <typename T>
ByteChain ReduceAs(ReduceOp op, size_t bytes, const std::vector<ByteChain>& contributions) {
  const size_t count = bytes / sizeof(T);
  std::shared_ptr<T[]> result(new T[count]);
  contributions.front().CopyTo(result.get(), bytes);
  for (size_t i = 1; i < contributions.size(); ++i) {
    ByteReader reader(contributions[i]);
    uint8_t scratch[sizeof(T)];
    for (size_t done = 0, items = 0; done < count; done += items) {
      const uint8_t* from = reader.ReadRun(sizeof(T), count - done, scratch, &items);
      Into(op, result.get() + done, from, items);
    }
  }
  Divide(op, contributions.size(), result.get(), count);
  return Owned(std::move(result), bytes);
}

// Values of 16 or 8 bits, by way of FP32, a tile that stays in the cache at a time: of whole blocks.
ByteChain ReduceNarrow(ReduceOp op, Wire format, size_t bytes, const std::vector<ByteChain>& contributions) {
  constexpr size_t kTile = 16 * kInt8BlockValues;
  const std::optional<uint64_t> values = ValuesOnWire(DType::kFloat32, format, bytes);
  RECON_CHECK(values.has_value(), "a chunk that was not checked");
  const size_t count = *values;
  std::shared_ptr<uint8_t[]> result(new uint8_t[bytes]);
  std::vector<ByteReader> readers;
  readers.reserve(contributions.size());
  for (const ByteChain& contribution : contributions) readers.emplace_back(contribution);
  std::vector<float> sum(kTile), wide(kTile);
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t tile = std::min(kTile, count - begin);
    for (size_t i = 0; i < readers.size(); ++i) {
      WidenNext(format, &readers[i], tile, (i == 0 ? sum : wide).data());
      if (i > 0) Into(op, sum.data(), reinterpret_cast<const uint8_t*>(wide.data()), tile);
    }
    Divide(op, contributions.size(), sum.data(), tile);
    NarrowTo(format, sum.data(), tile, result.get() + BytesOnWire(DType::kFloat32, format, begin));
  }
  return Owned(std::move(result), bytes);
}

// Any byte but 0 is true.
ByteChain ReduceBools(ReduceOp op, size_t bytes, const std::vector<ByteChain>& contributions) {
  const bool all = op == ReduceOp::kMin || op == ReduceOp::kProduct;
  std::shared_ptr<uint8_t[]> result(new uint8_t[bytes]);
  std::memset(result.get(), all ? 1 : 0, bytes);
  for (const ByteChain& contribution : contributions) {
    size_t at = 0;
    for (const ByteChain::Piece& piece : contribution.pieces()) {
      for (size_t i = 0; i < piece.size; ++i, ++at) {
        const uint8_t value = piece.data[i] != 0 ? 1 : 0;
        result[at] = all ? result[at] & value : result[at] | value;
      }
    }
  }
  return Owned(std::move(result), bytes);
}

ByteChain Reduce(const CallHeader& chunk, const std::vector<ByteChain>& contributions) {
  if (chunk.wire != Wire::kSame) return ReduceNarrow(chunk.op, chunk.wire, chunk.bytes, contributions);
  switch (chunk.dtype) {
    case DType::kFloat32:
      return ReduceAs<float>(chunk.op, chunk.bytes, contributions);
    case DType::kFloat16:
      return ReduceNarrow(chunk.op, Wire::kFloat16, chunk.bytes, contributions);
    case DType::kBfloat16:
      return ReduceNarrow(chunk.op, Wire::kBfloat16, chunk.bytes, contributions);
    case DType::kFloat64:
      return ReduceAs<double>(chunk.op, chunk.bytes, contributions);
    case DType::kInt32:
      return ReduceAs<int32_t>(chunk.op, chunk.bytes, contributions);
    case DType::kInt64:
      return ReduceAs<int64_t>(chunk.op, chunk.bytes, contributions);
    case DType::kUint8:
      return ReduceAs<uint8_t>(chunk.op, chunk.bytes, contributions);
    case DType::kBool:
      return ReduceBools(chunk.op, chunk.bytes, contributions);
  }
  return {};
}

}  // namespace

ByteChain CombineChunk(const CallHeader& chunk, const std::vector<ByteChain>& contributions) {
  if (chunk.bytes == 0) return {};
  RECON_CHECK(!contributions.empty());
  switch (chunk.combine) {
    case Combine::kCopy:
      RECON_CHECK_LT(chunk.source, contributions.size());
      return contributions[chunk.source];
    case Combine::kReduce:
      return Reduce(chunk, contributions);
    case Combine::kConcat: {
      ByteChain all;
      for (const ByteChain& contribution : contributions) all.Append(contribution);
      return all;
    }
  }
  return {};
}

}  // namespace recon
