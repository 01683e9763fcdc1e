#pragma once

// A worker of a job as Python has it. Waiting is done on a thread of the worker's, without the interpreter's
// lock, and looks for signals meanwhile: Ctrl-C ends every wait. For core.cc alone.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/lane.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/plain_text.h"
#include "common/base/process.h"
#include "common/cli/version.h"
#include "common/trace/span_names.h"
#include "worker/data/dataset.h"
#include "worker/encode/gradient_space.h"
#include "worker/process/worker_flags.h"
#include "worker/python/collective.h"
#include "worker/python/state_report.h"
#include "worker/training/member.h"

namespace nb = nanobind;

namespace recon {
// name, shape, group, averaged, dtype.
using TensorTuple = std::tuple<std::string, std::vector<uint64_t>, std::string, bool, std::string>;
using Settings = std::vector<std::pair<std::string, std::string>>;
using FloatView = nb::ndarray<nb::numpy, float, nb::ndim<1>>;
using ConstFloatView = nb::ndarray<nb::numpy, const float, nb::ndim<1>>;

inline constexpr absl::Duration kSignalPoll = absl::Milliseconds(50);

// Exceptions of the package; recon/__init__.py says what they mean.
inline PyObject* recon_error = nullptr;
inline PyObject* refused_error = nullptr;
inline PyObject* lost_error = nullptr;

[[noreturn]] inline void Raise(const absl::Status& status) {
  const std::string text = EscapeLines(status.message());
  PyObject* type = recon_error;
  if (absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsDataLoss(status) ||
      absl::IsAlreadyExists(status)) {
    type = refused_error;
  } else if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    type = lost_error;
  } else if (absl::IsOutOfRange(status)) {
    type = PyExc_FloatingPointError;
  }
  PyErr_SetString(type, text.c_str());
  throw nb::python_error();
}

inline void Check(const absl::Status& status) {
  if (!status.ok()) Raise(status);
}

template <typename T>
T Check(absl::StatusOr<T> result) {
  if (!result.ok()) Raise(result.status());
  return *std::move(result);
}

// The host's memory: gradients come there. What computes them may be a GPU, whose name heartbeats say.
class ScriptSpace : public GradientSpace {
 public:
  std::string device() const override { return device_; }
  void set_device(std::string device) { device_ = std::move(device); }

 private:
  std::string device_ = "cpu";
};

class PyWorker {
 public:
  PyWorker(const Settings& settings, const std::string& model, const std::vector<TensorTuple>& tensors,
           const Settings& aliases, uint64_t train_samples, uint64_t test_samples, const Settings& proposed,
           const std::string& data_fingerprint)
      : lane_(std::make_unique<Lane>("trainer")) {
    const WorkerFlags flags = Check(WorkerFlagsOf(settings));
    // The first one decides: the log is one for all workers of a process.
    static const bool logs = (InitLog(flags.log_level), true);
    (void)logs;
    Member::Options options = MemberOptionsOf(flags);
    options.model.set_name(model);
    for (const auto& [name, shape, group, averaged, dtype] : tensors) {
      TensorSpec* tensor = options.model.add_tensors();
      tensor->set_name(name);
      tensor->mutable_shape()->Add(shape.begin(), shape.end());
      tensor->set_group(group);
      tensor->set_averaged(averaged);
      tensor->set_dtype(dtype);
    }
    for (const auto& [name, tensor] : aliases) {
      AliasEntry* alias = options.model.add_aliases();
      alias->set_name(name);
      alias->set_tensor(tensor);
    }
    Check(AssignGroups(flags.tensor_groups, &options.model));
    for (const auto& [name, value] : proposed) {
      FlagValue* flag = &options.proposed.emplace_back();
      flag->set_name(name);
      flag->set_value(value);
    }
    if (absl::StartsWith(flags.model.device, "cuda:")) space_.set_device(flags.model.device);
    options.train_samples = train_samples;
    options.test_samples = test_samples;
    options.data_fingerprint = data_fingerprint;
    absl::Status joined;
    OnLane([&] {
      absl::StatusOr<std::unique_ptr<Member>> member = Member::Join(options, &space_, &stop_);
      joined = member.status();
      if (joined.ok()) member_ = *std::move(member);
      if (joined.ok()) joined = trainer()->Begin();
    });
    Check(joined);
  }

  ~PyWorker() {
    if (getpid() == process_) {
      Close("the program ended without leave()");
    } else {
      // A fork has none of the threads that an orderly end would wait for.
      (void)member_.release();
      (void)lane_.release();
    }
  }
  PyWorker(const PyWorker&) = delete;
  PyWorker& operator=(const PyWorker&) = delete;

  // Where the tensors lie: name, offset, size, in the order of the model.
  std::vector<std::tuple<std::string, uint64_t, uint64_t>> Placement() const {
    std::vector<std::tuple<std::string, uint64_t, uint64_t>> placement;
    for (const TensorPlacement& tensor : Joined()->layout().tensors()) {
      placement.emplace_back(tensor.name, tensor.offset, tensor.size);
    }
    return placement;
  }
  uint64_t size() const { return Joined()->layout().params(); }
  std::vector<std::string> groups() const { return Joined()->layout().groups(); }
  std::string name() const { return Joined()->session()->name(); }

  nb::dict Job() {
    const std::shared_ptr<const JobConfig> job = Joined()->session()->job();
    nb::dict dict;
    dict["seed"] = job->seed();
    dict["batch_samples"] = job->batch_samples();
    dict["data_epochs"] = job->data_epochs();
    dict["split_samples"] = job->split_samples();
    dict["bound"] = job->bound();
    dict["local_steps"] = job->has_local() ? job->local().steps() : 0;
    dict["workers"] = Joined()->session()->workers();
    dict["means"] = job->means();
    return dict;
  }

  // kind, lease, data epoch, begin, end, first split that is not done.
  std::tuple<std::string, uint64_t, uint32_t, uint64_t, uint64_t, uint32_t> NextWork() {
    absl::StatusOr<Trainer::Work> work;
    OnLane([&] { work = trainer()->NextWork(); });
    Check(work.status());
    static constexpr const char* kNames[] = {"none", "train", "evaluate", "initial_values", "finished"};
    const char* const kind = kNames[static_cast<int>(work->kind)];
    if (work->lease == nullptr) return {kind, 0, 0, 0, 0, 0};
    const uint64_t key = ++last_key_;
    leases_[key] = work->lease;
    const Lease& lease = work->lease->task;
    return {kind, key, lease.data_epoch(), lease.begin(), lease.end(), trainer()->done(work->lease)};
  }

  void SendInitialValues(const ConstFloatView& values) {
    const absl::Span<const float> span = SpanOf(values);
    Do([&] { return trainer()->SendInitialValues(span); });
  }

  uint64_t OpenSplit(uint64_t lease, uint32_t number) {
    const uint64_t key = ++last_key_;
    splits_[key] = trainer()->OpenSplit(LeaseOf(lease), number);
    return key;
  }
  bool CloseSplit(uint64_t split) {
    const Trainer::SplitPtr closed = SplitOf(split);
    const bool dropped = trainer()->dropped(closed);
    splits_.erase(split);
    Do([&] { return trainer()->CloseSplit(closed); });
    return !dropped;
  }
  void ForgetLease(uint64_t lease) { leases_.erase(lease); }
  bool LeaseLost(uint64_t lease) { return trainer()->lost(LeaseOf(lease)); }

  // Whether the batch has begun: not where its split is lost.
  bool Begin(uint64_t order_key, uint64_t split) {
    if (trainer()->batch_begun()) {
      trainer()->AlsoOf(SplitOf(split));
      return !trainer()->dropped(SplitOf(split));
    }
    absl::StatusOr<std::optional<Trainer::Place>> place;
    const Trainer::SplitPtr of = SplitOf(split);
    OnLane([&] { place = trainer()->BeginBatch(order_key, of); });
    Check(place.status());
    if (!*place) return false;
    place_ = **place;
    parameters_ = place_.parameters;
    return true;
  }
  bool begun() { return trainer()->batch_begun(); }
  // Changes when the parameters do.
  uint64_t revision() const { return parameters_.revision; }

  ConstFloatView Parameters(nb::handle self) {
    if (parameters_.values.empty()) Raise(absl::FailedPreconditionError("there are no parameters yet"));
    const size_t shape[] = {parameters_.values.size()};
    return ConstFloatView(parameters_.values.data(), 1, shape, self);
  }
  FloatView Gradient(nb::handle self) {
    if (!trainer()->batch_begun()) Raise(absl::FailedPreconditionError("no batch has begun"));
    const absl::Span<float> values =
        place_.gradient != nullptr ? absl::MakeSpan(place_.gradient->host) : place_.values;
    const size_t shape[] = {values.size()};
    return FloatView(values.data(), 1, shape, self);
  }

  void End(uint64_t samples, double seconds, std::optional<double> loss, std::vector<double> rates,
           bool moved, uint64_t weight) {
    Trainer::Computed computed = ComputedOf(samples, std::move(rates), weight);
    computed.took = absl::Seconds(seconds);
    computed.loss = loss;
    computed.moved = moved;
    Do([&] { return trainer()->EndBatch(std::move(computed), stop_.load()); });
  }
  // Whether the parameters are those after the last push now: not in an asynchronous job.
  bool Settle() {
    absl::StatusOr<std::optional<ParameterView>> view;
    OnLane([&] { view = trainer()->Settle(); });
    Check(view.status());
    if (*view) parameters_ = **view;
    return view->has_value();
  }
  // Whether the gradient is pushed as it comes from now on: filled() says what of it is there.
  bool PushAsItComes(uint64_t samples, std::vector<double> rates, uint64_t weight) {
    const Trainer::Computed computed = ComputedOf(samples, std::move(rates), weight);
    absl::StatusOr<bool> begun;
    OnLane([&] { begun = trainer()->PushAsItComes(computed); });
    return Check(begun);
  }
  void Filled(uint64_t offset, uint64_t size) {
    if (!trainer()->pushing()) Raise(absl::FailedPreconditionError("no gradient is pushed as it comes"));
    if (size > this->size() || offset > this->size() - size) {
      Raise(absl::InvalidArgumentError(
          absl::StrCat("values ", offset, " to ", offset + size, ", the model has ", this->size())));
    }
    trainer()->Filled(offset, size);
  }
  // Where workers have the optimizer: "here", "open" (not closed yet) or "gone" (no server keeps it).
  std::string AwaitMean(uint64_t step) {
    absl::StatusOr<Trainer::MeanIs> is;
    OnLane([&] { is = trainer()->AwaitMean(step); });
    return NameOf(Check(is));
  }
  std::string PullMean(uint64_t step) {
    absl::StatusOr<Trainer::MeanIs> is;
    OnLane([&] { is = trainer()->PullMean(step); });
    return NameOf(Check(is));
  }
  ConstFloatView Mean(nb::handle self) {
    const absl::Span<const float> values = trainer()->mean();
    const size_t shape[] = {values.size()};
    return ConstFloatView(values.data(), 1, shape, self);
  }
  uint32_t mean_pushes() { return trainer()->mean_pushes(); }
  // What the server is told of this worker's state, as WorkerStateReport has it; no `next`: it has none.
  void ReportState(std::optional<uint64_t> next, std::optional<uint64_t> waits_for, bool uncovered,
                   uint64_t failed, uint64_t line, uint64_t at, uint64_t through, bool asks_end) {
    WorkerStateReport report;
    if (next) report.set_next(*next + 1);
    if (waits_for) report.set_waits_for(*waits_for);
    report.set_uncovered(uncovered);
    report.set_failed(failed);
    report.set_line(line);
    report.set_at(at);
    report.set_through(through);
    report.set_asks_end(asks_end);
    Joined()->session()->ReportState(report);
  }
  // What the server has said last.
  nb::dict State() { return DictOf(Joined()->session()->state()); }
  // Uploads the state before `step` as that upload; blocks, on any thread. What is wrong; empty: nothing.
  std::string SendState(const ConstFloatView& values, uint64_t step, uint64_t upload) {
    const absl::Span<const float> span = SpanOf(values);
    Trainer* const sender = trainer();
    nb::gil_scoped_release release;
    const absl::Status status = sender->SendState({span.begin(), span.end()}, step, upload);
    return std::string(status.message());
  }
  // Whether all parts of the state that was pulled last are of one upload.
  bool StateWhole() { return trainer()->StateWhole(); }
  uint64_t NextStepFrom(uint64_t step) { return trainer()->NextStepFrom(step); }
  // Of the last push.
  uint64_t step() const { return trainer()->last_step(); }
  void Drop() { trainer()->DropBatch(); }

  void Pull() { TakeView(&Trainer::Pull); }
  void BeginEvaluation() { TakeView(&Trainer::BeginEvaluation); }
  void EndEvaluation(uint64_t lease, const std::vector<std::tuple<std::string, double, double>>& metrics) {
    const Session::HeldLeasePtr held = LeaseOf(lease);
    EvalResult result;
    result.set_samples(held->task.end() - held->task.begin());
    for (const auto& [name, sum, weight] : metrics) {
      MetricSum* metric = result.add_metrics();
      metric->set_name(name);
      metric->set_sum(sum);
      metric->set_weight(weight);
    }
    leases_.erase(lease);
    Do([&] { return trainer()->EndEvaluation(held, result); });
  }
  void Abandon(uint64_t lease) {
    const Session::HeldLeasePtr held = LeaseOf(lease);
    OnLane([&] { trainer()->Abandon(held); });
    leases_.erase(lease);
  }

  // Heartbeats say that nothing is computed for a reason, until Resume().
  void Pause() {
    Session::Counters* const counters = Joined()->session()->counters();
    counters->waits_for = "work";
    ++counters->waiting;
    paused_ns_ = trace::On() ? MonotonicNanos() : 0;
  }
  void Resume() {
    Session::Counters* const counters = Joined()->session()->counters();
    --counters->waiting;
    counters->waits_for = nullptr;
    if (paused_ns_ != 0) trace::Record(trace::kWaitingForWork, paused_ns_, MonotonicNanos(), {});
  }

  void Leave(bool finished) {
    if (member_ == nullptr || getpid() != process_) return;
    if (!finished) stop_.store(true);
    absl::Status status;
    OnLane([&] {
      if (!finished) member_->RequestStop();
      status = member_->Leave(trainer()->Finish());
      ended_ = true;
    });
    Check(status);
  }

  // Without waiting for anything.
  void Close(const std::string& why) {
    if (member_ == nullptr || getpid() != process_) return;
    nb::gil_scoped_release release;
    stop_.store(true);
    if (!ended_) member_->Fail(absl::CancelledError(why));
    lane_->RunAndWait([&] { member_ = nullptr; });
  }

 private:
  Member* Joined() const {
    if (getpid() != process_) {
      Raise(absl::FailedPreconditionError(absl::StrCat("process ", getpid(), " was forked from process ",
                                                       process_,
                                                       ", which is the job's worker: use the job there")));
    }
    if (member_ == nullptr || ended_) Raise(absl::FailedPreconditionError("this worker has left the job"));
    return member_.get();
  }
  Trainer* trainer() const { return Joined()->trainer(); }
  template <typename Task>
  void Do(const Task& task) {
    absl::Status status;
    OnLane([&] { status = task(); });
    Check(status);
  }
  void TakeView(absl::StatusOr<ParameterView> (Trainer::*call)()) {
    absl::StatusOr<ParameterView> view;
    OnLane([&] { view = (trainer()->*call)(); });
    parameters_ = Check(view);
  }

  static std::string NameOf(Trainer::MeanIs is) {
    return is == Trainer::MeanIs::kHere ? "here" : is == Trainer::MeanIs::kOpen ? "open" : "gone";
  }
  Trainer::Computed ComputedOf(uint64_t samples, std::vector<double> rates, uint64_t weight) {
    if (!trainer()->batch_begun()) Raise(absl::FailedPreconditionError("no batch has begun"));
    if (samples == 0 || samples > UINT32_MAX || weight > UINT32_MAX) {
      Raise(absl::InvalidArgumentError(absl::StrCat("a batch of ", samples, " samples and weight ", weight)));
    }
    if (!rates.empty() && rates.size() != Joined()->layout().groups().size()) {
      Raise(absl::InvalidArgumentError(absl::StrCat(rates.size(), " learning rates, the model has ",
                                                    Joined()->layout().groups().size(), " groups")));
    }
    for (const double rate : rates) {
      if (rate >= 0 && rate <= kLearningRateMax) continue;
      Raise(absl::InvalidArgumentError(
          absl::StrCat("learning rate ", rate, ": expected 0 to ", kLearningRateMax)));
    }
    Trainer::Computed computed;
    computed.samples = samples;
    computed.weight = weight;
    computed.learning_rates = std::move(rates);
    return computed;
  }
  const Session::HeldLeasePtr& LeaseOf(uint64_t key) {
    const auto found = leases_.find(key);
    if (found == leases_.end()) Raise(absl::InvalidArgumentError(absl::StrCat("no lease ", key)));
    return found->second;
  }
  const Trainer::SplitPtr& SplitOf(uint64_t key) {
    const auto found = splits_.find(key);
    if (found == splits_.end()) Raise(absl::InvalidArgumentError(absl::StrCat("no split ", key)));
    return found->second;
  }
  absl::Span<const float> SpanOf(const ConstFloatView& values) const {
    if (values.size() != size()) {
      Raise(absl::InvalidArgumentError(
          absl::StrCat(values.size(), " values, the model has ", size(), " parameters")));
    }
    return {values.data(), values.size()};
  }

  // Runs `task` on the worker's thread and waits for it. A signal whose handler raises ends the wait: the
  // worker fails, and with it whatever the task waits for.
  template <typename Task>
  void OnLane(const Task& task) {
    struct Done {
      Mutex mu;
      bool yes = false;
    };
    const auto done = std::make_shared<Done>();
    bool interrupted = false;
    {
      nb::gil_scoped_release release;
      lane_->Post([done, &task] {
        task();
        MutexLock lock(&done->mu);
        done->yes = true;
      });
      MutexLock lock(&done->mu);
      while (!done->mu.AwaitFor(kSignalPoll, [&] { return done->yes; })) {
        nb::gil_scoped_acquire acquire;
        if (interrupted || PyErr_CheckSignals() == 0) continue;
        interrupted = true;
        PyErr_Fetch(&type_, &value_, &trace_);
        stop_.store(true);
        if (member_ != nullptr) member_->Fail(absl::CancelledError("interrupted"));
      }
    }
    if (!interrupted) return;
    PyErr_Restore(type_, value_, trace_);
    throw nb::python_error();
  }

  const pid_t process_ = getpid();
  std::atomic<bool> stop_{false};
  ScriptSpace space_;
  std::unique_ptr<Member> member_;
  bool ended_ = false;
  Trainer::Place place_;
  ParameterView parameters_;
  uint64_t last_key_ = 0;
  int64_t paused_ns_ = 0;  // Since when, if that is traced.
  std::map<uint64_t, Session::HeldLeasePtr> leases_;
  std::map<uint64_t, Trainer::SplitPtr> splits_;
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
  std::unique_ptr<Lane> lane_;
};

}  // namespace recon
