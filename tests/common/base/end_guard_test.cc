#include "common/base/end_guard.h"

#include <sys/wait.h>
#include <unistd.h>

#include "catch2/catch.hpp"

namespace recon {
namespace {

constexpr int kEndedItself = 9;

// The exit code of a child process that runs `body`.
template <typename Body>
int CodeOf(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(kEndedItself);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("a process whose end waits for ever ends with the code that was expected last", "[end_guard]") {
  CHECK(CodeOf([] {
          EndGuard guard(absl::Milliseconds(20));
          guard.Expect(1);
          guard.Expect(3);
          while (true) pause();
        }) == 3);
}

TEST_CASE("a process that gets to its end, or has none yet, is left alone", "[end_guard]") {
  CHECK(CodeOf([] { const EndGuard guard(absl::ZeroDuration()); }) == kEndedItself);
  CHECK(CodeOf([] {
          EndGuard guard(absl::Minutes(1));
          guard.Expect(1);
        }) == kEndedItself);
}

}  // namespace recon
