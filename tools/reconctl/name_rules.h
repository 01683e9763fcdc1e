#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/snapshot/tensor_match.h"

namespace recon {

// A name in which each * stands for any text, of as few characters as possible. Takes time in proportion to
// the name, however many there are.
class NamePattern {
 public:
  explicit NamePattern(absl::string_view text);

  // What each * stands for in `name`, if it matches.
  std::optional<std::vector<std::string>> Match(absl::string_view name) const;
  // The pattern with these in place of its stars; there may be more of them.
  std::string Fill(const std::vector<std::string>& stars) const;
  size_t stars() const { return pieces_.size() - 1; }

 private:
  std::vector<std::string> pieces_;  // Between the stars; one more than there are.
};

// What `reconctl snapshot import` is told of the names in a file.
class NameRules {
 public:
  // As the flags have them: OLD=NEW, PATTERN, PATTERN and NAME=OTHER. InvalidArgument with the flag.
  static absl::StatusOr<NameRules> Parse(const std::vector<std::string>& renames,
                                         const std::vector<std::string>& skips,
                                         const std::vector<std::string>& carries,
                                         const std::vector<std::string>& aliases);

  // By the first rule that matches; the name itself if none does.
  std::string Renamed(const std::string& name);
  bool Skips(const std::string& name);
  bool Carries(const std::string& name);
  const TensorAliases& aliases() const { return aliases_; }

  // InvalidArgument with the flags that no name has matched: they are misspelled.
  absl::Status CheckAllUsed() const;

 private:
  struct Rule {
    std::string flag;  // As it was given.
    NamePattern pattern;
    NamePattern replacement;
    bool used = false;
  };
  static bool Matches(absl::string_view name, std::vector<Rule>* rules);

  std::vector<Rule> renames_, skips_, carries_;
  TensorAliases aliases_;
};

}  // namespace recon
