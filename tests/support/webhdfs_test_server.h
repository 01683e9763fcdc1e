#pragma once

#include <map>
#include <set>
#include <string>

#include "common/base/mutex.h"
#include "tests/support/http_test_server.h"

namespace recon {

// WebHDFS in memory, namenode and datanode at one address; answers as Hadoop 2.7.3's were recorded
// (tests/common/storage/webhdfs_recorded.tsv). Fails as it is told to.
class WebHdfsTestServer {
 public:
  enum class Fault {
    kStandby,     // Nothing done; the namenode is on standby.
    kDropBefore,  // Nothing done, no answer.
    kDropAfter,   // Done, but no answer.
    kHalf,        // CREATE and APPEND: half of the data is there, no answer. OPEN: half of it is sent.
    kQuota,       // CREATE and APPEND: half of the data is there, and all is said to be well.
  };

  WebHdfsTestServer() : http_([this](const HttpTestServer::Request& r) { return Answer(r); }) {}

  const std::string& address() const { return http_.address(); }
  // For the next `times` requests of that operation, of paths that contain `part`; where data goes: at the
  // datanode.
  void Fail(const std::string& operation, Fault fault, int times, const std::string& part = "") {
    MutexLock lock(&mu_);
    faults_[operation] = {fault, times, part};
  }
  void FailNoMore() {
    MutexLock lock(&mu_);
    faults_.clear();
  }
  std::map<std::string, std::string> files() const {
    MutexLock lock(&mu_);
    return files_;
  }

 private:
  struct Planned {
    Fault fault = Fault::kStandby;
    int times = 0;
    std::string part;
  };
  using Request = HttpTestServer::Request;
  using Response = HttpTestServer::Response;

  Response Answer(const Request& request);
  Response Do(const Request& request, const std::string& operation, const std::string& path,
              const Planned* planned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Response List(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  std::map<std::string, std::string> files_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> directories_ ABSL_GUARDED_BY(mu_) = {""};
  std::map<std::string, Planned> faults_ ABSL_GUARDED_BY(mu_);
  HttpTestServer http_;  // Last: its threads use what is above.
};

}  // namespace recon
