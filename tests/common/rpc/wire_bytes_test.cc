#include "common/rpc/wire_bytes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("wire bytes are those of the connections to or from a port, closed ones included", "[rpc]") {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(listen(listener, 1) == 0);
  socklen_t size = sizeof(address);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  WireByteCounter counter;
  const std::set<uint16_t> ports = {ntohs(address.sin_port)};
  CHECK(counter.Sample(ports).sent == 0);

  const int client = socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  const int server = accept(listener, nullptr, nullptr);
  const std::string message(100'000, 'x');
  std::string received(message.size(), '\0');
  REQUIRE(send(client, message.data(), message.size(), 0) == static_cast<ssize_t>(message.size()));
  REQUIRE(recv(server, received.data(), received.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(message.size()));
  // Both ends are this process': what one sends the other receives.
  const WireBytes bytes = counter.Sample(ports);
  CHECK(bytes.sent > message.size());
  CHECK(bytes.sent < message.size() + 100 * 66);
  CHECK(bytes.received > message.size());
  CHECK(OnOneMachine(ports));
  close(client);
  close(server);
  close(listener);
  CHECK(counter.Sample(ports).sent >= bytes.sent);
  CHECK(WireByteCounter().Sample({1}).sent == 0);
  CHECK_FALSE(OnOneMachine(ports));  // It has no connection any more.
}

}  // namespace recon
