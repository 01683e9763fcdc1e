#include "server/tuning/codec_tuner.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/codec.h"
#include "tests/server/tuning/simulated_job.h"

namespace recon {
namespace {

// Workers that take up the choice after a while and report their sums every 250 ms, with a clock of its own.
class SimulatedWorkers {
 public:
  SimulatedWorkers(const SimulatedJob& job, int workers) : job_(job) {
    for (int i = 0; i < workers; ++i) Join(i);
  }

  void Join(int worker) { workers_[WorkerId(static_cast<uint32_t>(worker))] = Worker(); }
  void Leave(int worker, CodecTuner* tuner) {
    workers_.erase(WorkerId(static_cast<uint32_t>(worker)));
    tuner->Forget(WorkerId(static_cast<uint32_t>(worker)));
  }
  // Of this one the steps are not counted: it has no work.
  void SetIdle(int worker) { workers_[WorkerId(static_cast<uint32_t>(worker))].idle = true; }

  // Changes of the choice meanwhile.
  std::vector<std::string> Run(CodecTuner* tuner, double seconds) {
    std::vector<std::string> choices;
    for (int tick = 0; tick < seconds * 10; ++tick) {
      now_ += absl::Milliseconds(100);
      for (auto& [id, worker] : workers_) Work(&worker);
      if (tick % 2 == 0) {
        for (auto& [id, worker] : workers_) {
          REQUIRE(tuner->Report(id, worker.work).ok());
          worker.heard = tuner->choice();
        }
      }
      if (tuner->Tick(now_)) choices.push_back(tuner->choice().push());
    }
    return choices;
  }

 private:
  struct Worker {
    StepWork work;
    CodecChoice heard;
    double ms = 0;
    bool idle = false;
  };

  void Work(Worker* worker) {
    if (worker->idle || worker->heard.push().empty()) return;
    const CodecController::Rung rung = {*ParseCodecSpec(worker->heard.push()),
                                        *ParseValueCodec(worker->heard.pull())};
    worker->ms += 100;
    while (worker->ms >= job_.StepMs(rung)) {
      worker->ms -= job_.StepMs(rung);
      StepWork& work = worker->work;
      work.set_choice(worker->heard.version());
      work.set_steps(work.steps() + 1);
      work.set_pushes(work.pushes() + 1);
      work.set_step_seconds(work.step_seconds() + 1e-3 * job_.StepMs(rung));
      work.set_compute_seconds(work.compute_seconds() + 1e-3 * job_.compute_ms);
      work.set_stall_seconds(work.stall_seconds() + 1e-3 * (job_.StepMs(rung) - job_.compute_ms));
      work.set_exchange_seconds(work.exchange_seconds() + 1e-3 * job_.LinkMs(rung));
      work.set_push_bytes(work.push_bytes() + static_cast<uint64_t>(job_.PushBytes(rung)));
      work.set_pull_bytes(work.pull_bytes() + static_cast<uint64_t>(job_.PullBytes(rung)));
    }
  }

  const SimulatedJob job_;
  std::map<WorkerId, Worker> workers_;
  absl::Time now_ = absl::UnixEpoch();
};

}  // namespace

TEST_CASE("all workers get one choice, settled within 25 seconds", "[tuning]") {
  CodecTuner tuner(0);
  CHECK(tuner.choice().push() == "fp16");
  CHECK_FALSE(tuner.in_use());
  SimulatedJob job;
  SimulatedWorkers workers(job, 4);
  CHECK_FALSE(workers.Run(&tuner, 25).empty());
  CHECK(tuner.in_use());
  CHECK(tuner.choice().push() == "topk:0.01");
  CHECK(tuner.choice().pull() == "fp16");
  CHECK(workers.Run(&tuner, 20).empty());
}

TEST_CASE("a worker without work holds nobody up", "[tuning]") {
  CodecTuner tuner(0);
  SimulatedJob job;
  SimulatedWorkers workers(job, 4);
  workers.SetIdle(2);
  workers.Run(&tuner, 60);
  CHECK(tuner.choice().push() == "topk:0.01");
}

TEST_CASE("a window in which workers come or go is not counted", "[tuning]") {
  CodecTuner tuner(0);
  SimulatedJob job;
  SimulatedWorkers workers(job, 2);
  for (int change = 0; change < 40; ++change) {
    if (change % 2 == 0) {
      workers.Join(7);
    } else {
      workers.Leave(7, &tuner);
    }
    REQUIRE(workers.Run(&tuner, 0.6).empty());
  }
  CHECK_FALSE(workers.Run(&tuner, 25).empty());
}

TEST_CASE("numbers that are no sums are refused by name", "[tuning]") {
  CodecTuner tuner(0);
  StepWork work;
  work.set_stall_seconds(std::nan(""));
  const absl::Status status = tuner.Report(WorkerId(1), work);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message() == "step work: stall_seconds is nan");
  CHECK_FALSE(tuner.in_use());
}

}  // namespace recon
