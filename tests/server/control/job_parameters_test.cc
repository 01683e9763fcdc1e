#include "server/control/job_parameters.h"

#include <optional>

#include "catch2/catch.hpp"
#include "tests/server/control/fake_ports.h"

namespace recon {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);
constexpr WorkerId kOne(1), kTwo(2);

ModelSpec Model(uint64_t size, const std::string& group = "") {
  ModelSpec model;
  model.set_name("model");
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("weights");
  tensor->add_shape(size);
  tensor->set_group(group);
  return model;
}

// Values of another job, which end when a test says so.
class FakeSource final : public ValuesSource {
 public:
  absl::Status Check(const ModelSpec& model) const override {
    return model.name() == "model" ? absl::OkStatus() : absl::InvalidArgumentError("another model");
  }
  void Load(std::function<void(const absl::Status& loaded)> done) override { done_ = std::move(done); }
  bool loading() const { return done_ != nullptr; }
  void End(const absl::Status& loaded) { std::exchange(done_, nullptr)(loaded); }

 private:
  std::function<void(const absl::Status& loaded)> done_;
};

// A job's parameters, whose ports are fakes.
struct NewJob {
  explicit NewJob(bool with_others = false) {
    CoordinatorPorts ports;
    ports.params = &data_plane;
    ports.steps = &data_plane;
    ports.snapshots = &snapshots;
    ports.others = with_others ? &others : nullptr;
    ports.journal = &journal;
    parameters.emplace(ports, [this] { ++snapshots_ended; });
    for (const WorkerId worker : {kOne, kTwo}) {
      Membership::Member member;
      member.incarnation = Incarnation(worker.value());
      REQUIRE(members.Admit(worker, member, kNow).ok());
    }
  }

  FakeDataPlane data_plane;
  FakeSnapshots snapshots;
  FakeServers others;
  FakeJournal journal;
  Membership members{{absl::Seconds(1), absl::Seconds(3)}};
  JobConfig job;
  int snapshots_ended = 0;
  std::optional<JobParameters> parameters;
};

}  // namespace

TEST_CASE("the first model is the job's, and another one is refused", "[job_parameters]") {
  NewJob job;
  REQUIRE(job.parameters->Adopt(Model(4), job.job).ok());
  CHECK(job.data_plane.layout()->params() == 4);
  CHECK(job.parameters->Adopt(Model(4), job.job).ok());
  const absl::Status refused = job.parameters->Adopt(Model(5), job.job);
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(std::string(refused.message()).find("the job trains another model: ") == 0);
  CHECK(std::string(refused.message()).find("--from-snapshot") == std::string::npos);
  const absl::Status grouped = job.parameters->Adopt(Model(4, "conv"), job.job);
  CHECK(absl::IsInvalidArgument(grouped));
  CHECK(std::string(grouped.message()).find("--from-snapshot") != std::string::npos);
  CHECK(job.data_plane.layout()->params() == 4);
}

TEST_CASE("a model without the groups of the policy is no job's", "[job_parameters]") {
  NewJob job;
  (*job.job.mutable_sync_periods())["conv"] = 4;
  CHECK(absl::IsInvalidArgument(job.parameters->Adopt(Model(4), job.job)));
  CHECK(job.data_plane.layout() == nullptr);
}

TEST_CASE("snapshots of another model than the data directory's are refused", "[job_parameters]") {
  NewJob job;
  REQUIRE(job.data_plane.DefineModel(Model(5)).ok());
  CHECK(absl::IsFailedPrecondition(job.parameters->Restore(Model(4), job.job)));
  CHECK(job.parameters->Restore(Model(5), job.job).ok());
}

TEST_CASE("the other servers are told the model, once it is the job's", "[job_parameters]") {
  NewJob job(/*with_others=*/true);
  REQUIRE(job.parameters->Adopt(Model(4), job.job).ok());
  REQUIRE(job.parameters->Adopt(Model(4), job.job).ok());
  CHECK(job.others.models.size() == 1);
}

TEST_CASE("one worker is asked for initial values, and asked again in another epoch", "[job_parameters]") {
  NewJob job;
  REQUIRE(job.parameters->Adopt(Model(4), job.job).ok());
  CHECK(job.parameters->NeedsWorkersValues(/*started=*/false));
  CHECK_FALSE(job.parameters->NeedsWorkersValues(/*started=*/true));
  CHECK(job.parameters->AskWorker(kOne, job.members, 1));
  CHECK_FALSE(job.parameters->AskWorker(kTwo, job.members, 1));
  CHECK(job.parameters->AskWorker(kOne, job.members, 1));
  CHECK(job.data_plane.times_awaited == 1);
  CHECK(job.parameters->AskWorker(kOne, job.members, 2));
  CHECK(job.data_plane.times_awaited == 2);
  job.members.Remove(kOne);
  CHECK(job.parameters->AskWorker(kTwo, job.members, 2));
  CHECK(job.data_plane.initializer == kTwo);
}

TEST_CASE("initial values are in a snapshot before the job has parameters to begin with",
          "[job_parameters]") {
  NewJob job;
  REQUIRE(job.parameters->Adopt(Model(4), job.job).ok());
  REQUIRE(job.parameters->AskWorker(kOne, job.members, 1));
  job.data_plane.BringValues();
  CHECK(job.parameters->HasValues());
  CHECK_FALSE(job.parameters->NeedsWorkersValues(false));
  CHECK(job.snapshots.under_way() == "initial");
  CHECK_FALSE(job.parameters->saved());
  SECTION("it is published") {
    job.snapshots.Publish(kNow);
    CHECK(job.parameters->saved());
    CHECK(job.snapshots_ended == 1);
    job.parameters->Tick(kNow + absl::Hours(1));
    CHECK(job.snapshots.under_way().empty());
  }
  SECTION("it fails, and is tried again after two seconds, once") {
    job.snapshots.Fail(kNow);
    job.parameters->Tick(kNow + absl::Milliseconds(1999));
    CHECK(job.snapshots.under_way().empty());
    job.parameters->Tick(kNow + absl::Seconds(2));
    CHECK(job.snapshots.under_way() == "initial");
    job.parameters->Tick(kNow + absl::Seconds(5));
    job.snapshots.Publish(kNow + absl::Seconds(5));
    CHECK(job.snapshots.under_way().empty());
  }
}

TEST_CASE("a source's values are read when a model is known, and no worker is asked", "[job_parameters]") {
  NewJob job;
  FakeSource source;
  job.parameters->BeginFrom(&source);
  SECTION("they are not of the first worker's model") {
    ModelSpec other = Model(4);
    other.set_name("other");
    CHECK(absl::IsInvalidArgument(job.parameters->Adopt(other, job.job)));
    CHECK(job.data_plane.layout() == nullptr);
    CHECK_FALSE(source.loading());
  }
  SECTION("they are") {
    REQUIRE(job.parameters->Adopt(Model(4), job.job).ok());
    REQUIRE(source.loading());
    CHECK_FALSE(job.parameters->NeedsWorkersValues(false));
    SECTION("and come") {
      job.data_plane.BringValues();
      source.End(absl::OkStatus());
      CHECK(job.snapshots.under_way() == "initial");
      CHECK(job.parameters->failure().ok());
    }
    SECTION("and cannot be read") {
      source.End(absl::DataLossError("a pack is damaged"));
      CHECK(job.snapshots.under_way().empty());
      CHECK(absl::IsDataLoss(job.parameters->failure()));
    }
  }
}

TEST_CASE("with other servers values count when all of them have some", "[job_parameters]") {
  NewJob job(/*with_others=*/true);
  REQUIRE(job.parameters->Adopt(Model(4), job.job).ok());
  CHECK_FALSE(job.parameters->NeedsWorkersValues(false));
  job.others.the_state.live = true;
  CHECK(job.parameters->NeedsWorkersValues(false));
  REQUIRE(job.parameters->AskWorker(kOne, job.members, 1));
  CHECK(job.others.initializers == std::vector<WorkerId>{kOne});
  job.data_plane.BringValues();
  CHECK_FALSE(job.parameters->HasValues());
  CHECK(job.snapshots.under_way().empty());
  job.others.the_state.all_have_values = true;
  SECTION("of a new job") {
    job.parameters->OnServersLive(/*started=*/false);
    CHECK(job.snapshots.under_way() == "initial");
  }
  SECTION("of one that has begun") {
    job.parameters->OnServersLive(/*started=*/true);
    CHECK(job.snapshots.under_way().empty());
  }
}

TEST_CASE("a server whose log begins anew has a snapshot when all servers are there", "[job_parameters]") {
  NewJob job(/*with_others=*/true);
  job.snapshots.the_status.set_generation(3);
  job.data_plane.BringValues();
  job.others.the_state.all_have_values = true;
  SECTION("none does") {
    job.parameters->OnEpochBegun();
    CHECK(job.snapshots.under_way().empty());
  }
  SECTION("another one does") {
    job.others.the_state.needs_snapshot = true;
    job.parameters->OnEpochBegun();
    CHECK(job.snapshots.under_way() == "recovered");
  }
  SECTION("this one does") {
    job.parameters->RequireSnapshot();
    CHECK(job.parameters->awaits_snapshot());
    job.parameters->OnEpochBegun();
    CHECK(job.snapshots.under_way() == "recovered");
    CHECK_FALSE(job.parameters->awaits_snapshot());
  }
}

}  // namespace recon
