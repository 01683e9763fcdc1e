#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/tensor/shard_assignment.h"
#include "tests/worker/comm/fake_head.h"
#include "tests/worker/comm/fake_transport.h"
#include "tests/worker/comm/summing_servers.h"
#include "worker/comm/comm_pipeline.h"
#include "worker/comm/param_client.h"
#include "worker/comm/session.h"

namespace recon {

// A model of one shard for each of its tensors; each is a group of its own: a, b, c, ...
inline ModelSpec ModelOf(const std::vector<uint64_t>& sizes, const std::string& averaged = "") {
  ModelSpec model;
  model.set_name("small");
  for (size_t i = 0; i < sizes.size(); ++i) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name(std::string(1, static_cast<char>('a' + i)));
    tensor->set_group(tensor->name());
    tensor->set_averaged(averaged.find(tensor->name()) != std::string::npos);
    tensor->add_shape(sizes[i]);
  }
  return model;
}

// What a head says to who registers; asynchronous, gradients.
inline RegisterReply SmallJob() {
  RegisterReply reply;
  reply.set_worker(7);
  reply.set_cluster_epoch(1);
  reply.set_has_values(true);
  reply.set_workers(1);
  JobConfig* job = reply.mutable_job();
  job->set_heartbeat_interval_ms(5);
  job->set_batch_samples(1);
  job->set_split_samples(4);
  job->set_eval_split_samples(4);
  job->set_data_epochs(10);
  job->set_bound(-1);
  return reply;
}

struct SmallWorkerSetup {
  std::vector<uint64_t> sizes = {4, 3, 5};
  std::string averaged;  // Tensors that are, by name.
  uint32_t servers = 1;
  RegisterReply job = SmallJob();
  std::string codec = "fp32";
  uint64_t train_samples = 100;
  uint64_t test_samples = 100;
};

// A worker with its ways to a head and to servers in memory. Whatever still waits at its end is ended.
class SmallWorker {
 public:
  using Setup = SmallWorkerSetup;

  explicit SmallWorker(Setup made = {}, std::unique_ptr<FakeHead> given = std::make_unique<FakeHead>())
      : setup(std::move(made)),
        layout(*ParamLayout::Create(ModelOf(setup.sizes, setup.averaged))),
        sums(&layout),
        head(std::move(given)),
        client(AssignShards(layout, setup.servers)),
        policy(Codec(setup.codec), &layout) {
    space.Bind(&layout);
    std::vector<std::shared_ptr<Transport>> ways;
    for (uint32_t i = 0; i < setup.servers; ++i) {
      servers.push_back(
          std::make_shared<FakeTransport>([this](const Frame& frame) { return sums.Handle(frame); }));
      ways.push_back(servers.back());
    }
    client.Connect(ways);
    head->registrations.Otherwise(setup.job);
    Session::Options options;
    options.name = "w";
    options.incarnation = Incarnation(1);
    options.train_samples = setup.train_samples;
    options.test_samples = setup.test_samples;
    options.on_failure = [this] { client.Disconnect(); };
    auto joined = Session::Join(options, head.get(), &stop);
    RECON_CHECK(joined.ok());
    session = *std::move(joined);
  }
  ~SmallWorker() { End(); }

  // Ends what is under way, so that nothing waits for a test that has failed.
  void End() {
    session->Fail(absl::CancelledError("the test ends"));
    for (const auto& server : servers) {
      server->DecideAll(FakeTransport::Fate::kLose);
      server->Disconnect();
    }
  }

  // What the job's workers are told from the next registration on, which is asked for now.
  void RegisterAgain(const RegisterReply& reply) {
    head->registrations.Otherwise(reply);
    head->heartbeats.Next(absl::FailedPreconditionError("register again"));
  }
  // The servers are started again, and workers find out by what they call.
  void RestartServers() {
    sums.Restart();
    setup.job.set_cluster_epoch(sums.cluster_epoch());
    head->registrations.Otherwise(setup.job);
  }
  double CounterOf(const std::string& name) const {
    const std::string text = metrics.Text();
    const size_t at = text.find(absl::StrCat("\n", name, " "));
    RECON_CHECK(at != std::string::npos);
    return std::strtod(text.c_str() + at + name.size() + 2, nullptr);
  }

  Setup setup;
  const ParamLayout layout;
  SummingServers sums;
  std::unique_ptr<FakeHead> head;
  std::vector<std::shared_ptr<FakeTransport>> servers;
  ParamClient client;
  GradientSpace space;
  Metrics metrics;
  CodecPolicy policy;
  std::atomic<bool> stop{false};
  std::unique_ptr<Session> session;

 private:
  static CodecPolicy::Options Codec(const std::string& text) {
    CodecPolicy::Options options;
    options.rules = *CodecRules::Parse(text);
    options.flush_period = absl::Hours(1000);
    return options;
  }
};

// How pushes have ended. Thread-safe.
class Outcomes {
 public:
  void Note(int push, bool applied) {
    MutexLock lock(&mu_);
    ends_.emplace_back(push, applied);
  }
  size_t count() {
    MutexLock lock(&mu_);
    return ends_.size();
  }
  bool AwaitCount(size_t count, absl::Duration limit = absl::Seconds(30)) {
    MutexLock lock(&mu_);
    return mu_.AwaitFor(limit, [&] { return ends_.size() >= count; });
  }
  // Of each, push and whether it was applied, ascending: each once.
  std::vector<std::pair<int, bool>> Sorted() {
    MutexLock lock(&mu_);
    std::vector<std::pair<int, bool>> sorted = ends_;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }

 private:
  Mutex mu_;
  std::vector<std::pair<int, bool>> ends_ ABSL_GUARDED_BY(mu_);
};

// Such a worker's pipeline.
class SmallPipeline : public SmallWorker {
 public:
  explicit SmallPipeline(Setup made = {}, int depth = 2,
                         std::unique_ptr<FakeHead> given = std::make_unique<FakeHead>())
      : SmallWorker(std::move(made), std::move(given)),
        pipeline(std::make_unique<CommPipeline>(depth, &layout, &space, &policy, &client, session.get(),
                                                &metrics)) {
    pipeline->SetEncoder(*space.NewEncoder({}));
  }
  ~SmallPipeline() { End(); }

  // A push whose gradient has this value everywhere; how it ends is noted under a number.
  CommPipeline::Push PushOf(float value, int number) {
    const auto step = session->TakeStep();
    REQUIRE(step.has_value());
    return PushOf(value, number, *step);
  }
  CommPipeline::Push PushOf(float value, int number, uint64_t step) {
    CommPipeline::Push push;
    push.step = step;
    push.order_key = push.step;
    push.samples = 1;
    push.gradient = *pipeline->TakeBuffer();
    std::fill(push.gradient->host.begin(), push.gradient->host.end(), value);
    push.base_versions.assign(layout.shard_count(), 0);
    push.base_epoch = session->standing().identity.cluster_epoch();
    push.local = session->job()->has_local();
    push.history = session->job()->history();
    push.plan = policy.PlanFor(0, /*flush_all=*/false, {}, Now());
    push.done = [this, number](bool applied) { outcomes.Note(number, applied); };
    return push;
  }
  void Submit(float value, int number) { pipeline->Submit(PushOf(value, number)); }
  void AwaitOutcomes(size_t count) { REQUIRE(outcomes.AwaitCount(count)); }
  // That all parameters of a model that began with 0 have.
  float sum() {
    const std::vector<float> values = sums.values();
    REQUIRE(values == std::vector<float>(values.size(), values[0]));
    return -values[0];
  }

  Outcomes outcomes;
  std::unique_ptr<CommPipeline> pipeline;
};

}  // namespace recon
