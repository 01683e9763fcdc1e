#include "server/recovery/initial_values.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/start_thread.h"
#include "common/base/status_macros.h"
#include "common/storage/store_url.h"
#include "server/durability/recovery.h"

namespace recon {
namespace {

// The same code, with the flag in front.
absl::Status OfFlag(const std::string& directory, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("--from-snapshot ", directory, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<InitialValues>> InitialValues::Open(const std::string& directory,
                                                                   uint64_t generation) {
  RECON_ASSIGN_OR_RETURN(auto store, OpenStore(directory, /*writer=*/false));
  std::unique_ptr<InitialValues> initial(new InitialValues(directory, std::move(store)));
  const auto take = [&](const Manifest& manifest) -> absl::Status {
    RECON_ASSIGN_OR_RETURN(initial->lease_, ReaderLease::TakeIfWritable(initial->store_.get(),
                                                                        Generation(manifest.generation())));
    RECON_ASSIGN_OR_RETURN(initial->carried_, ReadCarried(initial->store_.get(), manifest));
    initial->manifest_ = manifest;
    return absl::OkStatus();
  };
  if (generation != 0) {
    const absl::StatusOr<Manifest> manifest = initial->reader_.ReadManifest(Generation(generation));
    absl::Status taken = manifest.ok() ? take(*manifest) : manifest.status();
    if (absl::IsNotFound(taken)) {
      RECON_ASSIGN_OR_RETURN(const std::vector<Generation> there, initial->reader_.List());
      std::vector<uint64_t> numbers;
      for (const Generation each : there) numbers.push_back(each.value());
      taken = absl::NotFoundError(absl::StrCat("there is no such snapshot, but ",
                                               numbers.empty() ? "none" : absl::StrJoin(numbers, ", ")));
    }
    if (!taken.ok()) return OfFlag(absl::StrCat(directory, ":", generation), taken);
    LogInfo("initial parameters will be those of snapshot {} of {}", generation, directory);
    return initial;
  }
  const absl::StatusOr<std::optional<Manifest>> found = LoadNewest(initial->reader_, take);
  if (!found.ok()) return OfFlag(directory, found.status());
  if (!*found) return absl::NotFoundError(absl::StrCat("--from-snapshot ", directory, " holds no snapshot"));
  LogInfo("initial parameters will be those of snapshot {} of {}", initial->generation(), directory);
  return initial;
}

InitialValues::~InitialValues() {
  stopped_.store(true);
  if (loader_.joinable()) loader_.join();
}

absl::Status InitialValues::Check(const ModelSpec& model) const {
  // A status of gRPC's carries 8 KiB, in which other letters than ASCII's take three times their bytes.
  constexpr size_t kShownBytesMax = 2000;
  constexpr size_t kLoggedBytesMax = size_t{64} << 10;
  const std::vector<std::string> differences = DifferencesTo(model, manifest_, carried_.get());
  if (differences.empty()) return absl::OkStatus();
  const std::string all = JoinDifferences(differences, "\n  ", kLoggedBytesMax);
  if (all.size() > kShownBytesMax) {
    LogWarn("{} differences between snapshot {} of {} and model {}:\n  {}", differences.size(), generation(),
            directory_, ShownName(model.name()), all);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the job begins with snapshot ", generation(), " of ", directory_,
                   ", which does not fit model ", model.name(), ", ", differences.size(),
                   " differences: ", JoinDifferences(differences, "; ", kShownBytesMax)));
}

absl::Status InitialValues::LoadInto(ParamServer* params) {
  const auto layout = params->layout();
  RECON_ASSIGN_OR_RETURN(const TensorRemap remap, TensorRemap::Create(reader_, manifest_, carried_, *layout));
  const absl::Status loaded =
      params->LoadInitialValues([&](uint32_t shard) -> absl::StatusOr<std::vector<PageRef>> {
        if (stopped_.load()) return absl::CancelledError("the server ends");
        return remap.ReadShard(shard);
      });
  if (!loaded.ok()) return OfFlag(directory_, loaded);
  lease_.reset();
  LogInfo("initial parameters from snapshot {} of {}", generation(), directory_);
  return absl::OkStatus();
}

void InitialValues::Load(ParamServer* params, std::function<void(const absl::Status&)> done) {
  const absl::Status started = StartThread([this, params, done] { done(LoadInto(params)); }, &loader_);
  if (!started.ok()) done(started);
}

}  // namespace recon
