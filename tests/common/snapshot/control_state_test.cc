#include "common/snapshot/control_state.h"

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"

namespace recon {
namespace {

Completion Split(LeaseKind kind, uint32_t epoch, uint32_t split, uint64_t begin, uint64_t end) {
  Completion completion;
  completion.set_kind(kind);
  completion.set_data_epoch(epoch);
  completion.set_split(split);
  completion.set_begin(begin);
  completion.set_end(end);
  completion.set_worker(split % 2 == 0 ? "even" : "odd");
  completion.set_incarnation(UINT64_MAX - split % 3);
  completion.set_unix_ms(1'700'000'000'000 - 17 * int64_t{split});
  if (kind == LEASE_EVAL) {
    completion.mutable_eval()->set_samples(end - begin);
    completion.mutable_eval()->set_correct(begin);
    completion.mutable_eval()->set_loss_sum(0.25);
  }
  return completion;
}

ModelSpec SomeModel() {
  ModelSpec model;
  model.set_name("m");
  return model;
}

ControlState SampleState() {
  ControlState state;
  state.job.emplace().set_train_samples(1000);
  *state.job->mutable_model() = SomeModel();
  state.policy.mutable_set()->set_sync("ssp:2");
  state.policy.mutable_flags()->set_sync("asp");
  state.workers = {{"even", 1}, {"odd", 5}, {"idle", 4'000'000'000}};
  for (const Completion& completion :
       {Split(LEASE_TRAIN, 0, 0, 0, 100), Split(LEASE_TRAIN, 0, 1, 100, 200),
        Split(LEASE_TRAIN, 0, 7, 700, 800), Split(LEASE_TRAIN, 3, 2, 250, 300),
        // Neither in order of samples, nor near 0.
        Split(LEASE_TRAIN, 3, UINT32_MAX, 10, limits::kSamplesMax), Split(LEASE_EVAL, 1, 0, 0, 50)}) {
    state.completions[ControlState::KeyOf(completion)] = completion;
  }
  return state;
}

std::string Text(const ControlState& state) {
  std::string text = state.job ? state.job->ShortDebugString() : "no job";
  text += "; " + state.policy.ShortDebugString();
  for (const auto& [name, number] : state.workers) text += "; " + name + " " + std::to_string(number);
  for (const auto& [split, completion] : state.completions) text += "; " + completion.ShortDebugString();
  return text;
}

void Refused(const ControlColumns& columns, const char* what) {
  const absl::Status status = DecodeControl(columns, SomeModel()).status();
  INFO(status << "; expected: " << what);
  CHECK(absl::IsDataLoss(status));
  CHECK(absl::StrContains(status.message(), what));
  CHECK(CheckControl(columns) == status);
}

}  // namespace

TEST_CASE("the control state comes back from a manifest's columns as it was", "[control_state]") {
  const ControlState state = SampleState();
  const ControlColumns columns = EncodeControl(state);
  CHECK(columns.passes_size() == 3);
  CHECK_FALSE(columns.job().has_model());
  CHECK(Text(*DecodeControl(columns, SomeModel())) == Text(state));
  CHECK(Text(*DecodeControl(EncodeControl({}), SomeModel())) == Text({}));
}

TEST_CASE("a split takes few bytes of a manifest", "[control_state]") {
  ControlState state;
  constexpr uint32_t kSplits = 10'000;
  for (uint32_t split = 0; split < kSplits; ++split) {
    const Completion completion =
        Split(LEASE_TRAIN, 0, split, split * uint64_t{100}, split * uint64_t{100} + 100);
    state.completions[ControlState::KeyOf(completion)] = completion;
  }
  CHECK(EncodeControl(state).ByteSizeLong() < 6 * kSplits);
}

TEST_CASE("columns that do not fit together are refused by name", "[control_state]") {
  const ControlColumns good = EncodeControl(SampleState());
  const auto altered = [&](auto change) {
    ControlColumns columns = good;
    change(&columns);
    return columns;
  };
  Refused(altered([](auto* c) { c->mutable_passes(0)->add_samples(5); }), "3 splits has 3 begins, 4 numbers");
  Refused(altered([](auto* c) { c->mutable_passes(0)->add_eval(); }), "1 evaluations");
  Refused(altered([](auto* c) { c->mutable_passes(0)->set_process(1, 90); }), "split 1 by process 90 of");
  Refused(altered([](auto* c) { c->mutable_passes(1)->set_split_gap(0, UINT32_MAX); }), "split 8589934588");
  Refused(altered([](auto* c) { c->mutable_passes(0)->set_samples(0, 0); }), "samples 0 to 0");
  Refused(altered([](auto* c) { c->mutable_passes(0)->set_begin_gap(0, -1); }),
          "samples 18446744073709551615");
  Refused(altered([](auto* c) { c->mutable_passes(0)->set_kind(LEASE_NONE); }), "kind 0");
  Refused(altered([](auto* c) {
            c->mutable_passes(1)->set_data_epoch(0);
            *c->mutable_passes(1) = c->passes(0);
          }),
          "is there twice, or not in order");
  Refused(altered([](auto* c) { c->mutable_workers(0)->set_number(0); }), "number 0");
  Refused(altered([](auto* c) { c->mutable_workers(0)->set_name(""); }), "name of 0 bytes");
  Refused(altered([](auto* c) { c->mutable_workers(1)->set_number(1); }), "twice");
  Refused(altered([](auto* c) { c->mutable_workers(1)->set_name("even"); }), "twice");
}

TEST_CASE("a record of the log adds what it says, once, and never something else", "[control_state]") {
  ControlState state;
  WorkerNumber worker;
  worker.set_name("w");
  worker.set_number(3);
  const Completion completion = Split(LEASE_TRAIN, 2, 9, 0, 10);
  for (int again = 0; again < 2; ++again) {
    REQUIRE(AddControlRecord(EncodeControlRecord(worker), &state).ok());
    REQUIRE(AddControlRecord(EncodeControlRecord(completion), &state).ok());
  }
  CHECK(state.workers.at("w") == 3);
  CHECK(state.completions.at({LEASE_TRAIN, 2, 9}).end() == 10);
  JobRecord job;
  job.set_seed(5);
  REQUIRE(AddControlRecord(EncodeControlRecord(job), &state).ok());
  REQUIRE(AddControlRecord(EncodeControlRecord(job), &state).ok());
  CHECK(state.job->seed() == 5);
  job.set_seed(6);
  CHECK(absl::IsDataLoss(AddControlRecord(EncodeControlRecord(job), &state)));
  worker.set_number(4);
  CHECK(absl::IsDataLoss(AddControlRecord(EncodeControlRecord(worker), &state)));
  Completion other = completion;
  other.set_worker("another");
  CHECK(absl::IsDataLoss(AddControlRecord(EncodeControlRecord(other), &state)));
  other.set_end(0);
  CHECK(absl::IsDataLoss(AddControlRecord(EncodeControlRecord(other), &state)));
  CHECK(absl::IsDataLoss(AddControlRecord("", &state)));
  CHECK(absl::IsDataLoss(AddControlRecord("\xff\xff", &state)));
  CHECK(state.workers.at("w") == 3);
}

TEST_CASE("a record of the log may say more than a snapshot has", "[control_state]") {
  ControlState state = SampleState();
  const ControlState before = state;
  JobRecord job = *state.job;
  job.set_data_fingerprint("f1");
  job.set_step_samples(256);
  REQUIRE(AddControlRecord(EncodeControlRecord(job), &state).ok());
  CHECK(state.job->data_fingerprint() == "f1");
  CHECK(state.job->step_samples() == 256);
  // An earlier record does not take it back.
  REQUIRE(AddControlRecord(EncodeControlRecord(*before.job), &state).ok());
  CHECK(state.job->data_fingerprint() == "f1");
  CHECK(state.job->step_samples() == 256);
  Completion completion = state.completions.begin()->second;
  completion.set_after_sequence(77);
  CHECK(AddControlRecord(EncodeControlRecord(completion), &state).ok());
  completion.set_worker("another");
  CHECK(absl::IsDataLoss(AddControlRecord(EncodeControlRecord(completion), &state)));
}

}  // namespace recon
