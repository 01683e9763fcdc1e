#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recon {

// What a caller may do to a job. Whoever has any of them may observe.
enum class Role {
  kObserver,  // Reads status, history and completions.
  kWorker,    // Trains.
  kServer,    // Holds a part of the parameters (recon-server --join).
  kOperator,  // Ends the job, changes its policy, takes snapshots, goes back to one.
};
inline constexpr Role kRoles[] = {Role::kObserver, Role::kWorker, Role::kServer, Role::kOperator};
// "observer", "worker", "server", "operator".
const char* RoleName(Role role);
// InvalidArgument for another word.
absl::StatusOr<Role> ParseRole(absl::string_view name);

class RoleSet {
 public:
  RoleSet() = default;
  RoleSet(std::initializer_list<Role> roles);

  void Add(Role role);
  void Add(RoleSet other) { bits_ |= other.bits_; }
  bool Has(Role role) const { return (bits_ >> static_cast<unsigned>(role) & 1) != 0; }
  bool empty() const { return bits_ == 0; }
  // "observer, worker"; "none".
  std::string Describe() const;

 private:
  unsigned bits_ = 0;
};

// What a certificate says of its holder.
struct CertificateNames {
  std::string common_name;
  std::vector<std::string> units;  // Organisational units (OU).
  std::vector<std::string> uris;   // Subject alternative names that are URIs, as SPIFFE has them.
};

// ROLE=cn:PATTERN, ROLE=ou:PATTERN or ROLE=uri:PATTERN: whose certificate has such a name has the role. In a
// pattern * stands for any text, and everything else for itself.
class RoleRule {
 public:
  // InvalidArgument, which names what is wrong with it.
  static absl::StatusOr<RoleRule> Parse(absl::string_view text);

  Role role() const { return role_; }
  bool Matches(const CertificateNames& names) const;

 private:
  enum class Field { kCommonName, kUnit, kUri };
  Role role_ = Role::kObserver;
  Field field_ = Field::kCommonName;
  std::string pattern_;
};

// By these rules; without any, a unit that is called like a role has it, and who has no such unit may do what
// a worker, a server and an observer may. Pure.
RoleSet RolesOfCertificate(const CertificateNames& names, const std::vector<RoleRule>& rules);

// Whether `text` is as `pattern` has it. Takes time in proportion to the product of their lengths at most.
bool MatchesPattern(absl::string_view pattern, absl::string_view text);

// The tokens of a file: a line each has a role and its token; # begins a comment.
class TokenTable {
 public:
  // InvalidArgument, which names the line, for a role that is none, and for a token that is short, long or
  // has other characters than letters, digits and -._~+/=.
  static absl::StatusOr<TokenTable> Parse(absl::string_view text);

  void Add(Role role, std::string token) { tokens_.push_back({role, std::move(token)}); }
  // The roles of one token; takes as long whichever it is.
  RoleSet RolesOf(absl::string_view token) const;

 private:
  struct Entry {
    Role role;
    std::string token;
  };
  std::vector<Entry> tokens_;
};

// OK if it may be one.
absl::Status CheckToken(absl::string_view token);

}  // namespace recon
