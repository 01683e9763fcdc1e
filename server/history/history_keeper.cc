#include "server/history/history_keeper.h"

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
  if (status() == nullptr) return;
  if (events_ != nullptr) AppendEvents(taken_up_wall_, /*all=*/true);
  Save(absl::InfiniteFuture());
}

void HistoryKeeper::WriteEvents(const std::string& directory) {
  MutexLock lock(&mu_);
  events_ = std::make_unique<EventStream>(files_, directory, history_);
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
  // What waits for its interval: among what will be moved, the stream could not tell it from what it has
  // taken.
  if (events_ != nullptr && wall < taken_up_wall_) AppendEvents(taken_up_wall_, /*all=*/true);
  bool happened = false;
  {
    MutexLock lock(&mu_);
    history_.Note(status, absl::ToUnixMillis(wall));
    happened = history_.next_event() != saved_event_;
  }
  taken_up_wall_ = wall;
  if (events_ != nullptr) AppendEvents(wall, /*all=*/false);
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

void HistoryKeeper::AppendEvents(absl::Time wall, bool all) {
  JobHistory piece;
  {
    MutexLock lock(&mu_);
    piece = events_->Take(history_, absl::ToUnixMillis(wall), all);
  }
  const absl::Status status = events_->Write(piece);
  if (status.ok()) return;
  LogWarn("no more events for TensorBoard: {}", status.message());
  events_ = nullptr;
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
