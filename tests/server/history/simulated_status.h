#pragma once

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/control.pb.h"

namespace recon {

// The status of a made-up job at a second of its life, with workers that push steadily. Loss falls as 1 /
// time.
class SimulatedStatus {
 public:
  explicit SimulatedStatus(int workers) {
    status_.set_phase(PHASE_RUNNING);
    status_.set_model("simulated");
    status_.mutable_job()->set_bound(-1);
    status_.mutable_job()->mutable_policy()->set_sync("asp");
    for (int i = 0; i < workers; ++i) Join(absl::StrCat("w", i), 1);
  }

  StatusReply& edit() { return status_; }

  MemberStatus& Join(const std::string& name, uint64_t incarnation) {
    MemberStatus* member = Find(name);
    if (member == nullptr) member = status_.add_members();
    member->Clear();
    member->set_name(name);
    member->set_incarnation(incarnation);
    member->set_device("cpu");
    member->set_codec("fp16");
    return *member;
  }
  MemberStatus* Find(const std::string& name) {
    for (MemberStatus& member : *status_.mutable_members()) {
      if (member.name() == name) return &member;
    }
    return nullptr;
  }

  // Each worker that is there has pushed ten times a second: 60 % of a step it computes, 30 % it waits for
  // pushes.
  std::shared_ptr<const StatusReply> At(double second) {
    uint64_t pushes = 0;
    double rate = 0;
    for (MemberStatus& member : *status_.mutable_members()) {
      if (member.state() == MEMBER_GONE) continue;
      WorkerProgress* progress = member.mutable_progress();
      const auto steps = static_cast<uint64_t>(10 * second);
      member.set_pushes(steps);
      member.set_staleness_mean(2);
      member.set_waits_share(0.1);
      progress->set_steps(steps);
      progress->set_batches(steps);
      progress->set_last_loss(1 / (1 + second));
      progress->set_samples_per_second(640);
      progress->set_wire_unix_ms(1000 + static_cast<int64_t>(1000 * second));
      StepWork* work = progress->mutable_step_work();
      work->set_steps(steps);
      work->set_pushes(steps);
      work->set_step_seconds(second);
      work->set_compute_seconds(0.6 * second);
      work->set_stall_seconds(0.3 * second);
      work->set_exchange_seconds(0.02 * static_cast<double>(steps));
      work->set_push_bytes(1000 * steps);
      work->set_pull_bytes(2000 * steps);
      pushes += steps;
      rate += 640;
    }
    status_.set_pushes(pushes);
    status_.set_samples_per_second(rate);
    return std::make_shared<StatusReply>(status_);
  }

 private:
  StatusReply status_;
};

}  // namespace recon
