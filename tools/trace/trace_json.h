#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tools/trace/timeline.h"

namespace recon {

// A timeline in the Trace Event Format (JSON object format), which Perfetto and Chrome's about:tracing open.
// A process of the job is a process of the file, numbered from 1 on in the timeline's order; what a thread
// did is a complete event ("X") of its thread, what waited or was under way an asynchronous one ("b", "e").
// Events about a push have its worker, step and shard as arguments; an arrow ("s", "f") leads from the
// sending of a frame to its receiving. Times are microseconds from the trace's begin. "otherData" says how
// far clocks may be wrong, what was dropped, and whose spans lack.
//
// `write` takes it piece by piece; its first error ends it, and is returned.
absl::Status WriteTraceJson(const Timeline& timeline,
                            const std::function<absl::Status(absl::string_view)>& write);

}  // namespace recon
