// Calls that match by their names, of two members: no threads, no clock, no network.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "server/collective/call_desk.h"
#include "worker/collective/member_core.h"

namespace recon {
namespace {

// Of two members that the head has told of each other.
class TwoMembers {
 public:
  TwoMembers() {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      JoinRequest request;
      request.set_set("s");
      request.set_member(absl::StrCat("w", rank));
      request.set_rank(rank);
      request.set_size(2);
      CallFrame join;
      join.header.kind = CallFrameKind::kJoin;
      join.payload = ByteChain::FromString(request.SerializeAsString());
      ToServer(rank, join);
    }
  }
  absl::Status Call(uint32_t rank, const std::string& name, std::vector<float>* values, CallKind kind,
                    std::vector<std::string>* done, const std::string& order = "") {
    CallSpec spec;
    spec.kind = kind;
    spec.order = order;
    spec.dtype = DType::kFloat32;
    spec.name = name;
    spec.by_name = true;
    spec.in = reinterpret_cast<const uint8_t*>(values->data());
    spec.out = reinterpret_cast<uint8_t*>(values->data());
    spec.count = values->size();
    return cores_[rank].Submit(spec, [done, name](const absl::Status& status, uint32_t) {
      done->push_back(status.ok() ? name : std::string(status.message()));
    });
  }
  // Half of `in` for each.
  absl::Status Trade(uint32_t rank, const std::string& name, const std::vector<float>& in,
                     std::vector<float>* out, std::vector<std::string>* done) {
    CallSpec spec;
    spec.kind = CallKind::kAllToAll;
    spec.dtype = DType::kFloat32;
    spec.name = name;
    spec.by_name = true;
    spec.in = reinterpret_cast<const uint8_t*>(in.data());
    spec.out = reinterpret_cast<uint8_t*>(out->data());
    spec.in_counts = spec.out_counts = {in.size() / 2, in.size() / 2};
    return cores_[rank].Submit(spec, [done, name](const absl::Status& status, uint32_t) {
      done->push_back(status.ok() ? name : std::string(status.message()));
    });
  }
  uint64_t bytes_sent(uint32_t rank) const { return bytes_sent_[rank]; }
  // Until nobody has anything to say; what has finished is told.
  void Exchange() {
    for (bool going = true; going;) {
      going = false;
      for (uint32_t rank = 0; rank < 2; ++rank) {
        for (const MemberCore::Out& out : cores_[rank].TakeOutgoing()) {
          going = true;
          ToServer(rank, out.frame);
        }
        for (const MemberCore::Finished& call : cores_[rank].TakeFinished())
          call.done(call.status, call.members);
      }
    }
  }

 private:
  void ToServer(uint32_t rank, const CallFrame& frame) {
    bytes_sent_[rank] += frame.payload.size();
    CallDesk::Answers answers;
    REQUIRE(desk_.Handle(rank + 1, frame, Now(), &answers).ok());
    for (const ChunkBook::Outcome& answer : answers.frames)
      cores_[answer.stream - 1].OnFrame(0, answer.frame);
    for (const ChunkBook::Ready& ready : answers.ready) {
      for (const ChunkBook::Outcome& answer : AnswersOf(ready))
        cores_[answer.stream - 1].OnFrame(0, answer.frame);
    }
  }

  uint64_t bytes_sent_[2] = {};
  CallDesk desk_{CallDesk::Options{}};
  std::vector<MemberCore> cores_ = MakeCores();

  static std::vector<MemberCore> MakeCores() {
    std::vector<MemberCore> cores;
    for (int rank = 0; rank < 2; ++rank) {
      cores.emplace_back(MemberCore::Options{"s", absl::StrCat("w", rank), /*shrink=*/false});
    }
    return cores;
  }
};

TEST_CASE("large calls that members make in opposite order go on, though their window is full",
          "[collective]") {
  TwoMembers two;
  std::vector<std::vector<float>> values[2];
  std::vector<std::string> done[2];
  constexpr size_t kLarge = 3;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    values[rank].assign(kLarge, std::vector<float>(5'000'000, static_cast<float>(rank + 1)));
    for (size_t i = 0; i < kLarge; ++i) {
      const size_t which = rank == 0 ? i : kLarge - 1 - i;
      REQUIRE(
          two.Call(rank, absl::StrCat("n", which), &values[rank][which], CallKind::kAllReduce, &done[rank])
              .ok());
    }
  }
  two.Exchange();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    CHECK(done[rank].size() == kLarge);
    for (const std::vector<float>& sum : values[rank])
      CHECK(std::all_of(sum.begin(), sum.end(), [](float value) { return value == 3.0F; }));
  }
}

TEST_CASE("parts for each other that are larger than windows travel, also beside other large calls",
          "[collective]") {
  for (const bool beside : {false, true}) {
    INFO("beside another call: " << beside);
    TwoMembers two;
    std::vector<float> parts[2], got[2], others[2];
    std::vector<std::string> done[2];
    for (uint32_t rank = 0; rank < 2; ++rank) {
      parts[rank].assign(10'000'000, static_cast<float>(rank + 1));
      got[rank].resize(parts[rank].size());
      others[rank].assign(5'000'000, 1.0F);
      // Each makes another one, which fills its window, first.
      if (beside)
        REQUIRE(
            two.Call(rank, absl::StrCat("n", rank), &others[rank], CallKind::kAllReduce, &done[rank]).ok());
      REQUIRE(two.Trade(rank, "parts", parts[rank], &got[rank], &done[rank]).ok());
    }
    two.Exchange();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      REQUIRE(done[rank] == std::vector<std::string>{"parts"});
      // From rank 0, and from rank 1.
      CHECK(std::count(got[rank].begin(), got[rank].begin() + 5'000'000, 1.0F) == 5'000'000);
      CHECK(std::count(got[rank].begin() + 5'000'000, got[rank].end(), 2.0F) == 5'000'000);
    }
  }
}

TEST_CASE("calls of one order share a window, whatever their names", "[collective]") {
  TwoMembers two;
  constexpr size_t kCalls = 200;
  std::vector<std::vector<float>> values[2];
  std::vector<std::string> done[2];
  for (uint32_t rank = 0; rank < 2; ++rank) {
    values[rank].assign(kCalls, std::vector<float>(200'000, static_cast<float>(rank + 1)));
    for (size_t i = 0; i < kCalls; ++i) {
      REQUIRE(two.Call(rank, absl::StrCat("n", i), &values[rank][i], CallKind::kAllReduce, &done[rank], "all")
                  .ok());
    }
    two.Exchange();
    // Who is first has sent no more than that.
    if (rank == 0) CHECK(two.bytes_sent(0) < (size_t{10} << 20));
  }
  for (uint32_t rank = 0; rank < 2; ++rank) {
    REQUIRE(done[rank].size() == kCalls);
    CHECK(values[rank][kCalls - 1][0] == 3.0F);
  }
  // The two sides of one that differ are told as elsewhere.
  done[0].clear(), done[1].clear();
  REQUIRE(two.Call(0, "a", &values[0][0], CallKind::kAllReduce, &done[0], "all").ok());
  REQUIRE(two.Call(1, "b", &values[1][0], CallKind::kAllReduce, &done[1], "all").ok());
  two.Exchange();
  for (const auto& said : done) {
    REQUIRE(said.size() == 1);
    CHECK(said[0].find("all_reduce 'a'") != std::string::npos);
    CHECK(said[0].find("all_reduce 'b'") != std::string::npos);
  }
}

TEST_CASE("a name is one call's at a time, and the next call's when that has ended, well or not",
          "[collective]") {
  TwoMembers two;
  std::vector<float> values[2] = {{1.0F}, {2.0F}}, others[2] = {{1.0F}, {2.0F}};
  std::vector<std::string> done[2];
  for (int round = 0; round < 3; ++round) {
    REQUIRE(two.Call(0, "x", &values[0], CallKind::kAllReduce, &done[0]).ok());
    const absl::Status twice = two.Call(0, "x", &others[0], CallKind::kAllReduce, &done[0]);
    CHECK(absl::IsInvalidArgument(twice));
    CHECK(
        std::string(twice.message()).find("all_reduce 'x': a call of set 's' with this name is under way") ==
        0);
    REQUIRE(two.Call(0, "", &others[0], CallKind::kAllReduce, &done[0]).ok());
    REQUIRE(two.Call(1, "", &others[1], CallKind::kAllReduce, &done[1]).ok());
    two.Exchange();
    CHECK(done[0] == std::vector<std::string>{""});  // The other one waits.
    // In the second round the members mean different things.
    REQUIRE(two.Call(1, "x", &values[1], round == 1 ? CallKind::kBroadcast : CallKind::kAllReduce, &done[1])
                .ok());
    two.Exchange();
    REQUIRE(done[0].size() == 2);
    if (round == 1) {
      CHECK(done[0][1].find("rank 0 calls all_reduce 'x' sum float32") != std::string::npos);
      CHECK(done[0][1].find("rank 1 calls broadcast 'x' float32") != std::string::npos);
    } else {
      CHECK(done[0][1] == "x");
    }
    for (auto& told : done) told.clear();
  }
  CHECK(values[0] == std::vector<float>{6.0F});
}

}  // namespace
}  // namespace recon
