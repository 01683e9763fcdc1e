// Of ParamServer: its model and state. How they begin, how they are cut for a snapshot, and by which rules
// they change.

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/snapshot/manifest.h"
#include "common/tensor/page.h"
#include "server/data_plane/param_server.h"

namespace recon {
namespace {

// Nothing that is under way waits for workers: lanes and disk have done it sooner.
constexpr absl::Duration kQuietTimeout = absl::Seconds(5);

}  // namespace

uint64_t ParamServer::PlanesOf(uint64_t pages, const ApplyRules& rules) const {
  return 1 + static_cast<uint64_t>(state_planes()) + VersionsKept(pages, rules);
}

uint64_t ParamServer::StateBytes(uint64_t pages, const ApplyRules& rules) const {
  return pages * PlanesOf(pages, rules) * kPageBytes;
}

std::string ParamServer::SaidOptimizer() const {
  return absl::StrCat(state().outer ? "the outer optimizer is " : "--optimizer is ",
                      OptimizerName(state().kind));
}

absl::Status ParamServer::DefineModel(const ModelSpec& model) {
  RECON_ASSIGN_OR_RETURN(ParamLayout layout, ParamLayout::Create(model));
  MutexLock lock(&mu_);
  if (shards_.map().layout() != nullptr) return absl::FailedPreconditionError("the model is defined already");
  ShardMap map(std::make_shared<const ParamLayout>(std::move(layout)), options_.server, options_.servers);
  const uint64_t bytes = StateBytes(map.owned_pages(), *rules_);
  RECON_RETURN_IF_ERROR(memory_.CheckState(model.name(), bytes, rules_->correction.versions));
  const uint64_t planes = PlanesOf(map.owned_pages(), *rules_);
  RECON_RETURN_IF_ERROR(shards_.Define(std::move(map), *rules_, planes));
  state_upload_.SetShards(shards_.map().of_state());
  closed_.SetShards(shards_.map().size());
  memory_.SetState(bytes);
  return absl::OkStatus();
}

absl::Status ParamServer::Restore(const SnapshotReader& reader, const Manifest& manifest) {
  const int planes = static_cast<int>(manifest.state_planes());
  bool ours = planes == state_planes();
  if (ours && planes > 0) {
    RECON_ASSIGN_OR_RETURN(const StateOwner owner, ParseStateOwner(manifest.optimizer()));
    ours = Compatible(owner, state());
  }
  if (!ours) {
    return absl::FailedPreconditionError(
        absl::StrCat("the snapshot holds the state of ", manifest.optimizer(), ", ", SaidOptimizer()));
  }
  RECON_RETURN_IF_ERROR(shards_.Restore(reader, manifest));
  MutexLock lock(&mu_);
  sequence_ = manifest.sequence();
  // Also where the shards that hold it are other servers'.
  for (uint32_t i = 0; i < shards_.map().size(); ++i) {
    if (HoldsState(*shards_.map().layout(), i)) {
      state_version_ = manifest.shards(static_cast<int>(i)).version();
    }
  }
  std::vector<uint64_t> first_open(shards_.map().size());
  for (uint32_t i = 0; i < first_open.size(); ++i) {
    first_open[i] =
        std::max(manifest.frontier_step(), manifest.shards(static_cast<int>(i)).first_open_step());
  }
  closed_.Restore(std::move(first_open));
  book_.SkipTo(manifest.frontier_step());
  for (const uint32_t shard : shards_.map().owned()) {
    for (const LedgerEntry& entry : LedgerOf(manifest, shard).entries())
      recovered_[WorkerId(entry.worker())] = Incarnation(entry.incarnation());
  }
  values_.SetComplete();
  return absl::OkStatus();
}

absl::Status ParamServer::LoadInitialValues(
    const std::function<absl::StatusOr<std::vector<PageRef>>(uint32_t shard)>& pages_of) {
  RECON_RETURN_IF_ERROR(shards_.LoadInitialValues(pages_of));
  MutexLock lock(&mu_);
  values_.SetComplete();
  return absl::OkStatus();
}

void ParamServer::AwaitInitialValues(WorkerId worker, std::function<void()> ready) {
  {
    MutexLock lock(&mu_);
    if (values_.Ask(worker, shards_.map().owned(), ready)) return;
  }
  ready();
}

bool ParamServer::has_values() const {
  MutexLock lock(&mu_);
  return values_.complete();
}

StateCut ParamServer::DescribeCut() {
  StateCut cut;
  cut.sequence = sequence_;
  cut.frontier_step = closed_.FrontierInLog(book_.gate().frontier());
  // Without a log nothing can be asked of it.
  const uint64_t log_from = closed_.FirstRecordFrom(cut.frontier_step, sequence_ + 1);
  cut.log_from = log_.on() ? log_from : sequence_ + 1;
  cut.replay_seconds = ReplaySeconds();
  cut.memory_left = memory_.left();
  const uint64_t pages = shards_.map().owned_pages();
  cut.pages_of_versions = pages * VersionsKept(pages, *rules_);
  return cut;
}

void ParamServer::Cut(absl::AnyInvocable<void(StateCut)> done, std::function<void()> in_order) {
  auto cut = [this, done = std::move(done), in_order = std::move(in_order)]() mutable {
    MutexLock lock(&mu_);
    if (in_order) in_order();
    shards_.Cut(DescribeCut(), /*hide=*/log_.on(), std::move(done));
  };
  // In the order of the log, and with nothing in it that is not on its way to the disk.
  if (!log_.on()) return cut();
  MutexLock lock(&mu_);
  if (rules_->correction.versions == 0) {
    return log_.get()->Barrier([cut = std::move(cut)](const absl::Status& /*written*/) mutable { cut(); });
  }
  // Whoever applies the records again, from an earlier cut, has to forget here, too.
  log_.get()->Append(LogRecordKind::kFreeze, FreezeRecord(),
                     [this, cut = std::move(cut)](const absl::Status& written) mutable {
                       if (written.ok()) {
                         MutexLock applied(&mu_);
                         ++sequence_;
                         RECON_CHECK_EQ(sequence_, log_.get()->called_back());
                       }
                       cut();
                     });
}

absl::Status ParamServer::RecordControl(const std::vector<std::string>& records,
                                        const std::function<void(uint64_t sequence)>& written) {
  absl::Status status;
  size_t left = records.size();
  Notification recorded;
  if (left == 0) return status;
  for (const std::string& record : records) {
    if (!log_.on()) {
      written(position().sequence);
      continue;
    }
    log_.get()->Append(LogRecordKind::kControl, ByteChain::FromString(record), [&](const absl::Status& done) {
      if (done.ok()) {
        uint64_t number;
        {
          MutexLock lock(&mu_);
          number = ++sequence_;
          RECON_CHECK_EQ(number, log_.get()->called_back());
        }
        written(number);
      } else {
        status = LogFailed(done);
      }
      if (--left == 0) recorded.Notify();
    });
  }
  if (log_.on()) recorded.WaitForNotification();
  return status;
}

absl::Status ParamServer::CheckNewRules(const ApplyRules& rules) const {
  // State that means something else is none; what keeps none can always be had.
  const StateOwner owner = StateOf(rules);
  if (owner.planes() > 0 && (owner.kind != state().kind || owner.outer != state().outer)) {
    return absl::FailedPreconditionError(
        absl::StrCat(StateName(owner), " on the server needs state of its own, and this job keeps ",
                     state_planes() == 0 ? "none" : absl::StrCat("that of ", StateName(state()))));
  }
  if (options_.servers > 1) {
    return absl::FailedPreconditionError("the policy of a job with several servers cannot be changed live");
  }
  uint64_t pages = 0;
  {
    MutexLock lock(&mu_);
    RECON_RETURN_IF_ERROR(log_status_);
    if (shards_.map().layout() == nullptr) return absl::OkStatus();
    pages = shards_.map().owned_pages();
    RECON_RETURN_IF_ERROR(memory_.CheckState(shards_.map().layout()->model().name(), StateBytes(pages, rules),
                                             rules.correction.versions));
  }
  try {
    // That many are to be free: what is kept now is not counted, and goes.
    if (rules.correction.versions > 0) ReservePages(pages * rules.correction.versions);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for the ", rules.correction.versions,
                                                     " versions that --staleness-correction keeps"));
  }
  return absl::OkStatus();
}

absl::Status ParamServer::SwitchRules(const ApplyRules& rules, uint64_t first_step) {
  RECON_RETURN_IF_ERROR(CheckNewRules(rules));
  Operations waiting;
  {
    MutexLock lock(&mu_);
    changing_rules_ = true;
    waiting = replies_.TakeAll();
  }
  FinishAll(waiting, absl::UnavailableError("the policy is being changed; ask again"));
  absl::Status status;
  if (!WaitUntilIdle(kQuietTimeout))
    status = absl::UnavailableError("pushes under way do not come to an end");
  // Closings, too, and cuts; behind it nothing has been appended.
  if (status.ok() && log_.on()) status = log_.get()->BeginSegment(rules);
  MutexLock lock(&mu_);
  changing_rules_ = false;
  RECON_RETURN_IF_ERROR(status);
  rules_ = std::make_shared<const ApplyRules>(rules);
  cluster_epoch_ = rules.cluster_epoch;
  const uint64_t frontier = book_.BeginAnew(rules.bound, first_step);
  replies_.ForgetClosings();
  if (shards_.map().layout() == nullptr) return absl::OkStatus();
  memory_.SetState(StateBytes(shards_.map().owned_pages(), rules));
  shards_.SetRules(rules_);
  // Steps before are closed without any more contributions, in the log, too: after a restart they are not
  // begun again.
  if (frontier > 0) {
    StepClosing closing{frontier - 1, shards_.map().owned(), {}};
    closed_.Note(closing);
    Close(std::move(closing));
  }
  return absl::OkStatus();
}

absl::Status ParamServer::ChangeRules(const ApplyRules& rules, uint64_t first_step) {
  RECON_RETURN_IF_ERROR(SwitchRules(rules, first_step));
  if (!log_.on()) return absl::OkStatus();
  // Steps must not begin again.
  absl::Status written;
  Notification done;
  log_.get()->Barrier([&](const absl::Status& status) {
    written = status;
    done.Notify();
  });
  done.WaitForNotification();
  return written.ok() ? written : LogFailed(written);
}

ApplyRules ParamServer::rules() const {
  MutexLock lock(&mu_);
  ApplyRules rules = *rules_;
  rules.cluster_epoch = cluster_epoch_;
  return rules;
}

ParamServer::LogPosition ParamServer::position() const {
  MutexLock lock(&mu_);
  return {sequence_, push_sequence_, ReplaySeconds()};
}

uint64_t ParamServer::frontier() const {
  MutexLock lock(&mu_);
  return closed_.FrontierInLog(book_.gate().frontier());
}

double ParamServer::ReplaySeconds() const {
  return shards_.apply_seconds() + static_cast<double>(log_.bytes_written()) / limits::kLogReadBytesPerSecond;
}

absl::Duration ParamServer::SinceBegan() const { return ProcessUptime() - options_.began; }

std::shared_ptr<const ParamLayout> ParamServer::layout() const {
  MutexLock lock(&mu_);
  return shards_.map().layout();
}

}  // namespace recon
