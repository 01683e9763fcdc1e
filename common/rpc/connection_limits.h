#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace recon {

// How much may be spent on those who have connected and have not yet shown that they belong to the job: the
// parser of HTTP/2 keeps what it is sent until it is whole.
struct ConnectionLimits {
  // Connections at once; fewer where the process has few descriptors.
  size_t connections_max = 1 << 16;
  // Of those, some that have said nothing yet, and for how long they may.
  size_t silent_max = 256;
  absl::Duration silence_max = absl::Seconds(10);
  // Of those that have said something, some whose other ends have not shown that they belong to the job: each
  // costs 20 KiB and more.
  size_t strangers_max = 1024;
  // For so long none of them has to go for one more: it may be about to show it.
  absl::Duration stranger_grace = absl::Seconds(2);
  // At most so many strangers are let in within that time, since what they ask at once takes the processor
  // from members. Each that shows what it is makes room for the next. The others wait at the door; one of an
  // address that has fewer inside goes first.
  size_t entering_max = 128;
  absl::Duration entering_for = absl::Milliseconds(250);
  // That begin to speak, of one address: at once (all of a large job may be behind one), and each second
  // then. Who is turned away tries again; those who are there already have the processor for themselves.
  double begin_at_once_max = 16'384;
  double begin_per_second_max = 512;
  // Bytes that came since something was last understood: of a stranger's connection (the shapes of a large
  // model are among them, and compressed), of all strangers' together (gRPC takes up to 60 bytes for one of a
  // header), and of a member's (a message of the largest size, and what is on its way meanwhile).
  uint64_t stranger_bytes_max = uint64_t{1} << 20;
  uint64_t strangers_bytes_max = uint64_t{2} << 20;
  uint64_t member_bytes_max = uint64_t{48} << 20;
  // Calls that are open, of a stranger's connection and of all strangers' together: each costs up to 20 KiB,
  // and its reply until somebody reads it.
  uint64_t stranger_calls_max = 128;
  uint64_t strangers_calls_max = 2048;
};

// With as many connections as a process with so many descriptors can have beside its files; 0: no limit.
ConnectionLimits LimitsFor(uint64_t descriptors);

// Where nobody tells what was understood.
ConnectionLimits WithoutLimitsOfStrangers(ConnectionLimits limits);

// A connection, as the limits see it.
struct ConnectionView {
  uint64_t bytes = 0;  // Since something was last understood.
  bool member = false;
  uint64_t calls = 0;  // That are open.
};

// Which of them are to be cut, in any order: those above a bound of their own, then the largest ones of
// strangers until these are below theirs together, in bytes and in calls. Pure.
std::vector<size_t> WhichToCut(const std::vector<ConnectionView>& connections,
                               const ConnectionLimits& limits);

}  // namespace recon
