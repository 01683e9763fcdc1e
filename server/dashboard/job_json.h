#pragma once

#include <string>

#include "proto/control.pb.h"
#include "proto/history.pb.h"
#include "server/history/history.h"

namespace recon {

// What the dashboard's page reads. Texts are escaped (EscapeControls() in common/base/plain_text.h). Pure.

// {"job": the status without its members and evaluations, as reconctl status --json has it,
//  "workers": {"name": [...], "state": [...], ...}, a column for each thing that the table shows,
//  "last_push_ms": ..., "next_event": ..., "last_ms": of the job's last point}. What is not known is null.
std::string LiveJson(const StatusReply& status, const History& history);

// {"job": TRACK, "evaluations": TRACK, "worker": TRACK or null, "events": [{"number", "unix_ms", "kind",
// "subject", "text"}]}, where TRACK is {"begin_ms": [...], "end_ms": [...], "series": {NAME: {"mean": [...],
// "min": [...], "max": [...]}}}; min and max only if they differ from the mean somewhere.
std::string HistoryJson(const JobHistory& history);

}  // namespace recon
