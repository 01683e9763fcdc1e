#include "common/base/machine_limits.h"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/control_group.h"
#include "common/base/limits.h"

namespace recon {
namespace {

// Of a server: files of the database and of the log, sockets, events.
constexpr uint64_t kDescriptorsOfProcess = 128;
// Of each of its workers: a connection for control and those for frames, or shared memory and its events.
constexpr uint64_t kDescriptorsOfWorker = limits::kDataConnections + 4;
// Lanes, gRPC, the database, snapshots.
constexpr uint64_t kThreadsOfProcess = 64;

template <typename Number>
void Lower(Number value, Number* limit) {
  *limit = *limit == 0 ? value : std::min(*limit, value);
}

uint64_t SoftLimit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? 0 : limit.rlim_cur;
}

uint64_t ThreadLimit(const std::string& root) {
  uint64_t limit = 0;
  VisitControlGroups(root, "pids", "pids.max", "pids.max", [&](const std::string& path) {
    std::string text;
    uint64_t threads = 0;
    if (std::ifstream(path) >> text && absl::SimpleAtoi(text, &threads)) Lower(threads, &limit);
  });
  // The user's; root has none.
  const uint64_t of_user = getuid() == 0 ? 0 : SoftLimit(RLIMIT_NPROC);
  if (of_user > 0) Lower(of_user, &limit);
  return limit;
}

std::string WithCommas(uint64_t number) {
  std::string text = absl::StrCat(number);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

}  // namespace

int MachineLimits::Cores() const {
  const int by_quota = core_quota > 0 ? static_cast<int>(std::ceil(core_quota)) : cores_allowed;
  return std::max(1, std::min(cores_allowed, by_quota));
}

std::optional<CoreQuota> TightestCoreQuota(const std::string& root) {
  std::optional<CoreQuota> tightest;
  VisitControlGroups(root, "cpu", "cpu.max", "cpu.cfs_quota_us", [&](const std::string& path) {
    const std::string directory = path.substr(0, path.rfind('/'));
    std::string used, period;
    std::ifstream file(path);
    if (!(file >> used)) return;
    if (!(file >> period)) std::ifstream(directory + "/cpu.cfs_period_us") >> period;
    double used_us = 0, period_us = 0;  // "max", and -1, mean none.
    if (!absl::SimpleAtod(used, &used_us) || !absl::SimpleAtod(period, &period_us)) return;
    if (!(used_us > 0 && period_us > 0)) return;
    const double cores = used_us / period_us;
    if (!tightest || cores < tightest->cores) tightest = {cores, directory};
  });
  return tightest;
}

MachineLimits ReadMachineLimits(const std::string& root) {
  MachineLimits limits;
  limits.cores_of_machine = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t cores;
  // Of machines with more than 1,024 cores it tells nothing.
  limits.cores_allowed =
      sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : limits.cores_of_machine;
  if (const std::optional<CoreQuota> quota = TightestCoreQuota(root)) limits.core_quota = quota->cores;
  limits.descriptors = SoftLimit(RLIMIT_NOFILE);
  limits.file_bytes = SoftLimit(RLIMIT_FSIZE);
  limits.threads = ThreadLimit(root);
  return limits;
}

void RaiseLimits() {
  for (const auto resource : {RLIMIT_NOFILE, RLIMIT_FSIZE}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == limit.rlim_max) continue;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(resource, &limit);
  }
  signal(SIGXFSZ, SIG_IGN);
}

std::string MissingThread(const std::system_error& error) {
  const uint64_t threads = ThreadLimit("");
  return absl::StrCat(
      "no further thread can be started: ",
      threads > 0 ? WithCommas(threads) + " are allowed, of all processes together" : error.what(),
      " (pids.max, ulimit -u)");
}

void ExplainMissingThreads() {
  std::set_terminate([] {
    try {
      if (const std::exception_ptr cause = std::current_exception()) std::rethrow_exception(cause);
    } catch (const std::system_error& error) {
      if (error.code().value() == EAGAIN) {
        std::cerr << MissingThread(error) << std::endl;
        _exit(1);
      }
      std::cerr << error.what() << std::endl;
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
    } catch (...) {
    }
    std::abort();
  });
}

std::string Describe(const MachineLimits& limits) {
  std::vector<std::string> parts;
  std::string cores =
      limits.Cores() < limits.cores_of_machine
          ? absl::StrCat(limits.Cores(), " of ", limits.cores_of_machine, " cores")
          : absl::StrCat(limits.cores_of_machine, limits.cores_of_machine == 1 ? " core" : " cores");
  if (limits.core_quota > 0 && limits.core_quota < limits.cores_allowed) {
    absl::StrAppend(&cores, " by the control group's quota");
    if (limits.core_quota != std::ceil(limits.core_quota)) {
      absl::StrAppend(&cores, absl::StrFormat(" of %.2f", limits.core_quota));
    }
  }
  parts.push_back(std::move(cores));
  parts.push_back(limits.descriptors == 0 ? "any number of descriptors"
                                          : WithCommas(limits.descriptors) + " descriptors");
  if (limits.threads > 0) parts.push_back(WithCommas(limits.threads) + " threads");
  if (limits.file_bytes > 0) parts.push_back("files of " + WithCommas(limits.file_bytes) + " bytes at most");
  return absl::StrJoin(parts, ", ");
}

std::string TooLittle(const MachineLimits& limits, int workers) {
  std::vector<std::string> parts;
  const uint64_t descriptors =
      kDescriptorsOfProcess + kDescriptorsOfWorker * static_cast<uint64_t>(std::max(workers, 1));
  if (limits.descriptors > 0 && limits.descriptors < descriptors) {
    const uint64_t left =
        limits.descriptors > kDescriptorsOfProcess ? limits.descriptors - kDescriptorsOfProcess : 0;
    parts.push_back(absl::StrCat(WithCommas(limits.descriptors), " descriptors are enough for about ",
                                 left / kDescriptorsOfWorker, " workers (ulimit -n; wanted are ",
                                 WithCommas(descriptors), ")"));
  }
  if (limits.threads > 0 && limits.threads < kThreadsOfProcess) {
    parts.push_back(absl::StrCat(limits.threads,
                                 " threads are allowed, of all processes together; one needs about ",
                                 kThreadsOfProcess, " (pids.max, ulimit -u)"));
  }
  if (limits.file_bytes > 0 && limits.file_bytes < 2 * limits::kPackBytesTarget) {
    parts.push_back(absl::StrCat("files may have ", WithCommas(limits.file_bytes),
                                 " bytes, snapshots and logs may need ",
                                 WithCommas(2 * limits::kPackBytesTarget), " (ulimit -f)"));
  }
  return absl::StrJoin(parts, "; ");
}

int UsableCores() {
  static const int cores = ReadMachineLimits().Cores();
  return cores;
}

}  // namespace recon
