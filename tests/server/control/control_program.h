#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/metrics/metrics.h"
#include "common/transport/connected_processes.h"
#include "server/control/coordinator.h"
#include "tests/server/control/fake_ports.h"
#include "tests/support/choices.h"

namespace recon {

// A job in memory under any sequence of control calls: one worker that does what a worker does, and three
// clients that send whatever the choices say, among it what they have seen the server say. Meanwhile time
// passes, the disk fails, the server restarts and the policy changes. After every call:
//
// - the worker that does its duty is a member, whoever else claims its name;
// - a split is completed by who was given it, and only if it has pushed;
// - the job's count of completed samples is that of the journal;
// - status is answered, in bounded size.
//
// In the end the clients are silent, the disk is well, and the worker finishes the job in bounded time, with
// every split done once.
class ControlProgram {
 public:
  ControlProgram(const uint8_t* data, size_t size);
  // What was violated first; empty if nothing was.
  std::string Run();
  // How far it got, for a test that wants to know that programs do something.
  struct Counts {
    int calls = 0;
    int granted_to_clients = 0;
    int completed_by_clients = 0;
    int restarts = 0;
    int policies = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Client {
    std::string name;
    uint64_t incarnation = 0;
    WorkerIdentity identity;
    std::vector<Lease> leases;
  };

  void Start();
  void Restart();
  void Fail(const std::string& what) {
    if (violated_.empty()) violated_ = what;
  }
  bool disk_is_well() const { return journal_.fails.ok(); }

  // One choice of what happens.
  void Step();
  void CallOf(Client* client);
  void RegisterAs(Client* client);
  void HeartbeatOf(Client* client);
  void AcquireFor(Client* client);
  void PushOf(const Client& client);
  void CompleteFor(Client* client);
  void LeaveOf(Client* client);
  void SetPolicy();
  void PassTime();

  // The worker that does its duty.
  void Beat();
  void Join();
  void Work();
  void FinishJob();

  WorkerIdentity IdentityFor(const Client& client);
  Lease AnyLease(const Client& client);
  uint64_t AnyStep() { return choices_.Of(8) > 0 ? choices_.Of(100) : choices_.Number(); }
  // What a reply says that the client may work on.
  void Note(Client* client, const WorkerIdentity& identity, const Lease& lease);
  void NoteAdopted(Client* client, const Lease& lease);
  void Complete(Client* client, const CompleteRequest& request);
  void Check();
  void CheckFinished();

  Choices choices_;
  Coordinator::Options options_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  FakeDataPlane data_plane_;
  FakeSnapshots snapshots_;
  FakeJournal journal_;
  ConnectedProcesses connected_;
  Metrics metrics_;
  std::unique_ptr<Coordinator> coordinator_;
  Client worker_;
  std::vector<Client> clients_;
  // To whom a lease was given: the worker's number and incarnation, by its own number.
  std::map<uint64_t, std::pair<uint32_t, uint64_t>> given_;
  std::set<uint64_t> must_push_;  // Those that count only if something was pushed since.
  std::string violated_;
  Counts counts_;
};

}  // namespace recon
