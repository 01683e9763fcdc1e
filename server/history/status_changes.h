#pragma once

#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "proto/history.pb.h"

namespace recon {

// What has happened between two statuses of one process of the server, in the order people would tell it:
// kind, subject and text of each event are set, its number is not. Its time is 0, which is now, but for a
// rollback, which the status knows the time of (and tells again after every restart). `before` is null for
// the first status. Pure.
std::vector<HistoryEvent> StatusChanges(const StatusReply* before, const StatusReply& now);

}  // namespace recon
