// Somebody who reaches the port of a job and sends what he likes: the job goes on, and the server stays
// small.

#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "catch2/catch.hpp"
#include "server/rpc/access.h"
#include "tests/integration/chaos_checks.h"
#include "tests/integration/process_job.h"
#include "tests/support/raw_http2.h"

namespace recon {
namespace {

constexpr int kStrangers = 2000;
constexpr size_t kFlood = 3400;
// Without bounds the second kind of headers takes 2.5 GB within seconds. On a busy machine who looks comes
// late.
constexpr uint64_t kGrowthMax = uint64_t{1} << 30;

uint64_t MostResidentBytes(pid_t process) {
  const std::string status = ReadWholeFile(absl::StrCat("/proc/", process, "/status"));
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::ConsumePrefix(&line, "VmHWM:")) continue;
    uint64_t kib = 0;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    REQUIRE(absl::SimpleAtoi(words[0], &kib));
    return kib << 10;
  }
  return 0;
}

std::vector<std::string> JobFlags() {
  return {"--data-epochs", "100000", "--split-samples", "200", "--batch", "20", "--evict-after", "10s"};
}

// It answers, which without the bounds it does not, and the worker trains on.
void CheckGoesOn(const ProcessJob& job) {
  absl::StatusOr<StatusReply> status;
  // Who asks is a stranger, too, and may be turned away among the others.
  const bool answers = Eventually([&] {
    status = job.Status();
    return status.ok();
  });
  INFO(status.status());
  REQUIRE(answers);
  CHECK(job.SamplesReach(status->samples_completed() + 1000));
  CHECK(status->members_size() == 1);
  CHECK(!absl::StrContains(job.WorkerLog("two"), "registered again"));
}

// For the test's own end of so many connections.
void AllowDescriptors() {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  REQUIRE(limit.rlim_max >= kFlood + 100);
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, kFlood + 100);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

}  // namespace

TEST_CASE("2,000 connections that say nothing leave a server of 256 descriptors to its workers", "[flood]") {
  AllowDescriptors();
  ProcessJob job(JobFlags());
  job.set_server_descriptors(256);
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("two");
  REQUIRE(job.SamplesReach(1000));
  {
    std::vector<OwnedFd> strangers;
    for (int i = 0; i < kStrangers; ++i) strangers.push_back(ConnectTcp(job.address()));
    CheckGoesOn(job);
    // Nor do those who speak HTTP/2 and ask for nothing keep others out.
    for (OwnedFd& stranger : strangers) stranger = ConnectTcp(job.address());
    std::vector<RawSender> speaking;
    for (int i = 0; i < 400; ++i) speaking.push_back({ConnectTcp(job.address())});
    CHECK(Eventually([&] {
      size_t said = 0;
      for (RawSender& one : speaking) {
        if (one.open && one.sent == 0) one.Send(Http2Preface());
        said += !one.open || one.sent > 0 ? 1 : 0;
      }
      return said == speaking.size();
    }));
    CheckGoesOn(job);
  }
  const auto late = job.StartWorker("late");
  CHECK(Eventually([&] {
    const auto status = job.Status();
    return status.ok() && status->members_size() == 2;
  }));
  CHECK(absl::StrContains(job.ServerLog(), " is closed: "));
}

TEST_CASE("as many workers as a soft limit of 1,024 descriptors has room for push beside each other",
          "[flood]") {
  const uint32_t workers = FromEnvironment("RECON_FLOOD_WORKERS", 12);
  ProcessJob job({"--optimizer", "sgd", "--learning-rate", "1", "--data-epochs", "1000", "--evict-after",
                  "60s", "--suspect-after", "30s"});
  job.set_server_descriptors(1024);
  REQUIRE(job.StartServer());
  std::vector<std::unique_ptr<Process>> processes;
  const auto file_of = [&](uint32_t worker) { return job.directory() / absl::StrCat("said-", worker); };
  for (uint32_t i = 0; i < workers; ++i) {
    processes.push_back(std::make_unique<Process>(
        std::vector<std::string>{"chaos_worker", job.address(), absl::StrCat(workers), absl::StrCat(i), "0",
                                 "grpc", file_of(i)},
        file_of(i) + ".log"));
  }
  for (int round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < workers; ++i) {
      const uint64_t before = round == 0 ? 0 : ReadSaid(file_of(i)).acknowledged;
      INFO("worker " << i << ": " << processes[i]->output());
      CHECK(Eventually([&] { return ReadSaid(file_of(i)).acknowledged >= before + 3; }, absl::Minutes(5)));
    }
  }
  const auto status = job.Status();
  REQUIRE(status.ok());
  CHECK(std::count_if(status->members().begin(), status->members().end(), [](const MemberStatus& member) {
          return member.state() != MEMBER_GONE;
        }) == static_cast<ptrdiff_t>(workers));
  for (uint32_t i = 0; i < workers; ++i) CHECK(ReadSaid(file_of(i)).given_up == 0);
  CHECK(!absl::StrContains(job.ServerLog(), "evicted"));
}

TEST_CASE("3,400 connections that each ask a hundred times at once cost no member its place", "[flood]") {
  AllowDescriptors();
  ProcessJob job(JobFlags());
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("two");
  REQUIRE(job.SamplesReach(1000));
  const std::string calls = Http2Calls("/recon.Control/Status", 1, 100, true, /*asks=*/true);
  std::vector<RawSender> strangers;
  for (size_t i = 0; i < kFlood; ++i) {
    strangers.push_back({ConnectTcp(job.address())});
    strangers.back().Send(calls);
  }
  CHECK(Eventually(
      [&] {
        size_t over = 0;
        for (RawSender& one : strangers) {
          if (one.open && one.sent < calls.size()) one.Send(calls);
          over += one.Over() ? 1 : 0;
        }
        return over == strangers.size();
      },
      absl::Seconds(60)));
  CheckGoesOn(job);
  CHECK(!absl::StrContains(job.ServerLog(), "evicted"));
}

TEST_CASE("calls that nobody goes on with are cut", "[flood]") {
  ProcessJob job(JobFlags());
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("two");
  REQUIRE(job.SamplesReach(1000));
  const std::string calls = Http2Calls("/recon.Param/Exchange", 1, 500, true, /*asks=*/false);
  std::vector<RawSender> senders;
  for (int i = 0; i < 20; ++i) senders.push_back({ConnectTcp(job.address())});
  CHECK(Eventually(
      [&] {
        bool open = false;
        for (RawSender& one : senders) {
          if (!one.open) continue;
          if (one.sent < calls.size()) one.Send(calls);
          if (one.sent > 0 && one.HungUp()) one.open = false;
          open |= one.open;
        }
        return !open;
      },
      absl::Seconds(60)));
  // Not only given up since they do not answer: and they have sent too little to be cut for that.
  CHECK(absl::StrContains(job.ServerLog(), " calls open"));
  CheckGoesOn(job);
}

TEST_CASE("who asks and lets no answer through is refused beyond some", "[flood]") {
  std::vector<std::string> flags = JobFlags();
  flags.emplace_back("--open");  // Whoever has no secret comes no further than its denial.
  ProcessJob job(flags);
  REQUIRE(job.StartServer());
  const std::string call = GENERATE(as<std::string>(), "Status", "History", "Completions");
  const uint32_t asked = 3 * Access::kObserverCallsMax;
  RawSender sender{ConnectTcp(job.address())};
  const std::string calls =
      Http2Calls("/recon.Control/" + call, 1, asked, true, /*asks=*/true, Http2NoWindow());
  std::string came;
  // An answer's headers end its stream if nothing follows: it was refused.
  const auto headers = [&](bool end) {
    if (sender.sent < calls.size()) sender.Send(calls);
    char bytes[4096];
    const ssize_t now = recv(sender.fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (now > 0) came.append(bytes, static_cast<size_t>(now));
    return Http2CountHeaders(came, end);
  };
  CHECK(Eventually([&] { return headers(true) >= asked / 3; }));
  CHECK(Eventually([&] { return headers(true) + headers(false) == asked; }));
  CHECK(headers(false) >= Access::kObserverCallsMax);
  CHECK(job.Status().ok());
}

TEST_CASE("headers without end are cut, before they cost much memory", "[flood]") {
  ProcessJob job(JobFlags());
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("two");
  REQUIRE(job.SamplesReach(1000));
  const uint64_t before = MostResidentBytes(job.server().pid());
  // A name of one byte, and a value that claims to have 2 GiB.
  const std::string claim = std::string("\0\1x\x7f\xff\xff\xff\xff\7", 9);
  const bool one_literal = GENERATE(true, false);
  const std::string more = one_literal ? std::string(16'000, 'a') : std::string("\0\1x\1y", 5);
  std::string block;
  while (block.size() < 16'000) block += more;
  std::vector<RawSender> senders;
  for (int i = 0; i < 40; ++i) senders.push_back({ConnectTcp(job.address())});
  const auto all_cut = [&] {
    bool open = false;
    for (RawSender& one : senders) {
      if (one.Over()) continue;
      open = true;
      if (one.sent == 0) {
        one.Send(Http2Preface() + Http2Frame(Http2::kHeaders, 0, 1, one_literal ? claim + more : block));
      } else {
        one.Send(Http2Frame(Http2::kContinuation, 0, 1, one_literal ? more : block));
      }
    }
    return !open;
  };
  CHECK(Eventually(all_cut, absl::Seconds(60)));
  CheckGoesOn(job);
  CHECK(MostResidentBytes(job.server().pid()) < before + kGrowthMax);
}

}  // namespace recon
