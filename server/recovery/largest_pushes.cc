#include "server/recovery/largest_pushes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/codec/frame.h"
#include "server/durability/log_reader.h"
#include "server/store/gradient.h"

namespace recon {
namespace {

// Adds up the squares of each push, over its frames.
class NormVisitor final : public LogVisitor {
 public:
  // Worker, incarnation, step.
  using Push = std::tuple<uint32_t, uint64_t, uint64_t>;

  explicit NormVisitor(uint64_t last) : last_(last) {}

  absl::Status OnRules(const ApplyRules&) override { return absl::OkStatus(); }
  absl::Status OnRecord(LogRecordKind kind, uint64_t sequence, const ByteChain& payload) override {
    if (sequence > last_) return absl::CancelledError("far enough");
    if (kind != LogRecordKind::kFrame) return absl::OkStatus();
    const absl::StatusOr<double> squares = SquaresOf(payload);
    if (squares.ok()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("record ", sequence, ": ", squares.status().message()));
  }
  const std::map<Push, double>& squares() const { return squares_; }

 private:
  absl::StatusOr<double> SquaresOf(const ByteChain& payload) {
    RECON_ASSIGN_OR_RETURN(Frame frame, DecodeFrame(payload));
    double sum = 0;
    for (size_t i = 0; i < frame.parts.size(); ++i) {
      EncodedGradient gradient{static_cast<CodecId>(frame.parts[i].codec), frame.parts[i].count,
                               std::move(frame.payloads[i]), frame.parts[i].exponent};
      RECON_RETURN_IF_ERROR(CheckPayload(gradient.codec, gradient.count, gradient.payload));
      const double mean = RootMeanSquare(gradient);
      sum += mean * mean * static_cast<double>(gradient.count);
    }
    squares_[{frame.header.worker, frame.header.incarnation, frame.header.step}] += sum;
    return sum;
  }

  const uint64_t last_;
  std::map<Push, double> squares_;
};

}  // namespace

absl::StatusOr<LargestPushes> FindLargestPushes(FileSystem* files, const std::string& directory,
                                                uint64_t first, uint64_t last, size_t count) {
  NormVisitor visitor(last);
  const absl::Status read = ReadLog(files, directory, first, &visitor).status();
  if (!read.ok() && !absl::IsCancelled(read)) return read;
  std::vector<PushNorm> pushes;
  pushes.reserve(visitor.squares().size());
  for (const auto& [push, squares] : visitor.squares()) {
    const auto& [worker, incarnation, step] = push;
    pushes.push_back({WorkerId(worker), Incarnation(incarnation), step, std::sqrt(squares)});
  }
  LargestPushes result;
  result.pushes = pushes.size();
  if (pushes.empty()) return result;
  std::stable_sort(pushes.begin(), pushes.end(),
                   [](const PushNorm& a, const PushNorm& b) { return a.norm > b.norm; });
  result.median_norm = pushes[pushes.size() / 2].norm;
  pushes.resize(std::min(count, pushes.size()));
  result.largest = std::move(pushes);
  return result;
}

}  // namespace recon
