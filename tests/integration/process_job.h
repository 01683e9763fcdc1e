#pragma once

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/process.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace recon {

// A server and workers as processes, on loopback.
class ProcessJob {
 public:
  explicit ProcessJob(std::vector<std::string> server_flags) : server_flags_(std::move(server_flags)) {}

  void set_server_flags(std::vector<std::string> flags) { server_flags_ = std::move(flags); }
  // Of the next server: no more can be had.
  void set_server_descriptors(int descriptors) { descriptors_ = descriptors; }
  const std::string& address() const { return address_; }
  std::string data() const { return directory_ / "data"; }
  std::string snapshots() const { return directory_ / "data/snapshots"; }
  const TempDir& directory() const { return directory_; }
  Process& server() { return *server_; }
  std::string ServerLog() const { return ReadWholeFile(directory_ / "server.log"); }

  std::string WorkerLog(const std::string& name) const { return ReadWholeFile(directory_ / (name + ".log")); }

  // Starts (or restarts, on the same port) the server and waits until it listens.
  bool StartServer(std::vector<std::string> environment = {}) {
    unlink((data() + "/ADDRESS").c_str());
    std::vector<std::string> arguments = {"recon-server", "--data", data(), "--listen", address_};
    arguments.insert(arguments.end(), server_flags_.begin(), server_flags_.end());
    if (descriptors_ > 0) {
      arguments[0] = absl::StrCat(ProgramDirectory(), "/", arguments[0]);
      const std::string line = absl::StrCat("ulimit -n ", descriptors_, " && exec \"$@\"");
      arguments.insert(arguments.begin(), {"/bin/sh", "-c", line, "sh"});
    }
    server_ = std::make_unique<Process>(arguments, directory_ / "server.log", std::move(environment));
    const auto listens = [&] { return !ReadWholeFile(data() + "/ADDRESS").empty(); };
    if (!Eventually([&] { return listens() || !server_->running(); }) || !listens()) {
      std::cerr << "the server does not listen:\n" << ServerLog();
      return false;
    }
    address_ = std::string(absl::StripSuffix(ReadWholeFile(data() + "/ADDRESS"), "\n"));
    return server_->running();
  }

  // Workers called "two" use the network, all others shared memory.
  std::unique_ptr<Process> StartWorker(const std::string& name, std::vector<std::string> flags = {},
                                       std::vector<std::string> environment = {}) {
    std::vector<std::string> arguments = {
        "recon-worker",           "--server", address_, "--name", name, "--data",
        "clusters:4000,500,16,4", "--device", "cpu"};
    if (flags.empty() || flags[0] != "--model") arguments.insert(arguments.end(), {"--model", "mlp:16-24-4"});
    if (name == "two") arguments.insert(arguments.end(), {"--transport", "grpc"});
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return std::make_unique<Process>(arguments, absl::StrCat(directory_.path(), "/", name, ".log"),
                                     std::move(environment));
  }

  absl::StatusOr<StatusReply> Status() const { return Control().Status(); }
  absl::StatusOr<CompletionsReply> Completions() const { return Control().Completions(); }
  // While samples are completed there is no limit: the machine may be busy.
  bool SamplesReach(uint64_t samples, absl::Duration standstill = absl::Seconds(60)) const {
    return Reaches([samples](const StatusReply& status) { return status.samples_completed() >= samples; },
                   standstill);
  }
  bool Finished(absl::Duration standstill = absl::Seconds(120)) const {
    return Reaches([](const StatusReply& status) { return status.phase() == PHASE_FINISHED; }, standstill);
  }

 private:
  // The machine may be busy.
  ControlClient Control() const { return ControlClient(*ConnectTo(address_, {}), absl::Seconds(30)); }

  template <typename Condition>
  bool Reaches(const Condition& condition, absl::Duration standstill) const {
    uint64_t completed = 0;
    bool reached = false;
    const auto goes_on = [&] {
      const auto status = Status();
      if (!status.ok()) return false;
      reached = condition(*status);
      return reached || std::exchange(completed, status->samples_completed()) != status->samples_completed();
    };
    while (!reached) {
      if (!Eventually(goes_on, standstill)) return false;
    }
    return true;
  }

  TempDir directory_;
  std::vector<std::string> server_flags_;
  int descriptors_ = 0;
  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<Process> server_;
};

}  // namespace recon
