#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/status_macros.h"
#include "common/optim/update_rules.h"
#include "tests/worker/comm/small_worker.h"
#include "worker/training/trainer.h"

namespace recon {

// So many local steps by gradient descent with a rate of 1: a round moves by the sum of its gradients.
inline void SetLocalSteps(uint32_t steps, JobConfig* job) {
  ApplyRules rules;
  rules.optimizer.kind = OptimizerKind::kSgd;
  rules.optimizer.learning_rate = 1;
  job->mutable_local()->set_steps(steps);
  job->mutable_local()->set_fragments(1);
  *job->mutable_local()->mutable_rules() = EncodeRules(rules);
}

// The trainer of a worker in memory; what the gradient of a batch is, the test says. Splits have four batches
// of a sample.
class SmallTrainer : public SmallWorker {
 public:
  explicit SmallTrainer(Setup made = {}, Trainer::Options options = {},
                        std::unique_ptr<FakeHead> given = std::make_unique<FakeHead>())
      : SmallWorker(std::move(made), std::move(given)), replica(&layout) {
    options.train_samples = setup.train_samples;
    trainer = std::make_unique<Trainer>(options, &layout, &space, &policy, &client, session.get(), &replica,
                                        &metrics);
  }
  ~SmallTrainer() { End(); }

  // The head grants splits [first, first + splits) of a pass to whoever asks next.
  void Offer(uint64_t number, uint32_t first, uint32_t splits, LeaseKind kind = LEASE_TRAIN) {
    AcquireReply reply;
    reply.set_phase(PHASE_RUNNING);
    Lease* lease = reply.mutable_lease();
    lease->set_lease(number);
    lease->set_kind(kind);
    lease->set_split(first);
    lease->set_splits(splits);
    lease->set_begin(uint64_t{first} * 4);
    lease->set_end(uint64_t{first + splits} * 4);
    head->acquisitions.Next(reply);
  }
  // Begins, and has a lease of the first splits.
  Session::HeldLeasePtr BeginWithLease(uint32_t splits) {
    REQUIRE(trainer->Begin().ok());
    return TakeLease(5, 0, splits);
  }
  Session::HeldLeasePtr TakeLease(uint64_t number, uint32_t first, uint32_t splits) {
    Offer(number, first, splits);
    const auto work = trainer->NextWork();
    REQUIRE(work.ok());
    REQUIRE(work->kind == Trainer::Work::Kind::kTrain);
    return work->lease;
  }

  static Trainer::Computed OneSample() {
    Trainer::Computed computed;
    computed.samples = 1;
    computed.took = absl::Milliseconds(1);
    computed.loss = 1;
    return computed;
  }
  static void Fill(const Trainer::Place& place, float gradient) {
    const absl::Span<float> values =
        place.gradient != nullptr ? absl::MakeSpan(place.gradient->host) : place.values;
    std::fill(values.begin(), values.end(), gradient);
  }
  // A batch whose gradient has this value everywhere. Aborted if the split is dropped.
  absl::Status Batch(const Trainer::SplitPtr& split, float gradient,
                     Trainer::Computed computed = OneSample()) {
    RECON_ASSIGN_OR_RETURN(const std::optional<Trainer::Place> place,
                           trainer->BeginBatch(next_sample++, split));
    if (!place) return absl::AbortedError("the split is dropped");
    Fill(*place, gradient);
    return trainer->EndBatch(std::move(computed));
  }
  // All batches of a split.
  void TrainSplit(const Session::HeldLeasePtr& lease, uint32_t number, const std::vector<float>& gradients) {
    const Trainer::SplitPtr split = trainer->OpenSplit(lease, number);
    for (const float gradient : gradients) REQUIRE(Batch(split, gradient).ok());
    REQUIRE(trainer->CloseSplit(split).ok());
  }

  // Minus the sum of what the servers have taken.
  float parameter() {
    const std::vector<float> values = sums.values();
    REQUIRE(values == std::vector<float>(values.size(), values[0]));
    return values[0];
  }
  // The pushes there were, one frame each, by their steps.
  std::vector<Frame> pushes() {
    std::vector<Frame> frames;
    for (Frame& frame : servers[0]->requests()) {
      if (frame.header.kind == static_cast<uint8_t>(FrameKind::kPushPull)) frames.push_back(std::move(frame));
    }
    std::stable_sort(frames.begin(), frames.end(),
                     [](const Frame& a, const Frame& b) { return a.header.step < b.header.step; });
    return frames;
  }
  std::vector<uint32_t> samples_of_pushes() {
    std::vector<uint32_t> samples;
    for (const Frame& frame : pushes()) samples.push_back(frame.header.samples);
    return samples;
  }
  // What was said of splits: those that were completed, and how many leases were given back.
  std::vector<uint32_t> completed() {
    std::vector<uint32_t> splits;
    for (const CompleteRequest& request : head->completions.asked()) {
      if (!request.abandon()) splits.push_back(request.split());
    }
    return splits;
  }
  int abandoned() {
    const std::vector<CompleteRequest> asked = head->completions.asked();
    return static_cast<int>(
        std::count_if(asked.begin(), asked.end(), [](const auto& request) { return request.abandon(); }));
  }
  // The head has another policy from now on, and the worker knows.
  void ChangeJob(const std::function<void(JobConfig*)>& change) {
    change(setup.job.mutable_job());
    const uint64_t before = session->standing().registration;
    RegisterAgain(setup.job);
    while (session->standing().registration == before) head->heartbeats.AwaitMore(1);
  }

  Replica replica;
  std::unique_ptr<Trainer> trainer;
  uint64_t next_sample = 0;
};

}  // namespace recon
