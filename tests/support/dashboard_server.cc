// A dashboard of a job that is not there: dashboard_server WORKERS [CERT KEY CA]. Statuses are made up, each
// half second, as tests/server/history/simulated_status.h has them; the page, HTTP and history are the
// server's own. Prints the address. Commands on standard input, a line each: "suspect NAME", "evict NAME",
// "name NAME" (a worker joins), "clock SECONDS" (the time of day is so far ahead), "quiet" and "speak" (no
// statuses meanwhile), "server NUMBER STATE" (another server, by the name of its state), "starve" and "feed"
// (no epoll descriptor can be had meanwhile; a line says of each that one was refused). Ends with its input.

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <iostream>
#include <string>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/storage/file_system.h"
#include "server/dashboard/dashboard.h"
#include "tests/server/history/simulated_status.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

constexpr int kIntervalMs = 500;
std::atomic<bool> starved = false;

class SimulatedDashboard {
 public:
  explicit SimulatedDashboard(int workers)
      : job_(workers), keeper_(directory_.path(), 1, FileSystem::Local()) {
    job_.edit().set_parameters(1'000'000);
    job_.edit().set_samples_total(10'000'000);
  }

  int Run(const TlsFlags& tls) {
    auto dashboard = Dashboard::Start("127.0.0.1:0", tls);
    if (!dashboard.ok()) {
      std::cerr << dashboard.status().message() << "\n";
      return 1;
    }
    Tick();
    (*dashboard)->Attach(&keeper_, nullptr, nullptr);
    std::cout << (*dashboard)->url() << std::endl;
    std::string line;
    while (true) {
      pollfd input = {0, POLLIN, 0};
      if (poll(&input, 1, kIntervalMs) > 0) {
        if (!std::getline(std::cin, line)) break;
        Obey(line);
        // What has been read with that line is not polled for.
        while (std::cin.rdbuf()->in_avail() > 0 && std::getline(std::cin, line)) Obey(line);
      }
      Tick();
    }
    (*dashboard)->Detach();
    return 0;
  }

 private:
  void Tick() {
    if (quiet_) return;
    const double second = absl::ToDoubleSeconds(Now() - began_);
    job_.edit().set_samples_completed(static_cast<uint64_t>(1000 * second));
    std::shared_ptr<const StatusReply> status = job_.At(second);
    keeper_.Note(*status, Now(), WallNow() + ahead_);
  }

  void Obey(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string verb = line.substr(0, space);
    const std::string name = space == std::string::npos ? "" : line.substr(space + 1);
    if (verb == "quiet" || verb == "speak") quiet_ = verb == "quiet";
    if (verb == "server") SetServer(name);
    if (verb == "starve" || verb == "feed") starved = verb == "starve";
    if (verb == "name") job_.Join(name, 1);
    if (verb == "clock") ahead_ = absl::Seconds(std::stoi(name));
    MemberStatus* member = job_.Find(name);
    if (member == nullptr) return;
    if (verb == "suspect") member->set_state(MEMBER_SUSPECT);
    if (verb == "evict") {
      member->set_state(MEMBER_GONE);
      member->set_gone_why("evicted, no heartbeat");
    }
  }

  void SetServer(const std::string& command) {
    const size_t space = command.find(' ');
    const int number = std::stoi(command.substr(0, space));
    StatusReply& status = job_.edit();
    status.set_shards(9);
    while (status.servers_size() < number) {
      ServerStatus* server = status.add_servers();
      server->set_server(static_cast<uint32_t>(status.servers_size()));
      server->set_shards(3);
      server->set_parameters(300'000);
    }
    ServerStatus* server = status.mutable_servers(number - 1);
    ServerState state = SERVER_AWAITED;
    if (!ServerState_Parse(command.substr(space + 1), &state)) std::cerr << "no state: " << command << "\n";
    server->set_state(state);
    server->set_address(absl::StrCat("10.0.0.", number, ":7070"));
    server->set_heard_ms(state == SERVER_READY ? 100 : 42'000);
  }

  const TempDir directory_;
  SimulatedStatus job_;
  HistoryKeeper keeper_;
  const absl::Time began_ = Now();
  bool quiet_ = false;
  absl::Duration ahead_;
};

}  // namespace
}  // namespace recon

// In place of the C library's, for the HTTP library, too.
extern "C" int epoll_create1(int flags) noexcept {
  if (!recon::starved) return static_cast<int>(syscall(SYS_epoll_create1, flags));
  std::cout << "starved" << std::endl;
  errno = EMFILE;
  return -1;
}

int main(int argc, char** argv) {
  recon::InitLog("off");  // Its output is the address.
  std::ios::sync_with_stdio(false);
  recon::TlsFlags tls;
  if (argc >= 5) tls = {argv[2], argv[3], argv[4]};
  if (argc == 6) tls.crl = argv[5];
  return recon::SimulatedDashboard(argc > 1 ? std::stoi(argv[1]) : 3).Run(tls);
}
