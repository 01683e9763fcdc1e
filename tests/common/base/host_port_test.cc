#include "common/base/host_port.h"

#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("an address has a host and a port, and nothing that could not be one", "[host_port]") {
  for (const char* good : {"127.0.0.1:7070", "head:0", "[::1]:65535", "gpu-3.example.org:1"}) {
    INFO(good);
    CHECK(CheckAddress("--listen", good).ok());
  }
  for (const char* bad :
       {"", "head", ":7070", "head:", "head:x", "head:65536", "head:-1", "he ad:1", "head\n:1"}) {
    INFO(bad);
    const absl::Status status = CheckAddress("--listen", bad);
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::StartsWith("--listen "));
  }
  CHECK(absl::IsInvalidArgument(CheckAddress("--listen", std::string(5000, 'x') + ":1")));
  CHECK(*PortOf("head:7070") == 7070);
}

TEST_CASE("a host is this machine only by its number, not by how its name begins", "[host_port]") {
  for (const char* here : {"127.0.0.1:7070", "127.1.2.3:1", "localhost:7070", "[::1]:7070"}) {
    INFO(here);
    CHECK(IsLoopback(here));
  }
  for (const char* elsewhere : {"0.0.0.0:7070", "[::]:7070", "10.0.0.1:1", "127.example.org:1", "head:1"}) {
    INFO(elsewhere);
    CHECK_FALSE(IsLoopback(elsewhere));
  }
}

TEST_CASE("numbers, localhost and what stands for all addresses are no names of this machine",
          "[host_port]") {
  for (const char* address : {"127.0.0.1:1", "localhost:1", "[::1]:1", "0.0.0.0:1", "0:1", "10.0.0.1:1"}) {
    INFO(address);
    CHECK(LoopbackBehindName(address).empty());
  }
}

TEST_CASE("who listens on all addresses has not said where it is found", "[host_port]") {
  for (const char* all : {"0.0.0.0:1", "0:1", "[::]:1", "[0:0::0]:1", "*:1"}) {
    INFO(all);
    CHECK(IsWildcard(all));
  }
  for (const char* one : {"127.0.0.1:1", "[::1]:1", "head:1"}) {
    INFO(one);
    CHECK_FALSE(IsWildcard(one));
  }
}

}  // namespace recon
