// Groups and servers over gRPC, as threads of one process.

#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/rpc/connection_limits.h"
#include "common/rpc/connections.h"
#include "common/rpc/rpc_server.h"
#include "common/trace/recorder.h"
#include "server/rpc/collective_service.h"
#include "tests/support/process.h"
#include "worker/collective/group.h"

namespace recon {
namespace {

using Catch::Matchers::Contains;

constexpr absl::Duration kLong = absl::Minutes(1);

class Servers {
 public:
  explicit Servers(int servers) {
    for (int i = servers - 1; i >= 0; --i) {
      CollectiveService::Options options;
      options.head = i == 0;
      options.patience = absl::Seconds(30);  // A busy machine is no dead member.
      options.ticket_key = absl::StrCat("key ", i);
      connections_.push_back(std::make_unique<Connections>());
      options.connections = connections_.back().get();
      if (i == 0 && servers > 1) options.other_servers = [this] { return others_; };
      services_.push_back(std::make_unique<CollectiveService>(options));
      auto rpc = RpcServer::Start("--listen", "127.0.0.1:0", {}, {services_.back().get()},
                                  connections_.back().get());
      REQUIRE(rpc.ok());
      if (i > 0) others_.push_back({(*rpc)->address(), options.ticket_key});
      rpcs_.push_back(*std::move(rpc));
    }
  }
  ~Servers() {
    for (const auto& service : services_) service->Close();
    for (const auto& rpc : rpcs_) rpc->Shutdown(absl::ZeroDuration());
  }
  std::string head() const { return rpcs_.back()->address(); }

 private:
  std::vector<CallDesk::OtherServer> others_;
  std::vector<std::unique_ptr<Connections>> connections_;
  std::vector<std::unique_ptr<CollectiveService>> services_;
  std::vector<std::unique_ptr<RpcServer>> rpcs_;
};

std::vector<std::unique_ptr<Group>> JoinAll(const Servers& servers, uint32_t size, bool shrink = false) {
  std::vector<std::unique_ptr<Group>> groups;
  for (uint32_t rank = 0; rank < size; ++rank) {
    Group::Options options;
    options.server = servers.head();
    options.set = "s";
    options.member = absl::StrCat("w", rank);
    options.rank = rank;
    options.size = size;
    options.shrink = shrink;
    auto group = Group::Join(options);
    REQUIRE(group.ok());
    groups.push_back(*std::move(group));
  }
  for (const auto& group : groups) REQUIRE(group->AwaitBegunFor(kLong));
  return groups;
}

CallSpec AllReduce(std::vector<float>* values, const std::string& name = "") {
  CallSpec spec;
  spec.kind = CallKind::kAllReduce;
  spec.dtype = DType::kFloat32;
  spec.name = name;
  spec.count = values->size();
  spec.in = reinterpret_cast<const uint8_t*>(values->data());
  spec.out = reinterpret_cast<uint8_t*>(values->data());
  return spec;
}

TEST_CASE("members sum over one and over three servers, several calls at once", "[collective]") {
  const int count = GENERATE(1, 3);
  Servers servers(count);
  const auto groups = JoinAll(servers, 3);
  std::vector<std::vector<float>> values;
  std::vector<std::shared_ptr<PendingCollective>> calls;
  for (int call = 0; call < 5; ++call) {
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      values.emplace_back(700'001 + static_cast<size_t>(call), static_cast<float>(rank + 1));
    }
  }
  size_t next = 0;
  for (int call = 0; call < 5; ++call) {
    for (const auto& group : groups) {
      auto started = group->Start(AllReduce(&values[next++]));
      REQUIRE(started.ok());
      calls.push_back(*started);
    }
  }
  for (const auto& call : calls) {
    REQUIRE(call->AwaitFor(kLong));
    CHECK(call->status() == absl::OkStatus());
    CHECK(call->members() == 3);
  }
  for (const std::vector<float>& result : values) {
    REQUIRE(std::all_of(result.begin(), result.end(), [](float value) { return value == 6; }));
  }
}

TEST_CASE("what members send over a connection has no bound while it is understood", "[collective]") {
  const uint64_t bound = 6 * ConnectionLimits().member_bytes_max;  // Long enough to be looked at often.
  Servers servers(1);
  const auto groups = JoinAll(servers, 2);
  std::vector<std::vector<float>> values(2, std::vector<float>((32 << 20) / sizeof(float), 1));
  for (uint64_t sent = 0; sent < bound; sent += values[0].size() * sizeof(float)) {
    std::vector<std::shared_ptr<PendingCollective>> calls;
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      auto started = groups[rank]->Start(AllReduce(&values[rank]));
      REQUIRE(started.ok());
      calls.push_back(*started);
    }
    for (const auto& call : calls) {
      REQUIRE(call->AwaitFor(kLong));
      REQUIRE(call->status() == absl::OkStatus());
    }
  }
}

TEST_CASE("a trace has calls, and what servers do for them", "[collective]") {
  Servers servers(2);
  const auto groups = JoinAll(servers, 2);
  std::vector<std::vector<float>> values(2, std::vector<float>(300'000, 1));
  const auto recording = trace::Recording::Begin(MonotonicNanos() + absl::ToInt64Nanoseconds(kLong));
  REQUIRE(recording != nullptr);
  const auto early = groups[0]->Start(AllReduce(&values[0]));
  const auto late = groups[1]->Start(AllReduce(&values[1]));
  for (const auto& call : {early, late}) {
    REQUIRE(call.ok());
    REQUIRE((*call)->AwaitFor(kLong));
  }
  std::map<std::string, int> spans;
  // A chunk's span ends when its answers are on their way, which may be after they have arrived.
  CHECK(Eventually([&] {
    recording->Drain([&](const trace::Recording::Thread&, const trace::Event& event) {
      CHECK(event.end_ns >= event.begin_ns);
      ++spans[event.name];
    });
    return spans["combine"] > 1 && spans["combine"] == spans["waiting for members"];
  }));
  CHECK(spans["all_reduce"] == 2);
}

TEST_CASE("a member that goes ends the call of the others with its name", "[collective]") {
  Servers servers(2);
  auto groups = JoinAll(servers, 3);
  std::vector<float> a(1'000'000, 1), b(1'000'000, 1);
  const auto first = groups[0]->Start(AllReduce(&a, "grad")),
             second = groups[1]->Start(AllReduce(&b, "grad"));
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  REQUIRE(Eventually([&] {
    return absl::StrContains(groups[0]->WhoIsMissing(), "all_reduce 'grad' sum float32, waits for w2 since");
  }));
  groups[2] = nullptr;
  for (const auto& call : {*first, *second}) {
    REQUIRE(call->AwaitFor(kLong));
    CHECK(absl::IsAborted(call->status()));
    CHECK_THAT(std::string(call->status().message()), Contains("member 'w2' (rank 2) is lost: it left"));
  }
}

TEST_CASE("a set that shrinks goes on when a member goes in mid-call", "[collective]") {
  Servers servers(2);
  auto groups = JoinAll(servers, 3, /*shrink=*/true);
  std::vector<float> a(1'000'000, 1), b(1'000'000, 2);
  const auto first = groups[0]->Start(AllReduce(&a)), second = groups[2]->Start(AllReduce(&b));
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  groups[1] = nullptr;
  for (const auto& call : {*first, *second}) {
    REQUIRE(call->AwaitFor(kLong));
    CHECK(call->status() == absl::OkStatus());
    CHECK(call->members() == 2);
  }
  CHECK(a == std::vector<float>(1'000'000, 3));
  CHECK(a == b);
}

TEST_CASE("different calls that meet get both sides, over the network", "[collective]") {
  Servers servers(2);
  const auto groups = JoinAll(servers, 2);
  std::vector<float> a(900'000), b(10);
  const auto first = groups[0]->Start(AllReduce(&a, "a")), second = groups[1]->Start(AllReduce(&b, "b"));
  for (const auto& call : {*first, *second}) {
    REQUIRE(call->AwaitFor(kLong));
    CHECK(absl::IsInvalidArgument(call->status()));
    CHECK_THAT(std::string(call->status().message()),
               Contains("all_reduce 'a'") && Contains("all_reduce 'b'"));
  }
  // The set goes on.
  std::vector<float> c(10, 1), d(10, 2);
  const auto third = groups[0]->Start(AllReduce(&c)), fourth = groups[1]->Start(AllReduce(&d));
  for (const auto& call : {*third, *fourth}) REQUIRE(call->AwaitFor(kLong));
  CHECK(c == std::vector<float>(10, 3));
}

TEST_CASE("a server that ends, ends the calls of its members", "[collective]") {
  auto servers = std::make_unique<Servers>(1);
  const auto groups = JoinAll(*servers, 2);
  std::vector<float> a(10);
  const auto call = groups[0]->Start(AllReduce(&a));
  REQUIRE(call.ok());
  servers = nullptr;
  REQUIRE((*call)->AwaitFor(kLong));
  CHECK(absl::IsUnavailable((*call)->status()));
  CHECK(absl::IsUnavailable(groups[0]->Start(AllReduce(&a)).status()));
}

TEST_CASE("a process that takes a rank sends the older one away, and others learn of it", "[collective]") {
  Servers servers(1);
  auto groups = JoinAll(servers, 2);
  Group::Options options;
  options.server = servers.head();
  options.set = "s";
  options.member = "newer";
  options.rank = 1;
  options.size = 2;
  auto newer = Group::Join(options);
  REQUIRE(newer.ok());
  REQUIRE(Eventually([&] { return groups[0]->changed(); }));
  CHECK(absl::IsAborted(groups[1]->status()));
  std::vector<float> a(10, 1), b(10, 2);
  const absl::Status old = groups[0]->Start(AllReduce(&a)).status();
  CHECK(absl::IsFailedPrecondition(old));
  CHECK_THAT(std::string(old.message()),
             Contains("'newer' came as rank 1") && Contains("'w1' (rank 1) went"));
  REQUIRE(groups[0]->Acknowledge().ok());
  REQUIRE((*newer)->AwaitBegunFor(kLong));
  const auto first = groups[0]->Start(AllReduce(&a)), second = (*newer)->Start(AllReduce(&b));
  REQUIRE((*first)->AwaitFor(kLong));
  REQUIRE((*second)->AwaitFor(kLong));
  CHECK(a == std::vector<float>(10, 3));
}

}  // namespace
}  // namespace recon
