#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "server/durability/control_db.h"

namespace recon {

// By flag, "--batch": what the job was told.
using Settings = std::map<std::string, std::string>;

// What differs, as people read it: "--batch 64 -> 128, --sync asp -> bsp"; empty if nothing does. Flags that
// only one of the two has are of another version of the program, and no change. Pure.
std::string SettingsChanges(const Settings& before, const Settings& now);

// Logs what has changed since the last start, and keeps `now` for the next. Blocks on the disk.
absl::Status NoteSettings(const Settings& now, ControlDb* db);

}  // namespace recon
