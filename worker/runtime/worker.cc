#include "worker/runtime/worker.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/metrics/metrics.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "worker/client/param_client.h"
#include "worker/runtime/session.h"
#include "worker/runtime/train_loop.h"

namespace recon {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(50);
// What is under way may take so long once a stop was asked for.
constexpr absl::Duration kStopTimeout = absl::Seconds(10);

}  // namespace

absl::Status RunWorker(const WorkerFlags& flags, const std::atomic<bool>* stop) {
  RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(flags.server, flags.tls));
  RECON_ASSIGN_OR_RETURN(const TrainAndTest data, OpenDataset(flags.data));
  ModelOptions model = flags.model;
  model.features = data.train->features();
  model.classes = data.train->classes();
  RECON_ASSIGN_OR_RETURN(const std::unique_ptr<ModelBackend> backend, MakeBackend(model));
  RECON_ASSIGN_OR_RETURN(const ParamLayout layout, ParamLayout::Create(backend->spec()));
  backend->Bind(&layout);
  Metrics metrics;
  if (!flags.metrics_address.empty()) RECON_RETURN_IF_ERROR(metrics.Serve(flags.metrics_address));

  Session::Options session_options;
  session_options.name = flags.name;
  session_options.model = backend->spec();
  session_options.train_samples = data.train->size();
  session_options.test_samples = data.test->size();
  session_options.device = backend->device();
  session_options.codec = CodecName(flags.codec);
  session_options.simulated = backend->simulated() || flags.slow_factor > 1;
  session_options.reconnect_for = flags.reconnect_for;
  ControlClient control(channel);
  RECON_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         Session::Join(session_options, &control, stop));
  spdlog::info("{} on {}{}, {} parameters, codec {}", flags.name, backend->device(),
               session_options.simulated ? " (simulated)" : "", layout.params(), CodecName(flags.codec));

  TrainLoop::Options options;
  options.pipeline.push_codec = flags.codec;
  options.pipeline.pull_codec = flags.pull_codec;
  // A worker must not run further ahead on its own than the bound lets it.
  const int bound = session->job().bound();
  options.pipeline.depth = bound < 0 ? flags.depth : std::min(flags.depth, bound + 1);
  options.slow_factor = flags.slow_factor;
  ParamClient params(channel);
  absl::Status status;
  {
    TrainLoop loop(options, &layout, backend.get(), &data, &params, session.get(), &metrics);
    std::atomic<bool> ended{false};
    std::thread watcher([&] {
      while (!ended.load() && !stop->load()) absl::SleepFor(kStopPoll);
      loop.RequestStop();
      const absl::Time give_up = Now() + kStopTimeout;
      while (!ended.load() && Now() < give_up) absl::SleepFor(kStopPoll);
      if (!ended.load()) session->Fail(absl::DeadlineExceededError("stopped with pushes under way"));
    });
    status = loop.Run();
    ended.store(true);
    watcher.join();
    if (absl::IsCancelled(status) && !session->fatal().ok()) status = session->fatal();
    // Pushes under way end now: nobody would wait for them.
    if (!status.ok()) session->Fail(status);
  }
  if (!status.ok() && stop->load() && (absl::IsCancelled(status) || absl::IsDeadlineExceeded(status))) {
    spdlog::warn("{}", status.message());
    status = absl::OkStatus();
  }
  const bool finished = status.ok() && !stop->load();
  spdlog::info("{}: {} steps, {} samples", finished ? "job finished" : "stopping",
               session->counters()->steps.load(), session->counters()->samples.load());
  session->Leave(finished ? "finished" : status.ok() ? "stopped" : "failed");
  return status;
}

}  // namespace recon
