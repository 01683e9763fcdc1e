#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/integration/process_job.h"

namespace recon {

// A job whose model is spread over several server processes.
class ServersJob : public ProcessJob {
 public:
  ServersJob(int servers, std::vector<std::string> flags) : ProcessJob({}), flags_(std::move(flags)) {
    SetServers(servers);
  }

  // For the next start of the head.
  void SetServers(int servers) {
    std::vector<std::string> flags = flags_;
    flags.insert(flags.end(), {"--servers", absl::StrCat(servers)});
    set_server_flags(std::move(flags));
    servers_.resize(static_cast<size_t>(servers));
  }

  std::string DataOf(int server) const { return directory() / absl::StrCat("data-", server); }
  Process& process(int server) {
    return server == 0 ? this->server() : *servers_[static_cast<size_t>(server)];
  }

  std::string LogOf(int server) const {
    return ReadWholeFile(directory() / absl::StrCat("server-", server, ".log"));
  }
  bool Start(int server, std::vector<std::string> environment = {}) {
    if (server == 0) return StartServer(std::move(environment));
    servers_[static_cast<size_t>(server)] = std::make_unique<Process>(
        std::vector<std::string>{"recon-server", "--join", address(), "--listen", "127.0.0.1:0", "--data",
                                 DataOf(server)},
        directory() / absl::StrCat("server-", server, ".log"), std::move(environment));
    return true;
  }
  bool StartAll() {
    for (int i = 0; i < static_cast<int>(servers_.size()); ++i) {
      if (!Start(i)) return false;
    }
    return true;
  }
  void KillAll() {
    for (int i = 0; i < static_cast<int>(servers_.size()); ++i) process(i).Kill();
  }
  bool AllReady() {
    return Eventually([&] {
      const auto status = Status();
      if (!status.ok() || status->servers_size() + 1 != static_cast<int>(servers_.size())) return false;
      for (const ServerStatus& server : status->servers()) {
        if (server.state() != SERVER_READY) return false;
      }
      return true;
    });
  }
  // Takes one, which waits until all servers are there.
  std::string StateRoot() {
    std::string root;
    Eventually([&] {
      const auto reply = ControlClient(*ConnectTo(address(), {})).Snapshot();
      if (reply.ok()) root = reply->state_root();
      return reply.ok();
    });
    return root;
  }
  // All servers end.
  bool Drain() {
    if (!ControlClient(*ConnectTo(address(), {})).Drain().ok()) return false;
    for (int i = 0; i < static_cast<int>(servers_.size()); ++i) {
      if (process(i).Wait(absl::Seconds(30)) != 0) return false;
    }
    return true;
  }
  Manifest Newest() const {
    const auto store = *LocalStore::Open(snapshots(), /*writer=*/false);
    const SnapshotReader reader(store.get());
    return *reader.ReadManifest(reader.List()->back());
  }

 private:
  const std::vector<std::string> flags_;
  std::vector<std::unique_ptr<Process>> servers_;  // Element 0 is unused.
};

}  // namespace recon
