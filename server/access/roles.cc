#include "server/access/roles.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/secret.h"

namespace recon {
namespace {

constexpr size_t kTokenBytesMin = 16;
constexpr size_t kTokenBytesMax = 256;
constexpr absl::string_view kTokenSigns = "-._~+/=";

}  // namespace

const char* RoleName(Role role) {
  switch (role) {
    case Role::kObserver:
      return "observer";
    case Role::kWorker:
      return "worker";
    case Role::kServer:
      return "server";
    case Role::kOperator:
      return "operator";
  }
  return "unknown";
}

absl::StatusOr<Role> ParseRole(absl::string_view name) {
  for (const Role role : kRoles) {
    if (name == RoleName(role)) return role;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no role ", name, "; roles are observer, worker, server and operator"));
}

RoleSet::RoleSet(std::initializer_list<Role> roles) {
  for (const Role role : roles) Add(role);
}

void RoleSet::Add(Role role) {
  bits_ |= 1U << static_cast<unsigned>(role) | 1U << static_cast<unsigned>(Role::kObserver);
}

std::string RoleSet::Describe() const {
  std::vector<std::string> names;
  for (const Role role : kRoles) {
    if (Has(role)) names.emplace_back(RoleName(role));
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

absl::StatusOr<RoleRule> RoleRule::Parse(absl::string_view text) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, ": ", why, "; expected ROLE=cn:PATTERN, ROLE=ou:PATTERN or ROLE=uri:PATTERN"));
  };
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const absl::StatusOr<Role> role = ParseRole(parts.first);
  if (!role.ok()) return wrong(role.status().message());
  const std::pair<absl::string_view, absl::string_view> value =
      absl::StrSplit(parts.second, absl::MaxSplits(':', 1));
  RoleRule rule;
  rule.role_ = *role;
  if (value.first == "cn") {
    rule.field_ = Field::kCommonName;
  } else if (value.first == "ou") {
    rule.field_ = Field::kUnit;
  } else if (value.first == "uri") {
    rule.field_ = Field::kUri;
  } else {
    return wrong("neither cn, ou nor uri");
  }
  if (value.second.empty()) return wrong("the pattern is empty");
  rule.pattern_ = std::string(value.second);
  return rule;
}

bool RoleRule::Matches(const CertificateNames& names) const {
  const auto matches = [this](const std::string& name) { return MatchesPattern(pattern_, name); };
  switch (field_) {
    case Field::kCommonName:
      return matches(names.common_name);
    case Field::kUnit:
      return std::any_of(names.units.begin(), names.units.end(), matches);
    case Field::kUri:
      return std::any_of(names.uris.begin(), names.uris.end(), matches);
  }
  return false;
}

RoleSet RolesOfCertificate(const CertificateNames& names, const std::vector<RoleRule>& rules) {
  RoleSet roles;
  for (const RoleRule& rule : rules) {
    if (rule.Matches(names)) roles.Add(rule.role());
  }
  if (!rules.empty()) return roles;
  for (const std::string& unit : names.units) {
    if (const auto role = ParseRole(unit); role.ok()) roles.Add(*role);
  }
  return roles.empty() ? RoleSet{Role::kWorker, Role::kServer} : roles;
}

bool MatchesPattern(absl::string_view pattern, absl::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = absl::string_view::npos;  // The last one that was met,
  size_t begun = 0;                       // and where the text it stands for ends so far.
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      begun = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++begun;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

absl::Status CheckToken(absl::string_view token) {
  if (token.size() < kTokenBytesMin || token.size() > kTokenBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a token of ", token.size(), " characters, allowed are ",
                                                   kTokenBytesMin, " to ", kTokenBytesMax));
  }
  for (const char sign : token) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(sign)) ||
        kTokenSigns.find(sign) != absl::string_view::npos) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("a token with other characters than letters, digits and ", kTokenSigns));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenTable> TokenTable::Parse(absl::string_view text) {
  TokenTable table;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    const auto wrong = [&](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", why));
    };
    if (words.size() != 2) return wrong(absl::StrCat(words.size(), " words, expected ROLE TOKEN"));
    const absl::StatusOr<Role> role = ParseRole(words[0]);
    if (!role.ok()) return wrong(role.status().message());
    if (const absl::Status token = CheckToken(words[1]); !token.ok()) return wrong(token.message());
    table.Add(*role, std::string(words[1]));
  }
  return table;
}

RoleSet TokenTable::RolesOf(absl::string_view token) const {
  RoleSet roles;
  for (const Entry& entry : tokens_) {
    if (SameSecret(entry.token, token)) roles.Add(entry.role);
  }
  return roles;
}

}  // namespace recon
