#include "tools/reconctl/name_rules.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace recon {
namespace {

// The two sides of the first '='; InvalidArgument if one is empty.
absl::StatusOr<std::pair<std::string, std::string>> Halves(absl::string_view flag, const std::string& text,
                                                           absl::string_view expected) {
  std::pair<std::string, std::string> halves = absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (!halves.first.empty() && !halves.second.empty()) return halves;
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", text, ": expected ", expected));
}

}  // namespace

NamePattern::NamePattern(absl::string_view text) : pieces_(absl::StrSplit(text, '*')) {}

std::optional<std::vector<std::string>> NamePattern::Match(absl::string_view name) const {
  std::vector<std::string> found;
  if (!absl::ConsumePrefix(&name, pieces_.front())) return std::nullopt;
  for (size_t i = 1; i < pieces_.size(); ++i) {
    const bool last = i + 1 == pieces_.size();
    // The last piece is where the name ends, wherever else it may be.
    if (last && !absl::EndsWith(name, pieces_[i])) return std::nullopt;
    const size_t at = last ? name.size() - pieces_[i].size() : name.find(pieces_[i]);
    if (at == absl::string_view::npos) return std::nullopt;
    found.emplace_back(name.substr(0, at));
    name.remove_prefix(at + pieces_[i].size());
  }
  if (!name.empty()) return std::nullopt;
  return found;
}

std::string NamePattern::Fill(const std::vector<std::string>& stars) const {
  std::string name = pieces_.front();
  for (size_t i = 1; i < pieces_.size(); ++i) absl::StrAppend(&name, stars[i - 1], pieces_[i]);
  return name;
}

absl::StatusOr<NameRules> NameRules::Parse(const std::vector<std::string>& renames,
                                           const std::vector<std::string>& skips,
                                           const std::vector<std::string>& carries,
                                           const std::vector<std::string>& aliases) {
  NameRules rules;
  for (const std::string& text : renames) {
    const auto halves = Halves("--rename", text, "OLD=NEW, such as model.*=*");
    if (!halves.ok()) return halves.status();
    Rule rule = {absl::StrCat("--rename ", text), NamePattern(halves->first), NamePattern(halves->second)};
    if (rule.replacement.stars() > rule.pattern.stars()) {
      return absl::InvalidArgumentError(absl::StrCat(rule.flag, ": ", rule.replacement.stars(),
                                                     " stars in the new name, ", rule.pattern.stars(),
                                                     " in the old one"));
    }
    rules.renames_.push_back(std::move(rule));
  }
  for (const std::string& text : skips) {
    rules.skips_.push_back({absl::StrCat("--skip ", text), NamePattern(text), NamePattern("")});
  }
  for (const std::string& text : carries) {
    rules.carries_.push_back({absl::StrCat("--carry ", text), NamePattern(text), NamePattern("")});
  }
  for (const std::string& text : aliases) {
    const auto halves = Halves("--alias", text, "NAME=OTHER, such as lm_head.weight=wte.weight");
    if (!halves.ok()) return halves.status();
    if (!rules.aliases_.insert(*halves).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--alias ", text, ": ", halves->first, " has an alias already"));
    }
  }
  return rules;
}

bool NameRules::Matches(absl::string_view name, std::vector<Rule>* rules) {
  bool matches = false;
  for (Rule& rule : *rules) {
    if (!rule.pattern.Match(name)) continue;
    rule.used = matches = true;
  }
  return matches;
}

std::string NameRules::Renamed(const std::string& name) {
  for (Rule& rule : renames_) {
    const auto stars = rule.pattern.Match(name);
    if (!stars) continue;
    rule.used = true;
    return rule.replacement.Fill(*stars);
  }
  return name;
}

bool NameRules::Skips(const std::string& name) { return Matches(name, &skips_); }
bool NameRules::Carries(const std::string& name) { return Matches(name, &carries_); }

absl::Status NameRules::CheckAllUsed() const {
  std::vector<std::string> unused;
  for (const std::vector<Rule>* rules : {&renames_, &skips_, &carries_}) {
    for (const Rule& rule : *rules) {
      if (!rule.used) unused.push_back(rule.flag);
    }
  }
  if (unused.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(absl::StrJoin(unused, ", "), ": no tensor has such a name"));
}

}  // namespace recon
