#include "server/process/settings_changes.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

std::string Shown(const std::string& value) { return value.empty() ? "default" : value; }

// A line for each: name, blank, value with its newlines escaped.
std::string Encode(const Settings& settings) {
  std::string text;
  for (const auto& [flag, value] : settings) absl::StrAppend(&text, flag, " ", absl::CEscape(value), "\n");
  return text;
}

Settings Decode(const std::string& text) {
  Settings settings;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> halves = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    absl::CUnescape(halves.second, &settings[halves.first]);
  }
  return settings;
}

}  // namespace

std::string SettingsChanges(const Settings& before, const Settings& now) {
  std::string changes;
  for (const auto& [flag, value] : now) {
    const auto old = before.find(flag);
    if (old == before.end() || old->second == value) continue;
    absl::StrAppend(&changes, changes.empty() ? "" : ", ", flag, " ", Shown(old->second), " -> ",
                    Shown(value));
  }
  return changes;
}

absl::Status NoteSettings(const Settings& now, ControlDb* db) {
  RECON_ASSIGN_OR_RETURN(const std::string text, db->LoadSettings());
  const std::string changes = SettingsChanges(Decode(text), now);
  if (!changes.empty()) LogInfo("settings changed since the last start: {}", changes);
  const std::string encoded = Encode(now);
  return encoded == text ? absl::OkStatus() : db->SaveSettings(encoded);
}

}  // namespace recon
