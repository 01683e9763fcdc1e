#include "common/base/lane.h"

#include <pthread.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/mutex.h"

namespace recon {
namespace {

// The lane whose thread this is; null on other threads.
thread_local const Lane* current_lane = nullptr;

}  // namespace

Lane::Lane(std::string name) : name_(std::move(name)), thread_([this] { Run(); }) {}

Lane::~Lane() { Stop(); }

void Lane::Stop() {
  RECON_CHECK(!IsCurrent(), "a task of a lane waits for its own lane");
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool Lane::IsCurrent() const { return current_lane == this; }

void Lane::Post(Task task) {
  RECON_CHECK(task != nullptr);
  MutexLock lock(&mu_);
  if (!stopping_) tasks_.push_back(std::move(task));
}

void Lane::RunAndWait(Task task) {
  RECON_CHECK(!IsCurrent(), "a task of a lane waits for its own lane");
  Notification ran;
  Post([&] {
    task();
    ran.Notify();
  });
  ran.WaitForNotification();
}

void Lane::Run() {
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
  current_lane = this;
  while (true) {
    Task task;
    {
      MutexLock lock(&mu_);
      mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace recon
