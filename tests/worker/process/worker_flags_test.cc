#include "worker/process/worker_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

absl::StatusOr<WorkerFlags> Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "recon-worker");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  int exit_code = 0;
  return ParseWorkerFlags(static_cast<int>(argv.size()), argv.data(), &exit_code);
}

}  // namespace

TEST_CASE("flags say what a worker computes in, and how much at once", "[flags]") {
  const WorkerFlags none = *Parse({});
  CHECK(none.model.precision == Precision::kFp32);
  CHECK_FALSE(none.batch.follows_device);
  CHECK_FALSE(none.batch.pieces_follow_device);
  CHECK(none.batch.piece_samples == 0);

  const WorkerFlags all = *Parse({"--precision", "fp16", "--loss-scale", "1024", "--batch", "auto",
                                  "--batch-min", "8", "--batch-max", "512", "--micro-batch", "auto"});
  CHECK(all.model.precision == Precision::kFp16);
  CHECK(all.loss_scale == 1024);
  CHECK(all.batch.follows_device);
  CHECK(all.batch.min == 8);
  CHECK(all.batch.max == 512);
  CHECK(all.batch.pieces_follow_device);
  CHECK(Parse({"--micro-batch", "12"})->batch.piece_samples == 12);
}

TEST_CASE("a script that has the worker as a library says itself what it computes in", "[flags]") {
  for (const char* name : {"precision", "loss-scale", "batch", "batch-min", "batch-max", "micro-batch"}) {
    const absl::Status status = WorkerFlagsOf({{name, "1"}}).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(status.message() ==
          absl::StrCat(name, " is a setting of recon-worker's own models: a script decides that itself"));
  }
  CHECK(WorkerFlagsOf({{"device", "cuda:3"}})->model.device == "cuda:3");
}

}  // namespace recon
