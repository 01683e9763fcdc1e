#include "common/base/lane.h"

#include <pthread.h>

#include <utility>

#include "common/base/mutex.h"

namespace recon {

Lane::Lane(std::string name) : name_(std::move(name)), thread_([this] { Run(); }) {}

Lane::~Lane() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void Lane::Post(Task task) {
  MutexLock lock(&mu_);
  if (!stopping_) tasks_.push_back(std::move(task));
}

void Lane::RunAndWait(Task task) {
  Notification ran;
  Post([&] {
    task();
    ran.Notify();
  });
  ran.WaitForNotification();
}

void Lane::Run() {
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
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
