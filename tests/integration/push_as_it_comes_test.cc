#include <cmath>
#include <functional>
#include <thread>

#include "common/base/status_macros.h"
#include "tests/integration/job_checks.h"
#include "worker/process/worker_flags.h"
#include "worker/training/member.h"

namespace recon {
namespace {

constexpr uint64_t kPiece = 50'000;

// A worker of its own model, whose gradients hang on the parameters and on the batch.
struct Pushing {
  bool as_it_comes = true;
  // Called when half of a gradient is there.
  std::function<void(uint64_t order_key)> in_the_middle = [](uint64_t) {};
  uint64_t drop_at = UINT64_MAX;  // The batch of this order key is dropped when half of it is there.
};

ModelSpec FourFrames() {
  ModelSpec model;
  model.set_name("frames");
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("weight");
  tensor->add_shape(2'000'000);
  return model;
}

void Compute(const Pushing& how, uint64_t order_key, const Trainer::Place& place, Trainer* trainer) {
  const absl::Span<float> gradient = absl::MakeSpan(place.gradient->host);
  const auto shift = static_cast<float>(order_key % 7) * 0.01f;
  bool halfway = false;
  for (uint64_t end = gradient.size(); end > 0;) {
    const uint64_t begin = end > kPiece ? end - kPiece : 0;
    if (!halfway && begin < gradient.size() / 2) {
      how.in_the_middle(order_key);
      if (order_key == how.drop_at) return;
      halfway = true;
    }
    for (uint64_t i = begin; i < end; ++i) gradient[i] = 0.1f * place.parameters.values[i] + shift;
    if (how.as_it_comes) trainer->Filled(begin, end - begin);
    end = begin;
  }
}

absl::Status TrainLease(const Pushing& how, const Session::HeldLeasePtr& lease, Trainer* trainer) {
  const uint64_t per_split = trainer->job().split_samples(), per_batch = trainer->job().batch_samples();
  uint32_t number = 0;
  for (uint64_t first = lease->task.begin(); first < lease->task.end(); first += per_split, ++number) {
    if (number < trainer->done(lease)) continue;
    const Trainer::SplitPtr split = trainer->OpenSplit(lease, number);
    const uint64_t after = std::min<uint64_t>(first + per_split, lease->task.end());
    for (uint64_t at = first; at < after; at += per_batch) {
      const uint64_t order_key = lease->task.data_epoch() * kSamples + at;
      RECON_ASSIGN_OR_RETURN(const std::optional<Trainer::Place> place,
                             trainer->BeginBatch(order_key, split));
      if (!place) break;
      Trainer::Computed computed;
      computed.samples = std::min(per_batch, after - at);
      if (how.as_it_comes) {
        RECON_ASSIGN_OR_RETURN(const bool begun, trainer->PushAsItComes(computed));
        CHECK(begun);
      }
      Compute(how, order_key, *place, trainer);
      if (order_key == how.drop_at) {
        trainer->DropBatch();
      } else {
        RECON_RETURN_IF_ERROR(trainer->EndBatch(computed));
      }
    }
    RECON_RETURN_IF_ERROR(trainer->CloseSplit(split));
  }
  return absl::OkStatus();
}

// Trains to the end of the job; the parameters then.
absl::StatusOr<std::vector<float>> TrainPushing(const Pushing& how, InProcessJob* job,
                                                const std::string& name) {
  Member::Options options = MemberOptionsOf(job->MakeWorker(name));
  options.model = FourFrames();
  options.train_samples = kSamples;
  GradientSpace space;
  RECON_ASSIGN_OR_RETURN(const std::unique_ptr<Member> member, Member::Join(options, &space, &job->stop));
  Trainer* const trainer = member->trainer();
  RECON_RETURN_IF_ERROR(trainer->Begin());
  while (true) {
    RECON_ASSIGN_OR_RETURN(const Trainer::Work work, trainer->NextWork());
    if (work.kind == Trainer::Work::Kind::kInitialValues) {
      RECON_RETURN_IF_ERROR(trainer->SendInitialValues(std::vector<float>(trainer->layout().params(), 1.0f)));
    } else if (work.kind == Trainer::Work::Kind::kTrain) {
      RECON_RETURN_IF_ERROR(TrainLease(how, work.lease, trainer));
    } else if (work.kind == Trainer::Work::Kind::kFinished) {
      break;
    }
  }
  RECON_ASSIGN_OR_RETURN(const ParameterView view, trainer->Pull());
  std::vector<float> values(view.values.begin(), view.values.end());
  RECON_RETURN_IF_ERROR(member->Leave(trainer->Finish()));
  return values;
}

}  // namespace

TEST_CASE("gradients that are pushed as they come make the parameters that whole ones do", "[job][overlap]") {
  std::vector<float> whole;
  for (const bool as_it_comes : {false, true}) {
    InProcessJob job(0);
    job.StartServer();
    Pushing how;
    how.as_it_comes = as_it_comes;
    const auto values = TrainPushing(how, &job, "a");
    REQUIRE(values.ok());
    CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
    if (!as_it_comes) whole = *values;
    CHECK(*values == whole);
    CHECK(std::abs(whole[0] - 1) > 0.1f);
  }
}

TEST_CASE("a server that is started again in the middle of such pushes has them once", "[job][overlap]") {
  InProcessJob undisturbed(0);
  undisturbed.StartServer();
  const auto whole = TrainPushing(Pushing(), &undisturbed, "a");
  REQUIRE(whole.ok());
  InProcessJob job(0);
  job.StartServer();
  Pushing how;
  int restarts = 0;
  how.in_the_middle = [&](uint64_t order_key) {
    if (order_key < 300 * static_cast<uint64_t>(restarts + 1) || restarts == 3) return;
    ++restarts;
    job.StopServer();
    job.StartServer();
  };
  const auto values = TrainPushing(how, &job, "a");
  REQUIRE(values.ok());
  CHECK(restarts == 3);
  CHECK(*values == *whole);
  CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
}

TEST_CASE("a batch that is dropped in the middle of its push holds nobody up", "[job][overlap]") {
  InProcessJob job(0, 2);
  job.StartServer();
  Pushing how;
  how.drop_at = 0;  // Of the first split, whoever has it.
  std::atomic<int> dropped{0};
  how.in_the_middle = [&](uint64_t order_key) { dropped += order_key == 0 ? 1 : 0; };
  absl::Status second;
  std::thread other([&] { second = TrainPushing(how, &job, "b").status(); });
  const absl::Status first = TrainPushing(how, &job, "a").status();
  other.join();
  CheckAllOk({first, second});
  CHECK(dropped == 1);
  CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
}

TEST_CASE("a worker that fails in the middle of a push ends, and the job goes on", "[job][overlap]") {
  InProcessJob job(0);
  job.StartServer();
  {
    Member::Options options = MemberOptionsOf(job.MakeWorker("a"));
    options.model = FourFrames();
    options.train_samples = kSamples;
    GradientSpace space;
    const auto member = Member::Join(options, &space, &job.stop);
    REQUIRE(member.ok());
    Trainer* const trainer = (*member)->trainer();
    REQUIRE(trainer->Begin().ok());
    Trainer::Work work;
    while (work.kind != Trainer::Work::Kind::kTrain) {
      work = *trainer->NextWork();
      if (work.kind == Trainer::Work::Kind::kInitialValues) {
        REQUIRE(trainer->SendInitialValues(std::vector<float>(trainer->layout().params(), 1.0f)).ok());
      }
    }
    const Trainer::SplitPtr split = trainer->OpenSplit(work.lease, 0);
    const auto place = trainer->BeginBatch(0, split);
    REQUIRE((place.ok() && place->has_value()));
    Trainer::Computed computed;
    computed.samples = 32;
    REQUIRE(*trainer->PushAsItComes(computed));
    trainer->Filled(0, 1'000'000);
    (*member)->Fail(absl::CancelledError("the test ends it"));
  }
  CHECK(TrainPushing(Pushing(), &job, "a").ok());
  CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
}

}  // namespace recon
