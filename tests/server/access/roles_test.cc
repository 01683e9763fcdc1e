#include "server/access/roles.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

std::string RolesBy(const std::vector<std::string>& rules, const CertificateNames& names) {
  std::vector<RoleRule> parsed;
  for (const std::string& rule : rules) parsed.push_back(*RoleRule::Parse(rule));
  return RolesOfCertificate(names, parsed).Describe();
}

}  // namespace

TEST_CASE("a certificate has the roles of its units, and by rules those that match", "[access]") {
  CHECK(RolesBy({}, {"any", {}, {}}) == "observer, worker, server");
  CHECK(RolesBy({}, {"any", {"research"}, {}}) == "observer, worker, server");
  CHECK(RolesBy({}, {"any", {"operator"}, {}}) == "observer, operator");
  CHECK(RolesBy({}, {"any", {"observer"}, {}}) == "observer");
  CHECK(RolesBy({}, {"operator", {"worker", "server"}, {}}) == "observer, worker, server");
  // Rules are all there is then.
  const std::vector<std::string> rules = {"operator=ou:ops-*", "worker=uri:spiffe://lab/*/worker",
                                          "worker=cn:w?"};
  CHECK(RolesBy(rules, {"any", {"operator"}, {}}) == "none");
  CHECK(RolesBy(rules, {"any", {"research", "ops-1"}, {}}) == "observer, operator");
  CHECK(RolesBy(rules, {"any", {}, {"spiffe://lab/a/worker"}}) == "observer, worker");
  CHECK(RolesBy(rules, {"any", {}, {"spiffe://lab/worker"}}) == "none");
  CHECK(RolesBy(rules, {"w?", {"ops-"}, {}}) == "observer, worker, operator");
  CHECK(RolesBy(rules, {"w1", {}, {}}) == "none");
}

TEST_CASE("a rule that means nothing is refused with what was expected", "[access]") {
  for (const char* wrong : {"", "operator", "boss=cn:x", "worker=x", "worker=dns:x", "worker=cn:", "=cn:x"}) {
    INFO(wrong);
    const auto rule = RoleRule::Parse(wrong);
    CHECK(absl::IsInvalidArgument(rule.status()));
  }
}

TEST_CASE("a pattern's stars stand for any text, and cost no more than the product of the lengths",
          "[access]") {
  CHECK(MatchesPattern("", ""));
  CHECK(!MatchesPattern("", "a"));
  CHECK(MatchesPattern("*", ""));
  CHECK(MatchesPattern("a*c*e", "abcde"));
  CHECK(MatchesPattern("a*c*e", "acccce"));
  CHECK(!MatchesPattern("a*c*e", "acccd"));
  CHECK(MatchesPattern("*aab", "aaaaab"));
  CHECK(!MatchesPattern("a.c", "abc"));
  std::string stars;
  for (int i = 0; i < 200; ++i) stars += "*a";
  CHECK(!MatchesPattern(stars + "b", std::string(20'000, 'a')));
}

TEST_CASE("a file of tokens is read whole or refused with the line", "[access]") {
  const auto table = TokenTable::Parse(
      "# of the lab\n\nworker 0123456789abcdef  # all of them\n\toperator ABCDEFGHIJKLMNOP-._~+/=\r\n"
      "observer 0123456789abcdef");
  REQUIRE(table.ok());
  CHECK(table->RolesOf("0123456789abcdef").Describe() == "observer, worker");
  CHECK(table->RolesOf("ABCDEFGHIJKLMNOP-._~+/=").Describe() == "observer, operator");
  CHECK(table->RolesOf("0123456789abcdeg").empty());
  CHECK(table->RolesOf("").empty());
  const auto refused = [](const std::string& text) {
    return std::string(TokenTable::Parse(text).status().message());
  };
  CHECK(refused("worker") == "line 1: 1 words, expected ROLE TOKEN");
  CHECK(refused("\nboss 0123456789abcdef") ==
        "line 2: there is no role boss; roles are observer, worker, server and operator");
  CHECK(refused("worker short") == "line 1: a token of 5 characters, allowed are 16 to 256");
  CHECK(refused("worker 0123456789abcde\x01") ==
        "line 1: a token with other characters than letters, digits and -._~+/=");
  CHECK(refused("worker " + std::string(257, 'x')) ==
        "line 1: a token of 257 characters, allowed are 16 to 256");
}

}  // namespace recon
