#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "common/trace/clock_alignment.h"
#include "common/trace/recorder.h"
#include "proto/trace.pb.h"

namespace recon {

// What the processes of a job did, on the head's clock.
struct Timeline {
  struct Process {
    TraceMember member;
    std::map<uint32_t, std::string> threads;  // Names, by the operating system's numbers.
    int64_t clock_error_ns = 0;               // Its times may be wrong by so much, beside the head's.
    uint64_t spans = 0;
    uint64_t dropped = 0;  // It had no room for them, or they did not arrive.
  };
  struct Span {
    size_t process = 0;  // Of `processes`.
    uint32_t thread = 0;
    const std::string* name = nullptr;  // Of `names`.
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    trace::About about;
    bool passive = false;
  };

  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  std::vector<Process> processes;                         // The head, other servers, workers.
  std::map<std::string, std::string, std::less<>> names;  // To themselves: their addresses stay.
  std::vector<Span> spans;     // By begin; what lies around another comes before it.
  std::vector<TraceGap> gaps;  // Whose spans lack, and why.

  // The largest of all processes.
  int64_t clock_error_ns() const;
};

// "head 10.0.0.1:7070", "server 2 10.0.0.3:7070", "worker 4 gpu0".
std::string ProcessTitle(const TraceMember& member);

// Makes a timeline of what a trace's client is sent. Threads: one.
class TimelineBuilder {
 public:
  // OK, or InvalidArgument for what no head sends.
  absl::Status Add(TraceUpdate update);
  // Whether the trace has begun, and has come to its end.
  bool begun() const { return begun_; }
  bool ended() const { return ended_; }
  // Spans on the head's clock, cut to the trace's time. Once.
  Timeline Build();

 private:
  using Key = std::tuple<int, uint32_t, std::string, std::string, uint32_t>;
  struct Collected {
    Timeline::Process process;
    std::vector<trace::ClockReading> clock;
    std::vector<Timeline::Span> spans;  // On its own clock.
    bool shares_process = false;
  };

  absl::Status AddDelivery(const TraceDelivery& delivery);
  void Align(Collected* collected, size_t number);

  Timeline timeline_;
  std::map<Key, Collected> collected_;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace recon
