#include "common/rpc/connection_limits.h"

#include <algorithm>

#include "common/base/check.h"

namespace recon {
namespace {

// For files, logs, snapshots and connections to others.
constexpr uint64_t kDescriptorsForTheRest = 128;

// Of `strangers`, until the others have at most so much together: these stay there.
void CutLargest(const std::vector<ConnectionView>& connections, uint64_t ConnectionView::*what, uint64_t most,
                std::vector<size_t>* strangers, std::vector<size_t>* cut) {
  uint64_t together = 0;
  for (const size_t i : *strangers) together += connections[i].*what;
  if (together <= most) return;
  std::sort(strangers->begin(), strangers->end(),
            [&](size_t a, size_t b) { return connections[a].*what < connections[b].*what; });
  while (together > most) {
    RECON_CHECK(!strangers->empty());
    together -= connections[strangers->back()].*what;
    cut->push_back(strangers->back());
    strangers->pop_back();
  }
}

}  // namespace

ConnectionLimits LimitsFor(uint64_t descriptors) {
  ConnectionLimits limits;
  if (descriptors == 0) return limits;
  const uint64_t left =
      std::max(descriptors / 4, descriptors - std::min(descriptors, kDescriptorsForTheRest));
  limits.connections_max = std::max<size_t>(4, std::min<size_t>(limits.connections_max, left));
  limits.silent_max = std::min(limits.silent_max, limits.connections_max / 2);
  return limits;
}

ConnectionLimits WithoutLimitsOfStrangers(ConnectionLimits limits) {
  for (uint64_t* bytes :
       {&limits.stranger_bytes_max, &limits.strangers_bytes_max, &limits.member_bytes_max}) {
    *bytes = UINT64_MAX;
  }
  limits.strangers_max = limits.entering_max = SIZE_MAX;
  limits.stranger_calls_max = limits.strangers_calls_max = UINT64_MAX;
  return limits;
}

std::vector<size_t> WhichToCut(const std::vector<ConnectionView>& connections,
                               const ConnectionLimits& limits) {
  std::vector<size_t> cut;
  std::vector<size_t> strangers;
  for (size_t i = 0; i < connections.size(); ++i) {
    const ConnectionView& one = connections[i];
    if (one.bytes > (one.member ? limits.member_bytes_max : limits.stranger_bytes_max) ||
        (!one.member && one.calls > limits.stranger_calls_max)) {
      cut.push_back(i);
    } else if (!one.member) {
      strangers.push_back(i);
    }
  }
  CutLargest(connections, &ConnectionView::bytes, limits.strangers_bytes_max, &strangers, &cut);
  CutLargest(connections, &ConnectionView::calls, limits.strangers_calls_max, &strangers, &cut);
  return cut;
}

}  // namespace recon
