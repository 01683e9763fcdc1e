// Many workers against one server and several, killed or stopped at any moment, and connections that never
// say anything. RECON_CHAOS_SECONDS and RECON_CHAOS_WORKERS make it longer and larger; RECON_SOAK_SECONDS the
// last part, in which something happens every ten seconds, and makes what that costs a bar.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>

#include "absl/functional/function_ref.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/sleep.h"
#include "tests/integration/chaos_checks.h"
#include "tests/integration/chaos_model.h"
#include "tests/integration/servers_job.h"

namespace recon {
namespace {

// Stopped for longer than this, a worker may be given up.
constexpr absl::Duration kEvictAfter = absl::Seconds(5);
constexpr size_t kSilentConnectionsMax = 100;
// AddressSanitizer keeps what was freed, and takes its time.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kMeasures = false;
#else
constexpr bool kMeasures = true;
#endif

// One worker: its lives one after the other.
struct Worker {
  std::unique_ptr<Process> process;
  uint32_t life = 0;
  absl::Time go_on = absl::InfiniteFuture();  // When it is stopped.
  std::vector<bool> may_be_given_up;          // By life.
};

// A connection whose other end will never speak, or stops in the middle of a word.
class SilentConnection {
 public:
  SilentConnection(const std::string& address, const std::string& first_bytes)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(*PortOf(address));
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) {
      static_cast<void>(!send(fd_, first_bytes.data(), first_bytes.size(), MSG_NOSIGNAL));
    }
  }
  ~SilentConnection() { close(fd_); }
  SilentConnection(const SilentConnection&) = delete;
  SilentConnection& operator=(const SilentConnection&) = delete;

 private:
  const int fd_;
};

class Chaos {
 public:
  // With more than one server, servers die and stop, too.
  Chaos(uint32_t workers, int servers)
      : count_(workers),
        servers_(servers),
        job_(servers,
             {"--optimizer", "sgd", "--learning-rate", "1", "--data-epochs", "1000", "--evict-after",
              absl::FormatDuration(kEvictAfter), "--suspect-after", "1s", "--snapshot-interval", "2s"}) {
    setenv("RECON_TOKEN", "chaos-0123456789abcdef", 1);  // Of all that is started.
    REQUIRE(job_.StartAll());
    workers_.resize(count_);
    for (uint32_t i = 0; i < count_; ++i) Begin(i);
  }

  void Run(absl::Duration duration) {
    const absl::Time start = Now();
    uint64_t resident_early = 0;
    while (Now() - start < duration) {
      OneEvent();
      if (resident_early == 0 && Now() - start > duration / 2) resident_early = Resident();
      Sleep(absl::Milliseconds(50));
    }
    INFO("server: " << resident_early << " bytes half-way, " << Resident() << " at the end");
    if (kMeasures && servers_ == 1) CHECK(Resident() < resident_early + (uint64_t{24} << 20));
    CHECK(job_.server().running());
  }

  // Something that a cluster sees on a bad day, every ten seconds: a process killed and started again at
  // once, stopped for a while, or a link cut.
  void RunBadDay(absl::Duration duration) {
    constexpr absl::Duration kBetween = absl::Seconds(10), kStopped = absl::Seconds(3),
                             kServerStopped = absl::Seconds(1);
    const absl::Time end = Now() + duration;
    for (int event = 0; Now() + kBetween / 2 < end; ++event) {
      const absl::Time next = Now() + kBetween;
      auto i = static_cast<uint32_t>(random_() % count_);
      const int server = static_cast<int>(random_() % static_cast<uint32_t>(servers_));
      switch (event % 8) {
        case 0:
        case 5:
          if (workers_[i].life + 1 == kChaosLives) break;
          workers_[i].process->Kill();
          ++workers_[i].life;
          Begin(i);
          break;
        case 1:
          job_.process(server).Kill();
          CHECK(job_.Start(server));
          ++server_deaths_;
          break;
        case 2:
        case 6:
          REQUIRE(count_ > 2);
          while (!HasLinks(i)) i = (i + 1) % count_;
          workers_[i].process->Signal(SIGUSR1);
          break;
        case 3:
          job_.process(server).Signal(SIGSTOP);
          Sleep(kServerStopped);
          job_.process(server).Signal(SIGCONT);
          break;
        default:
          workers_[i].process->Signal(SIGSTOP);
          Sleep(kStopped);
          workers_[i].process->Signal(SIGCONT);
      }
      Sleep(next - Now());
    }
  }

  // Acknowledged pushes a second from now on.
  double RateOver(absl::Duration duration, absl::FunctionRef<void()> meanwhile) {
    const uint64_t before = Acknowledged();
    const absl::Time start = Now();
    meanwhile();
    Sleep(start + duration - Now());
    const uint64_t after = Acknowledged();
    return static_cast<double>(after - before) / absl::ToDoubleSeconds(Now() - start);
  }

  // Everybody goes on: nothing hangs.
  void CheckAllGoOn() {
    std::vector<uint64_t> before;
    for (int server = 0; server < servers_; ++server) job_.process(server).Signal(SIGCONT);
    for (uint32_t i = 0; i < count_; ++i) {
      workers_[i].process->Signal(SIGCONT);
      before.push_back(ReadSaid(FileOf(i, workers_[i].life)).acknowledged);
    }
    for (uint32_t i = 0; i < count_; ++i) {
      INFO("worker " << i << ", life " << workers_[i].life << "\n" << workers_[i].process->output());
      CHECK(Eventually([&] { return ReadSaid(FileOf(i, workers_[i].life)).acknowledged >= before[i] + 3; }));
    }
  }

  // Every acknowledged push is in the parameters once, and of each life at most the one under way besides.
  void CheckParameters() {
    for (Worker& worker : workers_) worker.process->Kill();
    // A drain needs all servers.
    REQUIRE(job_.AllReady());
    job_.server().Signal(SIGTERM);
    REQUIRE(job_.server().Wait(absl::Seconds(60)) == 0);
    const auto tensors = NewestValues(job_.snapshots());
    REQUIRE(tensors.size() == kChaosTensors);
    uint64_t lives = 0, pushes = 0;
    for (uint32_t i = 0; i < count_; ++i) {
      for (uint32_t life = 0; life <= workers_[i].life; ++life) {
        const Said said = ReadSaid(FileOf(i, life));
        const auto acknowledged = static_cast<double>(said.acknowledged);
        ++lives;
        pushes += said.acknowledged;
        INFO("worker " << i << ", life " << life << ": " << said.acknowledged << " acknowledged");
        for (const auto& values : tensors) {
          const double count = values[ChaosIndex(i, life)], sum = values[ChaosIndex(i, life) + 1];
          CHECK((count == acknowledged || count == acknowledged + 1));
          CHECK(sum == static_cast<double>(ChaosSum(static_cast<uint64_t>(count))));
        }
        // Its heartbeats came in time, as long as it was free to send them.
        if (!workers_[i].may_be_given_up[life] && servers_ == 1) CHECK(said.given_up == 0);
      }
    }
    CHECK(lives > count_);
    CHECK(pushes > 10 * uint64_t{count_});
    WARN(pushes << " pushes acknowledged to " << lives << " lives of " << count_ << " workers, "
                << server_deaths_ << " deaths of " << servers_ << " servers");
  }

 private:
  std::string FileOf(uint32_t worker, uint32_t life) const {
    return job_.directory() / absl::StrCat("said-", worker, "-", life);
  }

  static bool HasLinks(uint32_t worker) { return worker % 4 == 2; }

  uint64_t Acknowledged() const {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count_; ++i) {
      for (uint32_t life = 0; life <= workers_[i].life; ++life) sum += ReadSaid(FileOf(i, life)).acknowledged;
    }
    return sum;
  }

  void Begin(uint32_t i) {
    const std::string file = FileOf(i, workers_[i].life);
    workers_[i].may_be_given_up.push_back(false);
    workers_[i].process = std::make_unique<Process>(
        std::vector<std::string>{"chaos_worker", job_.address(), absl::StrCat(count_), absl::StrCat(i),
                                 absl::StrCat(workers_[i].life),
                                 HasLinks(i)  ? "link"
                                 : i % 2 == 0 ? "grpc"
                                              : "shm",
                                 file},
        absl::StrCat(file, ".log"));
  }

  void OneEvent() {
    for (Worker& worker : workers_) {
      if (worker.go_on > Now()) continue;
      worker.process->Signal(SIGCONT);
      worker.go_on = absl::InfiniteFuture();
    }
    if (servers_ > 1 && random_() % kEventsAServerEvent == 0) return ServerEvent();
    const auto i = static_cast<uint32_t>(random_() % count_);
    Worker& worker = workers_[i];
    switch (random_() % 4) {
      case 0:
        if (worker.life + 1 == kChaosLives) return;
        worker.process->Kill();
        worker.go_on = absl::InfiniteFuture();
        ++worker.life;
        return Begin(i);
      case 1:
        return Stop(&worker, absl::Milliseconds(500));
      case 2:
        worker.may_be_given_up[worker.life] = true;
        return Stop(&worker, kEvictAfter + absl::Seconds(1));
      default:
        // Nothing, the beginning of HTTP/2, or nonsense.
        static const std::string kFirst[] = {"", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                             std::string(300, '\xff')};
        if (silent_.size() == kSilentConnectionsMax) silent_.erase(silent_.begin());
        silent_.push_back(std::make_unique<SilentConnection>(job_.address(), kFirst[random_() % 3]));
    }
  }

  // One at a time is dead or stopped.
  void ServerEvent() {
    const int server = static_cast<int>(random_() % static_cast<uint32_t>(servers_));
    Process& process = job_.process(server);
    if (random_() % 2 == 0) {
      process.Kill();
      CHECK(job_.Start(server));
      ++server_deaths_;
      return;
    }
    process.Signal(SIGSTOP);
    Sleep(absl::Milliseconds(random_() % 1500));
    process.Signal(SIGCONT);
  }

  static void Stop(Worker* worker, absl::Duration duration) {
    if (worker->go_on != absl::InfiniteFuture()) return;
    worker->process->Signal(SIGSTOP);
    worker->go_on = Now() + duration;
  }

  uint64_t Resident() { return ResidentBytes(job_.server().pid()); }

  static constexpr uint32_t kEventsAServerEvent = 20;

  const uint32_t count_;
  const int servers_;
  int server_deaths_ = 0;
  ServersJob job_;
  std::mt19937 random_{std::random_device{}()};
  std::vector<Worker> workers_;
  std::vector<std::unique_ptr<SilentConnection>> silent_;
};

}  // namespace

TEST_CASE("workers are killed and stopped at any moment, and every acknowledged push counts once",
          "[chaos]") {
  Chaos chaos(FromEnvironment("RECON_CHAOS_WORKERS", 64), 1);
  chaos.Run(absl::Seconds(FromEnvironment("RECON_CHAOS_SECONDS", 15)));
  chaos.CheckAllGoOn();
  chaos.CheckParameters();
}

TEST_CASE("and so are servers: the head and two more", "[chaos]") {
  Chaos chaos(FromEnvironment("RECON_CHAOS_WORKERS", 32), 3);
  chaos.Run(absl::Seconds(FromEnvironment("RECON_CHAOS_SECONDS", 15)));
  chaos.CheckAllGoOn();
  chaos.CheckParameters();
}

TEST_CASE("a bad day costs little: 32 workers, two servers, something every ten seconds", "[chaos]") {
  const uint32_t asked = FromEnvironment("RECON_SOAK_SECONDS", 0);
  const absl::Duration duration = absl::Seconds(asked > 0 ? asked : 20);
  const absl::Duration quiet = std::clamp(duration / 4, absl::Seconds(5), absl::Seconds(60));
  Chaos chaos(FromEnvironment("RECON_CHAOS_WORKERS", 32), 2);
  chaos.CheckAllGoOn();  // All have joined.
  const double before = chaos.RateOver(quiet, [] {});
  const double disturbed = chaos.RateOver(duration, [&] { chaos.RunBadDay(duration); });
  chaos.CheckAllGoOn();
  const double after = chaos.RateOver(quiet, [] {});
  const double kept = disturbed / ((before + after) / 2);
  WARN("pushes a second: " << before << " before, " << disturbed << " disturbed, " << after
                           << " after: " << kept);
  // A rate is judged where somebody asks for it on a machine that does nothing else. In a minute there are
  // few events, and one server's death more or less counts.
  if (asked > 0) CHECK(kept >= (duration >= absl::Minutes(5) ? 0.9 : 0.75));
  chaos.CheckParameters();
}

}  // namespace recon
