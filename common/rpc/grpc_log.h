#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace recon {

// What becomes of gRPC's own lines and protobuf's, which are many, without a peer, and of another form than
// ours.
enum class GrpcLogUse {
  kServer,  // Handshakes that failed are told once for each peer and cause; so is all else that is an error.
  kClient,  // Handshakes are not told: who connects says what is wrong (ProbeTls).
};

// From now on gRPC's lines and protobuf's go to our log; not gRPC's where GRPC_VERBOSITY or GRPC_TRACE ask
// for all of them. Call it in main(), before any channel or server.
void TakeGrpcLog(GrpcLogUse use);

// What gRPC's line of a handshake that has failed says of the client, as one of ours does; empty if `message`
// is no such line.
std::string HandshakeCause(absl::string_view message);

// Lines that repeat themselves: each is told when it first comes, and again when kAgain has gone by, with how
// often it came meanwhile. Not thread-safe; holds kLinesMax lines at most, others are not told.
class RepeatedLines {
 public:
  static constexpr absl::Duration kAgain = absl::Minutes(10);
  static constexpr size_t kLinesMax = 64;

  // How often `line` has come since it was told, this time included; none if it is not to be told now.
  std::optional<uint64_t> Tell(const std::string& line, absl::Time now);

 private:
  struct Seen {
    absl::Time told;
    uint64_t since = 0;
  };
  std::map<std::string, Seen> lines_;
};

}  // namespace recon
