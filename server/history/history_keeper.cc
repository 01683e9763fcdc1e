#include "server/history/history_keeper.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "server/history/history_file.h"

namespace recon {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(1000);
constexpr absl::Duration kWatchedInterval = absl::Milliseconds(500);
// Somebody who has not asked for so long has gone.
constexpr absl::Duration kWatched = absl::Seconds(10);
// The file is written every few seconds while it is small, and takes no more of the disk than this when it is
// large.
constexpr double kFileBytesPerSecond = 256 << 10;
constexpr absl::Duration kSaveMin = absl::Seconds(5), kSaveMax = absl::Minutes(5);
// With an event it is written sooner, at once while it is small: a server that dies has told its last ones.
constexpr double kEventBytesPerSecond = 4 << 20;
// A disk that hangs leaves out points, and no queue grows.
constexpr int kWaitingMax = 4;

}  // namespace

HistoryKeeper::HistoryKeeper(const std::string& data_directory, uint64_t job_id, FileSystem* files)
    : data_directory_(data_directory), files_(files), history_(job_id) {
  absl::StatusOr<JobHistory> before = ReadHistory(files, data_directory);
  absl::Status status = before.status();
  if (before.ok()) {
    MutexLock lock(&mu_);
    status = history_.Restore(*before);
    saved_event_ = history_.next_event();
  }
  if (!status.ok() && !absl::IsNotFound(status)) {
    const absl::Status aside = SetHistoryAside(files, data_directory);
    LogWarn("the job's history begins anew: {}; {}", status.message(),
            aside.ok() ? "what there was is kept as history.unread" : aside.message());
  }
  lane_ = std::make_unique<Lane>("history");
}

HistoryKeeper::~HistoryKeeper() {
  lane_->Stop();
  if (status() != nullptr) Save(absl::InfiniteFuture());
}

bool HistoryKeeper::Due(absl::Time now) {
  MutexLock lock(&mu_);
  if (now < due_at_) return false;
  due_at_ = now + (now < watched_until_ ? kWatchedInterval : kInterval);
  return true;
}

void HistoryKeeper::NoteWatched(absl::Time now) {
  MutexLock lock(&mu_);
  watched_until_ = now + kWatched;
  due_at_ = std::min(due_at_, now + kWatchedInterval);
}

void HistoryKeeper::Note(StatusReply status, absl::Time now, absl::Time wall) {
  auto shared = std::make_shared<const StatusReply>(std::move(status));
  {
    MutexLock lock(&mu_);
    status_ = shared;
    status_at_ = now;
  }
  if (waiting_.load() >= kWaitingMax) return;
  ++waiting_;
  lane_->Post([this, shared = std::move(shared), now, wall] {
    const int before = waiting_.fetch_sub(1);
    RECON_CHECK_GT(before, 0);
    TakeUp(shared, now, wall);
  });
}

void HistoryKeeper::TakeUp(const std::shared_ptr<const StatusReply>& status, absl::Time now,
                           absl::Time wall) {
  RECON_CHECK(lane_->IsCurrent());
  bool happened = false;
  {
    MutexLock lock(&mu_);
    history_.Note(status, absl::ToUnixMillis(wall));
    happened = history_.next_event() != saved_event_;
  }
  if (!events_directory_.empty()) AppendEvents(wall);
  if (now >= (happened ? save_events_at_ : save_at_)) Save(now);
}

void HistoryKeeper::Save(absl::Time now) {
  JobHistory history;
  {
    MutexLock lock(&mu_);
    history = history_.EncodeAll();
    saved_event_ = history_.next_event();
  }
  const absl::StatusOr<uint64_t> bytes = WriteHistory(files_, data_directory_, history);
  const double size =
      bytes.ok() ? static_cast<double>(*bytes) : kFileBytesPerSecond * absl::ToDoubleSeconds(kSaveMax);
  save_at_ = now + std::clamp(absl::Seconds(size / kFileBytesPerSecond), kSaveMin, kSaveMax);
  save_events_at_ = now + absl::Seconds(size / kEventBytesPerSecond);
  if (!bytes.ok() && !said_unwritten_) LogWarn("the job's history is not kept: {}", bytes.status().message());
  said_unwritten_ = !bytes.ok();
}

void HistoryKeeper::AppendEvents(absl::Time wall) {
  RECON_CHECK(lane_->IsCurrent());
  const int64_t wall_ms = absl::ToUnixMillis(wall);
  events_until_ms_ = std::min(events_until_ms_, wall_ms - 1);  // The clock may have been set back.
  absl::Status status;
  if (events_ == nullptr) {
    events_until_ms_ = wall_ms - 1;  // What came before has been written by the process before.
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    absl::StatusOr<std::unique_ptr<EventFile>> file =
        EventFile::Create(files_, events_directory_, wall_ms, host);
    status = file.status();
    if (file.ok()) events_ = *std::move(file);
  }
  if (status.ok()) {
    const JobHistory piece = Encode("", events_until_ms_);
    for (const int64_t end_ms : piece.job().end_ms()) events_until_ms_ = std::max(events_until_ms_, end_ms);
    status = events_->Add(piece, nullptr);
  }
  if (status.ok()) return;
  LogWarn("no more events for TensorBoard: {}", status.message());
  events_directory_.clear();
}

std::shared_ptr<const StatusReply> HistoryKeeper::status() const {
  MutexLock lock(&mu_);
  return status_;
}

absl::Time HistoryKeeper::status_at() const {
  MutexLock lock(&mu_);
  return status_at_;
}

JobHistory HistoryKeeper::Encode(const std::string& worker, int64_t since_ms) const {
  MutexLock lock(&mu_);
  return history_.Encode(worker, since_ms);
}

void HistoryKeeper::EncodeLater(const HistoryRequest& request,
                                std::function<void(absl::StatusOr<HistoryReply>)> done) {
  if (requests_.fetch_add(1) >= kRequestsMax) {
    --requests_;
    return done(absl::ResourceExhaustedError(
        absl::StrCat(kRequestsMax, " requests for the job's history wait already: ask again")));
  }
  lane_->Post([this, request, done = std::move(done)] {
    --requests_;
    HistoryReply reply;
    *reply.mutable_history() = Encode(request.worker(), request.since_unix_ms());
    done(std::move(reply));
  });
}

void HistoryKeeper::Read(const std::function<void(const History&)>& read) const {
  MutexLock lock(&mu_);
  read(history_);
}

}  // namespace recon
