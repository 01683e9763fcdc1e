#include "common/rpc/grpc_log.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <grpc/support/log.h>
#include <linux/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "google/protobuf/stubs/logging.h"

namespace recon {
namespace {

constexpr absl::string_view kFailed = "Handshake failed with fatal error ";
// gRPC does not say whose handshake has failed. It is of a connection that has just sent something, and no
// more than a handshake.
constexpr uint32_t kJustNowMs = 200;
constexpr uint64_t kHandshakeBytesMax = 32 << 10;
// Looking for it takes a look at every descriptor.
constexpr absl::Duration kLookEvery = absl::Milliseconds(200);
constexpr size_t kPeersShownMax = 4;

// The host at the other end, if `fd` is a connection as described above.
std::string PeerInHandshake(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "";
  tcp_info info{};
  socklen_t info_size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_size) != 0) return "";
  if (info.tcpi_last_data_recv > kJustNowMs || info.tcpi_bytes_received > kHandshakeBytesMax ||
      info.tcpi_bytes_received == 0) {
    return "";
  }
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&peer)->sin_addr, text, sizeof(text));
  } else if (peer.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(&peer)->sin6_addr, text, sizeof(text));
  }
  absl::string_view host = text;
  absl::ConsumePrefix(&host, "::ffff:");  // A listener for IPv6 and IPv4 shows IPv4's so.
  return std::string(host);
}

// "10.0.0.7", or "one of 10.0.0.7, 10.0.0.8" where that many may have been it; "a client" if none is found.
std::string PeersInHandshake() {
  std::set<std::string> peers;
  DIR* descriptors = opendir("/proc/self/fd");
  if (descriptors == nullptr) return "a client";
  while (const dirent* entry = readdir(descriptors)) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry->d_name, &fd)) continue;
    const std::string peer = PeerInHandshake(fd);
    if (!peer.empty() && peers.size() < kPeersShownMax) peers.insert(peer);
  }
  closedir(descriptors);
  if (peers.empty()) return "a client";
  return absl::StrCat(peers.size() > 1 ? "one of " : "", absl::StrJoin(peers, ", "));
}

// What the process does with gRPC's lines. Never destroyed: gRPC may log to the very end.
struct Taken {
  GrpcLogUse use = GrpcLogUse::kClient;
  Mutex mu;
  RepeatedLines lines ABSL_GUARDED_BY(mu);
  std::map<std::string, absl::Time> looked ABSL_GUARDED_BY(mu);  // By cause.
};

Taken* TakenLog() {
  static Taken* const taken = new Taken;
  return taken;
}

// Whether a line says which peers it may be: for each cause not more often than kLookEvery. A cause that
// comes right behind another one is a line of its own.
bool MayLook(Taken* taken, const std::string& cause, absl::Time now) {
  MutexLock lock(&taken->mu);
  const auto looked = taken->looked.find(cause);
  if (looked == taken->looked.end()) {
    if (taken->looked.size() >= RepeatedLines::kLinesMax) return false;
    taken->looked[cause] = now;
    return true;
  }
  if (now - looked->second < kLookEvery) return false;
  looked->second = now;
  return true;
}

void TellOnce(Taken* taken, const std::string& line, absl::Time now) {
  std::optional<uint64_t> times;
  {
    MutexLock lock(&taken->mu);
    times = taken->lines.Tell(line, now);
  }
  if (!times) return;
  LogWarn("{}{}", line,
          *times > 1
              ? absl::StrCat(" (", *times, " times in ", absl::FormatDuration(RepeatedLines::kAgain), ")")
              : "");
}

void OnLine(gpr_log_func_args* line) {
  Taken* const taken = TakenLog();
  const absl::string_view message = line->message;
  const std::string cause = HandshakeCause(message);
  const absl::Time now = Now();
  if (!cause.empty()) {
    if (taken->use == GrpcLogUse::kClient) {
      LogDebug("gRPC: {}", message);
    } else if (MayLook(taken, cause, now)) {
      TellOnce(taken, absl::StrCat("refused a connection of ", PeersInHandshake(), ": ", cause), now);
    }
    return;
  }
  // A port that is taken is named by who wanted it.
  const bool listening = absl::EndsWith(line->file, "chttp2_server.cc");
  if (line->severity != GPR_LOG_SEVERITY_ERROR || listening || taken->use == GrpcLogUse::kClient) {
    LogDebug("gRPC: {}", message);
    return;
  }
  TellOnce(taken, absl::StrCat("gRPC: ", message), now);
}

// Of a message with a text that is no UTF-8, for one: whoever reaches the port may send as many as he likes.
void OnProtobufLine(google::protobuf::LogLevel level, const char*, int, const std::string& message) {
  Taken* const taken = TakenLog();
  const std::string line = absl::StrCat("protobuf: ", message);
  if (level == google::protobuf::LOGLEVEL_FATAL) return LogCritical("{}", line);
  if (taken->use == GrpcLogUse::kClient) return LogDebug("{}", line);
  TellOnce(taken, line, Now());
}

}  // namespace

std::string HandshakeCause(absl::string_view message) {
  if (!absl::ConsumePrefix(&message, kFailed)) return "";
  // "SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed."
  absl::ConsumeSuffix(&message, ".");
  const std::string reason(message.substr(message.rfind(':') + 1));
  if (absl::StrContains(reason, "certificate verify failed")) {
    return "its certificate is not of the CA in --tls-ca, or is not valid now";
  }
  if (absl::StrContains(reason, "did not return a certificate")) return "it shows no certificate";
  if (absl::StrContains(reason, "wrong version number") || absl::StrContains(reason, "http request")) {
    return "it does not speak TLS";
  }
  if (absl::StrContains(reason, "alert")) {
    return absl::StrCat("it does not take this server's certificate (", reason, ")");
  }
  return absl::StrCat("its TLS handshake failed (", reason, ")");
}

std::optional<uint64_t> RepeatedLines::Tell(const std::string& line, absl::Time now) {
  const auto seen = lines_.find(line);
  if (seen == lines_.end()) {
    if (lines_.size() >= kLinesMax) return std::nullopt;
    lines_[line] = {now, 0};
    return 1;
  }
  ++seen->second.since;
  if (now - seen->second.told < kAgain) return std::nullopt;
  seen->second.told = now;
  return std::exchange(seen->second.since, 0);
}

void TakeGrpcLog(GrpcLogUse use) {
  TakenLog()->use = use;
  google::protobuf::SetLogHandler(&OnProtobufLine);
  if (getenv("GRPC_VERBOSITY") != nullptr || getenv("GRPC_TRACE") != nullptr) return;
  gpr_set_log_function(&OnLine);
}

}  // namespace recon
