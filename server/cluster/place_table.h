#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "proto/cluster.pb.h"
#include "server/cluster/links.h"

namespace recon {

// Whether a server's data directory has the state of this place of a job with so many servers.
bool Resumes(const ServerHello& hello, uint32_t place, uint32_t servers);

// Which server has which place in a job (a number from 1 on; 0 is the head), and which servers wait for one.
// A place stays with its server's data directory, which has a number of its own.
//
// Not thread-safe: the caller serializes. No clock: `now` is an argument.
class PlaceTable {
 public:
  // A server that waits because all places are taken.
  struct Spare {
    std::shared_ptr<ServerLink> link;
    ServerHello hello;
    absl::Time last_heard;
  };

  // `saved`: as Given() made it, or empty.
  PlaceTable(uint32_t servers, const ServerTable& saved);

  // The head among them.
  uint32_t servers() const { return static_cast<uint32_t>(ids_.size()); }
  // The place that a server had, or may have now; 0: none.
  uint32_t PlaceFor(const ServerHello& hello) const;
  // What is to be saved before the place is given to the server of that number.
  ServerTable Given(uint32_t place, uint64_t server_id) const;
  void Give(uint32_t place, uint64_t server_id) { ids_[place] = server_id; }

  void AddSpare(const std::shared_ptr<ServerLink>& link, const ServerHello& hello, absl::Time now);
  // Does nothing if the link is none of a spare's.
  void HearOfSpare(const ServerLink* link, absl::Time now);
  void DropSpare(const ServerLink* link);
  bool IsSpare(const ServerLink* link) const;
  const std::vector<Spare>& spares() const { return spares_; }
  // Those that have said nothing for longer than `silence_max`.
  std::vector<std::shared_ptr<ServerLink>> SilentSpares(absl::Time now, absl::Duration silence_max) const;
  // The one that has waited longest of those that are not silent; it is a spare no more.
  std::optional<Spare> TakeSpare(absl::Time now, absl::Duration silence_max);

 private:
  std::vector<uint64_t> ids_;  // By place; 0: nobody has it yet.
  std::vector<Spare> spares_;  // In the order in which they came.
};

}  // namespace recon
