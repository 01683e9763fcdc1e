// Two workers push while somebody who reaches their server's port tries everything at once (hostile_client).
// RECON_HOSTILE_SECONDS makes it longer, and makes bars of what it costs: rate, memory, and how long a status
// takes. The last core is then the attacker's, as if it had a machine of its own, and the job has the others.
// RECON_HOSTILE_ONLY=ATTACK: that one alone.

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/sleep.h"
#include "tests/integration/chaos_checks.h"
#include "tests/integration/chaos_model.h"
#include "tests/integration/process_job.h"
#include "tests/support/certificates.h"

namespace recon {
namespace {

constexpr uint32_t kWorkers = 2;
constexpr double kRateKeptMin = 0.95;
constexpr uint64_t kGrowthMax = uint64_t{256} << 20;
constexpr absl::Duration kStatusMax = absl::Seconds(1);

// CPU time of a process, all threads.
double CpuSeconds(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const std::vector<std::string> words = absl::StrSplit(text.substr(text.rfind(')') + 2), ' ');
  uint64_t user = 0, system = 0;
  REQUIRE((words.size() > 13 && absl::SimpleAtoi(words[11], &user) && absl::SimpleAtoi(words[12], &system)));
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// This thread, and what it starts, has these cores until it is destroyed.
class OnCores {
 public:
  explicit OnCores(const cpu_set_t& cores) : before_(Mine()) { Use(cores); }
  ~OnCores() { Use(before_); }
  OnCores(const OnCores&) = delete;
  OnCores& operator=(const OnCores&) = delete;

  static cpu_set_t Mine() {
    cpu_set_t mine;
    REQUIRE(sched_getaffinity(0, sizeof(mine), &mine) == 0);
    return mine;
  }

 private:
  static void Use(const cpu_set_t& cores) { CHECK(sched_setaffinity(0, sizeof(cores), &cores) == 0); }

  const cpu_set_t before_;
};

// A job's and an attacker's. One core they share.
struct SplitCores {
  cpu_set_t job = OnCores::Mine();
  cpu_set_t attacker = job;
};
SplitCores Split() {
  SplitCores split;
  if (CPU_COUNT(&split.job) < 2) return split;
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &split.job)) --last;
  CPU_CLR(last, &split.job);
  CPU_ZERO(&split.attacker);
  CPU_SET(last, &split.attacker);
  return split;
}

std::vector<std::string> Files(const TlsFlags& tls) {
  if (tls.cert.empty()) return {};
  return {tls.cert, tls.key, tls.ca};
}

class AttackedJob {
 public:
  AttackedJob(const TlsFlags& tls, std::vector<std::string> flags) : tls_(tls), job_(std::move(flags)) {
    REQUIRE(job_.StartServer());
    for (uint32_t i = 0; i < kWorkers; ++i) {
      std::vector<std::string> arguments = {
          "chaos_worker",          job_.address(), absl::StrCat(kWorkers), absl::StrCat(i), "0",
          i == 0 ? "grpc" : "shm", FileOf(i)};
      for (const std::string& file : Files(tls)) arguments.push_back(file);
      workers_.push_back(std::make_unique<Process>(arguments, FileOf(i) + ".log"));
    }
    CheckAllPush();
    incarnations_ = Incarnations(*Status());
    REQUIRE(incarnations_.size() == kWorkers);
  }

  // With the certificates that the attacker shows, on these cores. What it has tried, by its names.
  void Attack(const TlsFlags& tls, const cpu_set_t& cores, absl::Duration duration) {
    std::vector<std::string> arguments = {"hostile_client", job_.address(), "w0"};
    for (const std::string& file : Files(tls)) arguments.push_back(file);
    std::optional<OnCores> on_cores(cores);
    Process client(arguments, job_.directory() / "hostile.log");
    on_cores.reset();
    const absl::Time end = Now() + duration;
    do {
      resident_max_ = std::max(resident_max_, Resident());
      CheckStatus();
      Sleep(absl::Milliseconds(100));
    } while (Now() < end);
    client_cpu_ = CpuSeconds(client.pid());
    client.Signal(SIGTERM);
    const int code = client.Wait(absl::Seconds(60));
    INFO(client.output());
    CHECK(code == 0);
    tried_ = client.output();
    CheckTried();
  }

  double RateOver(absl::Duration duration) {
    const uint64_t before = Acknowledged();
    const absl::Time start = Now();
    Sleep(duration);
    return static_cast<double>(Acknowledged() - before) / absl::ToDoubleSeconds(Now() - start);
  }

  void CheckAllPush() {
    for (uint32_t i = 0; i < kWorkers; ++i) {
      const uint64_t before = ReadSaid(FileOf(i)).acknowledged;
      INFO(workers_[i]->output());
      CHECK(Eventually([&] { return ReadSaid(FileOf(i)).acknowledged >= before + 3; }, absl::Seconds(60)));
    }
  }

  // Every acknowledged push is in the parameters once, besides at most the one that was under way.
  void CheckParameters() {
    CHECK(job_.server().running());
    CheckStatus();
    for (const auto& worker : workers_) worker->Kill();
    job_.server().Signal(SIGTERM);
    REQUIRE(job_.server().Wait(absl::Seconds(60)) == 0);
    const auto tensors = NewestValues(job_.snapshots());
    REQUIRE(tensors.size() == kChaosTensors);
    for (uint32_t i = 0; i < kWorkers; ++i) {
      const Said said = ReadSaid(FileOf(i));
      INFO("worker " << i << ": " << said.acknowledged << " acknowledged\n" << workers_[i]->output());
      CHECK(said.given_up == 0);
      for (const auto& values : tensors) {
        const double count = values[ChaosIndex(i, 0)], sum = values[ChaosIndex(i, 0) + 1];
        CHECK((count == static_cast<double>(said.acknowledged) ||
               count == static_cast<double>(said.acknowledged + 1)));
        CHECK(sum == static_cast<double>(ChaosSum(static_cast<uint64_t>(count))));
      }
    }
  }

  uint64_t Acknowledged() const {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < kWorkers; ++i) sum += ReadSaid(FileOf(i)).acknowledged;
    return sum;
  }
  uint64_t Resident() { return ResidentBytes(job_.server().pid()); }
  double ServerCpu() { return CpuSeconds(job_.server().pid()); }
  uint64_t resident_max() const { return resident_max_; }
  absl::Duration slowest_status() const { return slowest_status_; }
  int turned_away() const { return turned_away_; }
  double client_cpu() const { return client_cpu_; }
  const std::string& tried() const { return tried_; }

 private:
  std::string FileOf(uint32_t worker) const { return job_.directory() / absl::StrCat("said-", worker); }

  absl::StatusOr<StatusReply> Status() {
    // A connection for each: others are kept by the library.
    return ControlClient(*ConnectTo(job_.address(), tls_, ++connections_), absl::Seconds(60)).Status();
  }

  static std::map<std::string, uint64_t> Incarnations(const StatusReply& status) {
    std::map<std::string, uint64_t> found;
    for (const MemberStatus& member : status.members()) {
      const bool ours = member.name() == "w0" || member.name() == "w1";
      if (ours && member.state() != MEMBER_GONE) found[member.name()] = member.incarnation();
    }
    return found;
  }

  // It is answered, and says that both are there, as they were.
  void CheckStatus() {
    const absl::Time start = Now();
    absl::StatusOr<StatusReply> status;
    // Who asks is a stranger, too, and may be turned away among the others.
    Eventually([&] {
      status = Status();
      turned_away_ += status.ok() ? 0 : 1;
      return status.ok();
    });
    slowest_status_ = std::max(slowest_status_, Now() - start);
    INFO(status.status());
    REQUIRE(status.ok());
    CHECK(Incarnations(*status) == incarnations_);
  }

  // Each attack was tried, or the rest says nothing.
  void CheckTried() {
    int attacks = 0;
    std::istringstream lines(tried_);
    for (std::string line; std::getline(lines, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      uint64_t tries = 0;
      INFO(line);
      CHECK((words.size() == 2 && absl::SimpleAtoi(words[1], &tries) && tries > 0));
      ++attacks;
    }
    CHECK(attacks == (std::getenv("RECON_HOSTILE_ONLY") == nullptr ? 21 : 1));
  }

  const TlsFlags tls_;
  ProcessJob job_;
  int connections_ = 0;
  std::vector<std::unique_ptr<Process>> workers_;
  std::map<std::string, uint64_t> incarnations_;
  uint64_t resident_max_ = 0;
  absl::Duration slowest_status_ = absl::ZeroDuration();
  int turned_away_ = 0;
  double client_cpu_ = 0;
  std::string tried_;
};

void RunAttack(const TlsFlags& tls, const std::vector<std::string>& tls_flags, const TlsFlags& attacker) {
  const uint32_t asked = FromEnvironment("RECON_HOSTILE_SECONDS", 0);
  const absl::Duration duration = absl::Seconds(asked > 0 ? asked : 10);
  const absl::Duration quiet = std::clamp(duration / 4, absl::Seconds(2), absl::Seconds(30));
  std::vector<std::string> flags = {"--optimizer",     "sgd",  "--learning-rate",     "1",
                                    "--data-epochs",   "1000", "--evict-after",       "15s",
                                    "--suspect-after", "5s",   "--snapshot-interval", "2s"};
  flags.insert(flags.end(), tls_flags.begin(), tls_flags.end());
  if (tls.cert.empty())
    flags.emplace_back("--open");  // Whoever has no secret comes no further than its denial.
  SplitCores cores;
  if (asked > 0) cores = Split();
  const OnCores on_cores(cores.job);
  AttackedJob job(tls, flags);
  const double before = job.RateOver(quiet);
  const uint64_t resident = job.Resident();
  const double cpu = job.ServerCpu();
  const uint64_t pushes = job.Acknowledged();
  const absl::Time start = Now();
  job.Attack(attacker, cores.attacker, duration);
  const double seconds = absl::ToDoubleSeconds(Now() - start);
  const double disturbed = static_cast<double>(job.Acknowledged() - pushes) / seconds;
  const double server_cpu = (job.ServerCpu() - cpu) / seconds;
  job.CheckAllPush();
  const double after = job.RateOver(quiet);
  const double kept = disturbed / ((before + after) / 2);
  const uint64_t growth = job.resident_max() - std::min(job.resident_max(), resident);
  WARN(job.tried() << "pushes a second: " << before << " before, " << disturbed << " attacked, " << after
                   << " after: " << kept << "; cores: server " << server_cpu << ", attacker "
                   << job.client_cpu() / seconds << "; server's memory: " << (resident >> 20) << " MiB, + "
                   << (growth >> 20) << "; slowest status: " << job.slowest_status() << ", turned away "
                   << job.turned_away() << " times");
  // Figures are judged where somebody asks for them on a machine that does nothing else.
  if (asked > 0) {
    CHECK(kept >= kRateKeptMin);
    CHECK(growth <= kGrowthMax);
    CHECK(job.slowest_status() <= kStatusMax);
  }
  job.CheckParameters();
}

}  // namespace

TEST_CASE("whoever reaches the port and tries everything at once disturbs nobody", "[hostile]") {
  RunAttack({}, {}, {});
}

TEST_CASE("nor does who shows a certificate of another CA", "[hostile]") {
  const Certificates ours("ours");
  const Certificates theirs("theirs");
  RunAttack(ours.Client(), ours.Flags(), theirs.Client());
}

}  // namespace recon
