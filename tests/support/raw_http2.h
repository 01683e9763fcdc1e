#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/owned_fd.h"

namespace recon {

// HTTP/2 written by hand (RFC 9113), for those who send what no library would.

// A socket to a port of this machine's. Does not wait for the other end.
inline OwnedFd ConnectTcp(const std::string& address) {
  OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(*PortOf(address));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0 && errno != EINPROGRESS) {
    return OwnedFd();
  }
  return fd;
}

// One that has sent `sent` bytes already.
struct RawSender {
  OwnedFd fd;
  uint64_t sent = 0;
  std::string rest = {};  // Of what was to be sent.
  bool open = true;
  absl::Time took = Now();  // When the other end took something last.

  // Closed, or nothing more is read of it.
  bool Over() const { return !open || Now() - took > absl::Seconds(2); }
  // As much as goes now of what is left, and if nothing was, of `bytes`.
  void Send(const std::string& bytes) {
    if (rest.empty()) rest = bytes;
    const ssize_t sent_now = send(fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent_now > 0) {
      took = Now();
      sent += static_cast<uint64_t>(sent_now);
      rest.erase(0, static_cast<size_t>(sent_now));
    }
    if (sent_now < 0 && errno != EAGAIN && errno != ENOTCONN) open = false;
  }
  // Drops what has come; whether the other end has closed the connection.
  bool HungUp() {
    char bytes[4096];
    ssize_t came = 1;
    while (came > 0) came = recv(fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    return came == 0 || (errno != EAGAIN && errno != EINTR);
  }
};

enum class Http2 : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kContinuation = 9,
};
inline constexpr uint8_t kEndOfStream = 1, kEndOfHeaders = 4;

inline std::string BigEndian(uint32_t number, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(number >> (8 * i) & 0xff);
  return text;
}

inline std::string Http2Frame(Http2 type, uint8_t flags, uint32_t stream, absl::string_view body) {
  std::string frame = BigEndian(static_cast<uint32_t>(body.size()), 3);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  frame += BigEndian(stream, 4);
  frame.append(body.data(), body.size());
  return frame;
}

// Frames of headers in what has come, whole ones, that end their streams or do not.
inline size_t Http2CountHeaders(absl::string_view came, bool end) {
  size_t count = 0;
  while (came.size() >= 9) {
    const auto byte = [came](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(came[i])); };
    const size_t size = 9 + (byte(0) << 16 | byte(1) << 8 | byte(2));
    if (size > came.size()) break;
    const bool headers = byte(3) == static_cast<size_t>(Http2::kHeaders);
    if (headers && ((byte(4) & kEndOfStream) != 0) == end) ++count;
    came.remove_prefix(size);
  }
  return count;
}

// What a client says first: the preface, and settings; without them streams have windows of 64 KiB.
inline std::string Http2Preface(absl::string_view settings = "") {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Http2Frame(Http2::kSettings, 0, 0, settings);
}
// That streams have no window: no body of an answer is let through.
inline std::string Http2NoWindow() { return BigEndian(4, 2) + BigEndian(0, 4); }

// A text of up to 126 bytes, as headers have it (RFC 7541).
inline std::string HpackText(absl::string_view text) {
  std::string packed(1, static_cast<char>(text.size()));
  packed.append(text.data(), text.size());
  return packed;
}

// The headers of a call of gRPC's to `path`, each of which the other end is told to remember: what
// HpackSameCall() means.
inline std::string HpackCall(absl::string_view path, absl::string_view more_name,
                             absl::string_view more_value) {
  std::string block = "\x83\x86";    // :method POST, :scheme http
  block += "\x41" + HpackText("a");  // :authority, without which gRPC refuses it.
  block += "\x44" + HpackText(path);
  block += "\x40" + HpackText("te") + HpackText("trailers");
  block += "\x40" + HpackText("content-type") + HpackText("application/grpc");
  block += "\x40" + HpackText(more_name) + HpackText(more_value);
  return block;
}
// The same again, of the same connection, in seven bytes.
inline std::string HpackSameCall() { return "\x83\x86\xc2\xc1\xc0\xbf\xbe"; }

// So many calls to `path`, the first with that odd number; `begins` a connection, or goes on with it. Each
// ends with an empty message, if it `asks`, or stays open. `settings`: Http2Preface()'s.
inline std::string Http2Calls(absl::string_view path, uint32_t stream, uint32_t count, bool begins, bool asks,
                              absl::string_view settings = "") {
  std::string bytes = begins ? Http2Preface(settings) : "";
  for (uint32_t i = 0; i < count; ++i) {
    bytes += Http2Frame(Http2::kHeaders, kEndOfHeaders, stream + 2 * i,
                        begins && i == 0 ? HpackCall(path, "x", "y") : HpackSameCall());
    if (asks) bytes += Http2Frame(Http2::kData, kEndOfStream, stream + 2 * i, std::string(5, '\0'));
  }
  return bytes;
}

}  // namespace recon
