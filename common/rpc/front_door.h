#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/owned_fd.h"
#include "common/rpc/address_rates.h"
#include "common/rpc/connection_limits.h"
#include "common/rpc/connections.h"

namespace recon {

// Accepts the connections of a gRPC server. gRPC 1.51 closes its port for good when it runs out of
// descriptors once, and parses without end what anybody sends. So a connection is handed to it when its other
// end has said something; there are as many as the process has descriptors for, and who sends much and says
// nothing that is understood is cut. There are so many of strangers at most, so many of them are let in at a
// time, an address begins so many a second, and those of the job's members stay when there are too many.
//
// Threads: Listen(), Start() and the destructor on one thread; a thread of its own accepts and looks.
// Shutdown: the destructor ends the thread and closes what has not been handed over.
class FrontDoor {
 public:
  // Takes the descriptor over.
  using HandOver = std::function<void(int listener, int fd)>;

  // Listens on all addresses that HOST:PORT stands for, all with one port. Unavailable, which names `flag`
  // and the cause, if it cannot be listened on one of them.
  static absl::StatusOr<std::unique_ptr<FrontDoor>> Listen(const std::string& flag,
                                                           const std::string& address,
                                                           const ConnectionLimits& limits);
  ~FrontDoor();

  int port() const { return port_; }
  // `connections`, which outlives this, knows those that were handed over.
  void Start(HandOver hand_over, Connections* connections);

 private:
  // Has connected and is not handed over.
  struct Silent {
    OwnedFd fd;
    int listener;
    std::string peer;
    uint64_t address;  // As AddressRates has it.
    absl::Time since;
    bool speaks = false;  // It has said something, and waits for its turn.
  };
  // Handed over: gRPC closes it. The descriptor is the same as long as the socket's number is.
  struct Handed {
    int fd;
    uint64_t inode;
    std::string peer;
    uint64_t address;
    std::shared_ptr<Connection> connection;
    absl::Time since;
    uint64_t understood = 0;
    uint64_t received_then = 0;  // When something was last understood.
    uint64_t received = 0;
    ConnectionView view;  // As it was looked at last.
    bool watched = true;  // Also by looks that are soon.
    bool cut = false;     // It was hung up, and gRPC has not closed it yet.
  };

  explicit FrontDoor(const ConnectionLimits& limits)
      : limits_(limits), rates_(limits.begin_at_once_max, limits.begin_per_second_max) {}
  absl::Status ListenOn(const std::string& flag, const std::string& address);
  // With the port there is, or any, which it is then. An errno, or 0.
  int ListenOnOne(const sockaddr_storage& address, socklen_t length);
  void Run();
  void Accept(int listener);
  void NoteThoseWhoSpeak(const std::vector<int>& readable);
  void HandOverThoseWhoSpeak();
  void HandOverOne(Silent silent);
  // How many strangers of each address have been let in just now.
  absl::flat_hash_map<uint64_t, size_t> Entering(absl::Time now) const;
  // Without a descriptor: takes the connection with the one that was kept for it, and closes it.
  void TurnAway(int listener);
  // True if there is room for one more.
  bool MakeRoom();
  // The oldest of those who do not belong to the job has to go; false if there is none, or only such as have
  // just come.
  bool DropOldestStranger(const std::string& why);
  // True if one more may be handed over.
  bool MakeRoomForStranger();
  void DropSilent(absl::Time now);
  void Look(absl::Time now, bool all);
  absl::Time NextLook() const;
  // What it has sent is asked for where that is to be `closely`.
  static void LookAt(Handed* one, bool closely, uint64_t forgiven);
  void SayRefused(const std::string& peer, const std::string& why);

  const ConnectionLimits limits_;
  int port_ = 0;
  std::vector<OwnedFd> listeners_;
  OwnedFd spare_;
  OwnedFd wake_;
  HandOver hand_over_;
  Connections* connections_ = nullptr;
  std::atomic<bool> stopping_{false};

  // The thread's.
  AddressRates rates_;
  std::list<Silent> silent_;  // The oldest first.
  bool waiting_ = false;      // Some of them speak.
  std::list<Handed> handed_;  // The oldest first.
  size_t strangers_ = 0;      // Of those handed over; who became a member since the last look counts, too.
  absl::Time accept_again_ = absl::InfinitePast();  // After descriptors were short.
  absl::Duration look_every_;
  absl::Time looked_ = absl::InfinitePast();         // At those that are watched, and
  absl::Time looked_at_all_ = absl::InfinitePast();  // at all.
  absl::Time said_ = absl::InfinitePast();
  uint64_t unsaid_ = 0;
  std::thread thread_;
};

}  // namespace recon
