#include "common/base/check.h"

#include <signal.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/ids.h"
#include "common/base/lane.h"
#include "common/base/pool_allocator.h"
#include "spdlog/spdlog.h"
#include "tests/support/death.h"

namespace recon {
namespace {

enum class Phase { kBegun = 1, kEnded = 2 };

// The line that a broken invariant writes, without its end.
std::string LineOf(const std::function<void()>& mistake) {
  const Death death = DeathOf(mistake);
  CHECK(death.signal == SIGABRT);
  CHECK(std::count(death.stderr_text.begin(), death.stderr_text.end(), '\n') == 1);
  return death.stderr_text.substr(0, death.stderr_text.find('\n'));
}

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("a broken invariant ends the process with its expression, values and place", "[check]") {
  size_t bytes = 3;
  const int line_of_check = __LINE__ + 1;
  const std::string line = LineOf([&] { RECON_CHECK_GE(bytes, size_t{5}, "a request leaves"); });
  CHECK(line == absl::StrCat("a broken invariant ends this process: bytes >= size_t{5}, values 3 and 5: a "
                             "request leaves (tests/common/base/check_test.cc:",
                             line_of_check, ")"));
  CHECK_THAT(LineOf([&] { RECON_CHECK(bytes == 4); }),
             Contains("ends this process: bytes == 4 (tests/common/base/check_test.cc:"));
}

TEST_CASE("each comparison shows the values of both sides", "[check]") {
  const WorkerId worker(7);
  const std::string name = "w\n3";
  const void* const nothing = nullptr;
  CHECK_THAT(LineOf([&] { RECON_CHECK_EQ(worker, WorkerId(9)); }), Contains("values 7 and 9"));
  CHECK_THAT(LineOf([&] { RECON_CHECK_EQ(Phase::kBegun, Phase::kEnded); }), Contains("values 1 and 2"));
  CHECK_THAT(LineOf([&] { RECON_CHECK_EQ(name, "w4"); }), Contains("values \"w\\n3\" and \"w4\""));
  CHECK_THAT(LineOf([&] { RECON_CHECK_LT(0.5, 0.25); }), Contains("values 0.5 and 0.25"));
  CHECK_THAT(LineOf([&] { RECON_CHECK_EQ(static_cast<const void*>(&name), nothing); }),
             Contains(" and null"));
  CHECK_THAT(LineOf([&] { RECON_CHECK_LE(6, 5); }), Contains("6 <= 5, values 6 and 5"));
  CHECK_THAT(LineOf([&] { RECON_CHECK_GT(5, 5); }), Contains("5 > 5, values 5 and 5"));
  CHECK_THAT(LineOf([&] { RECON_CHECK_GE(std::numeric_limits<double>::quiet_NaN(), 0.0); }),
             Contains("values nan and 0"));
}

TEST_CASE("integers of different signs are compared by their values", "[check]") {
  const size_t one = 1;
  RECON_CHECK_LT(-1, one);
  RECON_CHECK_GT(one, -1);
  RECON_CHECK_EQ(one, 1);
  CHECK_THAT(LineOf([&] { RECON_CHECK_EQ(UINT64_MAX, -1); }), Contains("values 18446744073709551615 and -1"));
  CHECK_THAT(LineOf([&] { RECON_CHECK_GE(-1, one); }), Contains("values -1 and 1"));
}

TEST_CASE("an invariant that holds evaluates its operands once and no message", "[check]") {
  int evaluated = 0, messages = 0;
  const auto message = [&] {
    ++messages;
    return std::string("never");
  };
  RECON_CHECK_EQ(++evaluated, 1, message());
  RECON_CHECK(++evaluated == 2, message());
  CHECK(evaluated == 2);
  CHECK(messages == 0);
}

TEST_CASE("the line goes through the log where there is one", "[check]") {
  // Tests have the log off: the other cases show what is written then.
  const std::string line = LineOf([] {
    spdlog::default_logger_raw()->set_level(spdlog::level::err);
    RECON_CHECK_EQ(1, 2);
  });
  CHECK_THAT(line, Contains(" critical ") && Contains("1 == 2, values 1 and 2"));
}

TEST_CASE("a task that waits for its own lane ends the process", "[check][lane]") {
  const std::string line = LineOf([] {
    Lane lane("self");
    lane.RunAndWait([&] { lane.RunAndWait([] {}); });
  });
  CHECK_THAT(line, Contains("!IsCurrent(): a task of a lane waits for its own lane (common/base/lane.cc:"));
}

TEST_CASE("memory of no bytes is no pooled block", "[check][base]") {
  CHECK_THAT(LineOf([] { (void)TakePooled(0); }), Contains("bytes >= 1, values 0 and 1"));
}

}  // namespace recon
