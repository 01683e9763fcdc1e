#include "worker/process/worker.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "common/base/sleep.h"
#include "common/base/start_guard.h"
#include "common/base/status_macros.h"
#include "worker/process/train_loop.h"
#include "worker/training/member.h"

namespace recon {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(50);

}  // namespace

absl::Status RunWorker(const WorkerFlags& flags, const std::atomic<bool>* stop) {
  std::optional<StartGuard> guard("the worker");
  RECON_ASSIGN_OR_RETURN(const TrainAndTest data, OpenDataset(flags.data));
  ModelOptions model = flags.model;
  model.features = data.train->features();
  model.classes = data.train->classes();
  RECON_ASSIGN_OR_RETURN(const std::unique_ptr<ModelBackend> backend, MakeBackend(model));
  Member::Options options = MemberOptionsOf(flags);
  options.model = backend->spec();
  RECON_RETURN_IF_ERROR(AssignGroups(flags.tensor_groups, &options.model));
  options.precision = PrecisionName(model.precision);
  options.train_samples = data.train->size();
  options.test_samples = data.test->size();
  options.data_fingerprint = Fingerprint(*data.train);
  options.simulated = backend->simulated() || flags.step_time > absl::ZeroDuration() || flags.slow_factor > 1;
  RECON_ASSIGN_OR_RETURN(const std::unique_ptr<Member> member, Member::Join(options, backend.get(), stop));
  guard.reset();
  if (const absl::Status fits = BatchPlan::Check(flags.batch, *member->session()->job()); !fits.ok()) {
    return member->Leave(fits);
  }
  TrainLoop::Options loop_options;
  loop_options.slow_factor = flags.slow_factor;
  loop_options.step_time = flags.step_time;
  loop_options.batch = flags.batch;
  loop_options.precision = model.precision;
  loop_options.loss_scale = flags.loss_scale;
  loop_options.memory_used = [&member] { return MemoryUsed(member->device()); };
  TrainLoop loop(loop_options, backend.get(), &data, member->trainer());
  std::atomic<bool> ended{false};
  std::thread watcher([&] {
    while (!ended.load() && !stop->load()) Sleep(kStopPoll);
    if (!ended.load()) member->RequestStop();
  });
  const absl::Status status = loop.Run();
  ended.store(true);
  watcher.join();
  return member->Leave(status);
}

}  // namespace recon
