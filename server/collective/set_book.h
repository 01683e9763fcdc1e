#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/collective.pb.h"

namespace recon {

// Who is in which set: the head's part of collectives. A set begins with its first member, which says what it
// is, and ends with its last. Each change of its members is a new epoch; who joins or is lost is told to all.
//
// A fixed set has an epoch when every rank is there. Of one that does not shrink, a lost rank leaves the
// epoch as it is, without that rank, until another process takes the rank; then a new epoch begins. Others go
// on at once with those who are left, if these are enough.
//
// Pure; one thread at a time. Members are named by the numbers of their streams.
class SetBook {
 public:
  struct Options {
    absl::Duration patience;    // Of members that do not say.
    uint64_t first_set = 1;     // Random: set numbers of an earlier process are not those of this one.
    bool wants_secret = false;  // Members are told: see SetEpoch.
  };
  // What members are to be told, in this order, and what the head's own ChunkBook is.
  struct Changes {
    std::vector<std::pair<uint64_t, SetEpoch>> epochs;     // Stream.
    std::vector<std::pair<uint64_t, MembersLost>> losses;  // Stream.
    struct Over {
      uint64_t set, epoch;
      uint32_t place;  // Or kEverybody.
      std::string why;
    };
    std::vector<Over> over;
    std::vector<std::pair<uint64_t, absl::Status>> sent_away;  // Streams that are to end.
  };

  explicit SetBook(const Options& options) : options_(options), next_set_(options.first_set) {}

  // InvalidArgument if the request cannot be, or contradicts what the set is; ResourceExhausted for too many.
  absl::Status Join(uint64_t stream, const JoinRequest& request, absl::Time now, Changes* changes);
  // Its stream has ended, or it says that it leaves. Nothing if it is not here.
  void Leave(uint64_t stream, const std::string& why, Changes* changes);
  void Heard(uint64_t stream, absl::Time now);
  // Nobody could be heard until now.
  void Forgive(absl::Time now);
  // Those that have been silent for too long are lost.
  void Evict(absl::Time now, Changes* changes);

  bool empty() const { return sets_.empty(); }
  // Without the calls.
  SetsReply Sets() const;

 private:
  struct Member {
    uint64_t stream = 0;
    uint32_t rank = 0;
    std::string name;
    absl::Duration patience;
    absl::Time heard;
  };
  struct Set {
    uint64_t id = 0;
    uint64_t epoch = 0;
    bool elastic = false, shrink = false;
    uint32_t size = 0;
    std::vector<Member> members;  // Of the epoch, by place; those that are lost have stream 0.
    std::vector<Member> waiting;  // For the next one, in the order of their coming.
    std::vector<Departure> went;  // Since the epoch began.
  };

  absl::Status Check(const JoinRequest& request) const;
  void Replace(const std::string& name, Set* set, uint32_t rank, Changes* changes);
  void Lose(Set* set, size_t place, const std::string& why, Changes* changes);
  void BeginIfComplete(Set* set, Changes* changes);
  static size_t Here(const Set& set);
  void Tell(const Set& set, const std::vector<SetMember>& came, Changes* changes) const;

  const Options options_;
  uint64_t next_set_;
  std::map<std::string, Set> sets_;
  std::map<uint64_t, std::string> set_of_;  // By stream.
};

}  // namespace recon
