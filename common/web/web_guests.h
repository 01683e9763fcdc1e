#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace recon {

// The connections of an HTTP server, and which of them have to go, so that no client keeps others out by
// being slow: one has so long to ask and so long to take its answer, whatever it sends meanwhile. A newcomer
// is always let in. If there are too many then, one of the address that has the most connections goes: the
// one that has been asking, or taking an answer, for the longest time.
//
// Pure; `now` does not go back.
class WebGuests {
 public:
  struct Limits {
    size_t connections_max;
    absl::Duration ask_max;     // From its begin, or from the answer before, until its request is whole.
    absl::Duration answer_max;  // From then until the answer is sent.
  };

  explicit WebGuests(Limits limits) : limits_(limits) {}

  // Connection `id`, which is no other's, begins; `address` is whose it is (AddressRates::KeyOf()). Returns
  // the one that has to go for it; it counts no more, and Left() is called for it.
  std::optional<uint64_t> Came(uint64_t id, uint64_t address, absl::Time now);
  // Its request is whole; its answer is sent. Who is not known is no matter.
  void Asked(uint64_t id, absl::Time now);
  void Answered(uint64_t id, absl::Time now);
  // It has ended.
  void Left(uint64_t id) { guests_.erase(id); }
  // Those that have taken too long, each once.
  std::vector<uint64_t> TakeOverdue(absl::Time now);
  // When TakeOverdue() has to be asked at the latest; InfiniteFuture where there is nobody.
  absl::Time NextOverdue() const;
  // Those that count.
  size_t size() const;

 private:
  struct Guest {
    uint64_t address = 0;
    absl::Time since;
    absl::Time until;
    bool going = false;
  };
  using Guests = std::map<uint64_t, Guest>;
  Guests::iterator WhoHasToGo();

  const Limits limits_;
  Guests guests_;
};

}  // namespace recon
