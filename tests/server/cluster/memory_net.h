#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "server/cluster/links.h"

namespace recon {

class MemoryNet;

// A way between the head and another server, both ends of it, in memory.
class MemoryLink final : public ServerLink, public HeadLink {
 public:
  explicit MemoryLink(MemoryNet* net) : net_(net) {}

  void Send(const ServerCommand& command) override;
  void Close(const absl::Status& why) override;
  void Send(ServerReport report) override;
  bool Receive(ServerCommand* command) override;
  void Cancel() override { Close(absl::CancelledError("the server has ended the link")); }
  absl::Status Finish() override;

 private:
  friend class MemoryNet;
  struct Command {
    ServerCommand command;
    uint64_t not_before;  // So many messages.
  };

  MemoryNet* const net_;
  // Guarded by the net's lock.
  std::deque<Command> commands_;
  std::deque<ServerReport> reports_;
  std::optional<absl::Status> ended_;
};

// A head that listens, or none, and the links to it. Of one link messages come in order and once, or not at
// all; those of several come in an order that is drawn, and late. A link can break at any message.
//
// Threads: thread-safe. Reports come on a thread of its own. Shutdown: Listen(null) and no link in use.
class MemoryNet {
 public:
  explicit MemoryNet(uint64_t seed) : random_(seed), wire_("wire") {}

  // From now on links lead to this head; null: to none. Those to the one before break, and it hears nothing
  // any more when this returns. Returns them.
  std::vector<std::shared_ptr<MemoryLink>> Listen(ServerReports* head) {
    MutexLock lock(&mu_);
    std::vector<std::shared_ptr<MemoryLink>> broken(links_.begin(), links_.end());
    for (const auto& link : broken) End(link.get(), absl::UnavailableError("the head is gone"));
    links_.clear();
    head_ = nullptr;
    mu_.Await([this] { return !delivering_; });
    head_ = head;
    return broken;
  }
  // A link to the head as soon as it listens; null once `*stopped`, which Stop() sets.
  std::shared_ptr<MemoryLink> Connect(const bool* stopped) {
    MutexLock lock(&mu_);
    mu_.Await([&] { return *stopped || head_ != nullptr; });
    if (*stopped) return nullptr;
    return *links_.insert(std::make_shared<MemoryLink>(this)).first;
  }
  void Stop(bool* stopped) {
    MutexLock lock(&mu_);
    *stopped = true;
  }

  // The message that comes after so many others, either way, is lost, and its link breaks.
  void BreakAt(uint64_t message) {
    MutexLock lock(&mu_);
    breaks_.insert(message);
  }
  // Counts what else happens among the messages.
  void NoteEvent() {
    MutexLock lock(&mu_);
    ++messages_;
  }
  uint64_t messages() {
    MutexLock lock(&mu_);
    return messages_;
  }
  // False if so many have not come within that time.
  bool AwaitMessages(uint64_t messages, absl::Duration limit) {
    MutexLock lock(&mu_);
    return mu_.AwaitFor(limit, [&] { return messages_ >= messages; });
  }

 private:
  friend class MemoryLink;

  // Whether the message is lost, and with it its link.
  bool Breaks(MemoryLink* link) {
    const bool breaks = breaks_.erase(++messages_) > 0;
    if (breaks) End(link, absl::UnavailableError("the link broke"));
    return breaks;
  }
  void End(MemoryLink* link, const absl::Status& why) {
    if (link->ended_) return;
    link->ended_ = why;
    // What was on its way may come or not; of the commands here, of the reports in DeliverOne().
    if (random_() % 2 == 0) link->commands_.clear();
    if (random_() % 2 == 0) link->reports_.clear();
    wire_.Post([this] { DeliverOne(); });
  }

  // A report of some link, or its end.
  void DeliverOne() {
    std::shared_ptr<MemoryLink> link;
    std::optional<ServerReport> report;
    ServerReports* head = nullptr;
    {
      MutexLock lock(&mu_);
      std::vector<std::shared_ptr<MemoryLink>> ready;
      for (const auto& one : links_) {
        if (!one->reports_.empty() || one->ended_) ready.push_back(one);
      }
      if (ready.empty() || head_ == nullptr) return;
      link = ready[random_() % ready.size()];
      if (!link->reports_.empty()) {
        report = std::move(link->reports_.front());
        link->reports_.pop_front();
        // Its end is another delivery.
        if (link->ended_) wire_.Post([this] { DeliverOne(); });
      } else {
        links_.erase(link);
      }
      head = head_;
      delivering_ = true;
    }
    report ? head->OnReport(link, *report) : head->OnClosed(link);
    MutexLock lock(&mu_);
    delivering_ = false;
  }

  Mutex mu_;
  ServerReports* head_ = nullptr;
  bool delivering_ = false;
  std::set<std::shared_ptr<MemoryLink>> links_;
  std::mt19937_64 random_;
  uint64_t messages_ = 0;
  std::set<uint64_t> breaks_;

  Lane wire_;  // Last: what it runs needs the rest.
};

inline void MemoryLink::Send(const ServerCommand& command) {
  MutexLock lock(&net_->mu_);
  if (ended_ || net_->Breaks(this)) return;
  const uint64_t late = net_->random_() % 4 == 0 ? net_->random_() % 8 : 0;
  commands_.push_back({command, net_->messages_ + late});
}

inline void MemoryLink::Send(ServerReport report) {
  MutexLock lock(&net_->mu_);
  if (ended_ || net_->Breaks(this)) return;
  // Whoever delivers may say so twice: what it says is the same.
  const int copies = report.has_delivered() && net_->random_() % 8 == 0 ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    reports_.push_back(report);
    net_->wire_.Post([net = net_] { net->DeliverOne(); });
  }
}

inline bool MemoryLink::Receive(ServerCommand* command) {
  MutexLock lock(&net_->mu_);
  net_->mu_.Await([this] { return ended_ || !commands_.empty(); });
  if (commands_.empty()) return false;
  // Late: others come first, if there are any.
  net_->mu_.AwaitFor(absl::Milliseconds(2),
                     [this] { return commands_.empty() || commands_.front().not_before <= net_->messages_; });
  if (commands_.empty()) return false;
  *command = std::move(commands_.front().command);
  commands_.pop_front();
  return true;
}

inline void MemoryLink::Close(const absl::Status& why) {
  MutexLock lock(&net_->mu_);
  net_->End(this, why);
}

inline absl::Status MemoryLink::Finish() {
  MutexLock lock(&net_->mu_);
  return ended_.value_or(absl::UnknownError("it has not ended"));
}

}  // namespace recon
