#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tools/source_paths.h"

namespace recon {

// OpenStack Swift with its S3 API, on loopback, with a bucket "recon" (swift_server.py). tools/setup.sh
// --tests installs it.
class SwiftServer {
 public:
  static constexpr char kAccessKey[] = "test:tester";
  static constexpr char kSecretKey[] = "testing";

  // False if it does not come up.
  bool Start() {
    process_ = std::make_unique<Process>(
        std::vector<std::string>{"/usr/bin/python3", InSources("tests/support/swift_server.py"),
                                 directory_ / "swift"},
        directory_ / "swift.log");
    const auto ready = [&] { return absl::StartsWith(process_->output(), "ready "); };
    if (!Eventually([&] { return ready() || !process_->running(); }, absl::Seconds(180)) || !ready()) {
      return false;
    }
    endpoint_ = std::string(absl::StripSuffix(absl::StripPrefix(process_->output(), "ready "), "\n"));
    return true;
  }
  void Stop() { process_->Kill(); }

  // "http://127.0.0.1:port".
  const std::string& endpoint() const { return endpoint_; }
  // For a program that is to use it.
  std::vector<std::string> Environment() const {
    return {absl::StrCat("AWS_ACCESS_KEY_ID=", kAccessKey),
            absl::StrCat("AWS_SECRET_ACCESS_KEY=", kSecretKey), absl::StrCat("AWS_ENDPOINT_URL=", endpoint_)};
  }

 private:
  TempDir directory_;
  std::unique_ptr<Process> process_;
  std::string endpoint_;
};

}  // namespace recon
