#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "server/cluster/links.h"

namespace recon {

// The head's end of a link to nobody: it keeps what is sent. Thread-safe.
class FakeServerLink final : public ServerLink {
 public:
  void Send(const ServerCommand& command) override {
    MutexLock lock(&mu_);
    sent_.push_back(command);
  }
  void Close(const absl::Status& why) override {
    MutexLock lock(&mu_);
    if (!closed_) closed_ = why;
  }

  std::vector<ServerCommand> sent() const {
    MutexLock lock(&mu_);
    return sent_;
  }
  // Those of one kind.
  std::vector<ServerCommand> sent(ServerCommand::CommandCase kind) const {
    std::vector<ServerCommand> of_kind;
    for (const ServerCommand& command : sent()) {
      if (command.command_case() == kind) of_kind.push_back(command);
    }
    return of_kind;
  }
  // OK while it is open.
  absl::Status closed() const {
    MutexLock lock(&mu_);
    return closed_.value_or(absl::OkStatus());
  }

 private:
  mutable Mutex mu_;
  std::vector<ServerCommand> sent_;
  std::optional<absl::Status> closed_;
};

// A server's end of a link to a test, which says what the head says and keeps what is reported. Thread-safe.
class FakeHeadLink final : public HeadLink {
 public:
  void Send(ServerReport report) override {
    MutexLock lock(&mu_);
    reports_.push_back(std::move(report));
  }
  bool Receive(ServerCommand* command) override {
    MutexLock lock(&mu_);
    mu_.Await([this] { return ended_ || !commands_.empty(); });
    if (commands_.empty()) return false;
    *command = std::move(commands_.front());
    commands_.pop_front();
    return true;
  }
  void Cancel() override { End(absl::CancelledError("cancelled")); }
  absl::Status Finish() override {
    MutexLock lock(&mu_);
    return *ended_;
  }

  void Say(const ServerCommand& command) {
    MutexLock lock(&mu_);
    commands_.push_back(command);
  }
  // Behind what was said.
  void End(const absl::Status& why) {
    MutexLock lock(&mu_);
    if (!ended_) ended_ = why;
  }
  std::vector<ServerReport> reports() const {
    MutexLock lock(&mu_);
    return reports_;
  }
  // Waits for the report of that kind that comes after so many others of it.
  ServerReport AwaitReport(ServerReport::ReportCase kind, size_t after = 0) {
    MutexLock lock(&mu_);
    mu_.Await([&] { return OfKind(kind).size() > after; });
    return OfKind(kind)[after];
  }
  size_t Count(ServerReport::ReportCase kind) const {
    MutexLock lock(&mu_);
    return OfKind(kind).size();
  }

 private:
  std::vector<ServerReport> OfKind(ServerReport::ReportCase kind) const {
    std::vector<ServerReport> of_kind;
    for (const ServerReport& report : reports_) {
      if (report.report_case() == kind) of_kind.push_back(report);
    }
    return of_kind;
  }

  mutable Mutex mu_;
  std::deque<ServerCommand> commands_;
  std::vector<ServerReport> reports_;
  std::optional<absl::Status> ended_;
};

}  // namespace recon
