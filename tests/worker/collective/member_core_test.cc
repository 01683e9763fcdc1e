// Members that die in the middle of collectives, in a thousand orders of events: no threads, no clock, no
// network.

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "server/collective/call_desk.h"
#include "worker/collective/member_core.h"

namespace recon {
namespace {

constexpr int kCalls = 6, kNames = 3;

// What a call's caller gets, and whether it may be.
struct Made {
  CallSpec spec;
  int number = 0;
  std::vector<int32_t> in, out;
  bool done = false;
  absl::Status status;
  uint32_t members = 0;
};

struct Link {
  std::deque<ByteChain> up, down;
  bool joined = false, ends = false, ended = false;  // `ends`: when `up` is empty.
  uint64_t stream = 0;
};

struct SimulatedMember {
  explicit SimulatedMember(const MemberCore::Options& options) : core(options) {}
  MemberCore core;
  uint32_t rank = 0;
  bool alive = true, left = false;
  int next_call = 0;
  std::array<int, kNames> calls_of_name{};
  std::deque<Made> calls;
  std::map<size_t, Link> links;  // By server.
};

class World {
 public:
  World(uint32_t seed, bool shrink, bool by_name) : random_(seed), shrink_(shrink), by_name_(by_name) {
    servers_ = 1 + Below(3);
    size_ = 2 + Below(4);
    for (size_t server = 0; server < servers_; ++server) {
      CallDesk::Options options;
      options.head = server == 0;
      options.sets.patience = absl::InfiniteDuration();
      options.ticket_key = absl::StrCat("key ", server);
      options.other_servers = [this] {
        std::vector<CallDesk::OtherServer> others;
        for (size_t i = 1; i < servers_; ++i) {
          others.push_back({absl::StrCat("server:", i), absl::StrCat("key ", i)});
        }
        return others;
      };
      desks_.push_back(std::make_unique<CallDesk>(options));
    }
    for (uint32_t rank = 0; rank < size_; ++rank) AddMember(rank);
  }

  uint32_t Below(size_t bound) { return static_cast<uint32_t>(random_() % bound); }
  size_t size() const { return size_; }

  SimulatedMember* AddMember(uint32_t rank) {
    members_.push_back(std::make_unique<SimulatedMember>(
        MemberCore::Options{"s", absl::StrCat("w", members_.size()), shrink_}));
    SimulatedMember* const member = members_.back().get();
    member->rank = rank;
    JoinRequest request;
    request.set_set("s");
    request.set_member(absl::StrCat("w", members_.size() - 1));
    request.set_rank(rank);
    request.set_size(static_cast<uint32_t>(size_));
    request.set_shrink(shrink_);
    CallFrame join;
    join.header.kind = CallFrameKind::kJoin;
    join.payload = ByteChain::FromString(request.SerializeAsString());
    LinkOf(member, 0).up.push_back(EncodeCallFrame(join));
    return member;
  }

  // Whether anything could happen.
  bool Step() {
    std::vector<std::function<void()>> events;
    for (const auto& owned : members_) {
      SimulatedMember* const member = owned.get();
      if (member->alive && !member->left) {
        if (CanCall(*member)) events.push_back([=] { MakeCall(member); });
        if (IsFinished(*member)) events.push_back([=] { Leave(member); });
      }
      for (auto& [server, link] : member->links) {
        const size_t to = server;
        Link* const of = &link;
        if (!link.up.empty() || (link.ends && !link.ended)) events.push_back([=] { DeliverUp(of, to); });
        if (!link.down.empty() && member->alive) events.push_back([=] { DeliverDown(member, of, to); });
      }
    }
    if (events.empty()) return false;
    events[Below(events.size())]();
    return true;
  }

  // It dies: of what it has written any part may have got to each server.
  void Kill(SimulatedMember* member) {
    member->alive = false;
    for (auto& [server, link] : member->links) {
      link.up.resize(Below(link.up.size() + 1));
      link.ends = true;
      link.down.clear();
    }
  }
  SimulatedMember* AnyAlive() {
    std::vector<SimulatedMember*> alive;
    for (const auto& member : members_) {
      if (member->alive && !member->left) alive.push_back(member.get());
    }
    return alive.empty() ? nullptr : alive[Below(alive.size())];
  }

  void CheckEnd(bool somebody_died) const {
    std::map<int, std::vector<int32_t>> results;
    for (const auto& member : members_) {
      if (!member->alive || member->core.epoch() == nullptr) continue;  // Its set has not begun.
      INFO("rank " << member->rank);
      CHECK(member->calls.size() == kCalls);
      for (const Made& made : member->calls) {
        INFO("call " << made.number << ": " << made.status);
        CHECK(made.done);  // Otherwise it hangs.
        // Who leaves a set that shrinks ends messages between others that have not come yet.
        if (!somebody_died && !shrink_) CHECK(made.status.ok());
        if (!made.done || !made.status.ok()) continue;
        CheckResult(*member, made);
        if (made.spec.kind != CallKind::kAllReduce) continue;
        // Whoever has a result of a call has the same.
        const auto [first, added] = results.emplace(made.number, made.out);
        if (!added && !restarted_) CHECK(first->second == made.out);
      }
    }
  }
  void NoteRestart() { restarted_ = true; }
  bool shrink() const { return shrink_; }

 private:
  Link& LinkOf(SimulatedMember* member, size_t server) {
    Link& link = member->links[server];
    if (link.stream == 0) {
      link.stream = ++last_stream_;
      owners_[link.stream] = {member, server};
    }
    return link;
  }

  static int64_t Pattern(uint64_t i) { return static_cast<int64_t>(i % 5) + 1; }
  static int32_t ValueOf(uint32_t rank, uint64_t i) {
    return static_cast<int32_t>((int64_t{1} << rank) * Pattern(i));
  }

  // All members make the same calls, as the seed has them.
  CallKind KindOf(int number) const {
    static constexpr CallKind kKinds[] = {CallKind::kAllReduce, CallKind::kAllReduce, CallKind::kBarrier,
                                          CallKind::kBroadcast, CallKind::kAllGather, CallKind::kAllToAll};
    return kKinds[(script_ >> (3 * number)) % std::size(kKinds)];
  }
  uint64_t CountOf(int number) const {
    static constexpr uint64_t kCounts[] = {0, 1, 100, 40'000};
    return kCounts[(script_ >> (20 + 2 * number)) % std::size(kCounts)];
  }

  bool CanCall(const SimulatedMember& member) const {
    const auto under_way =
        std::count_if(member.calls.begin(), member.calls.end(), [](const Made& m) { return !m.done; });
    return member.next_call < kCalls && under_way < 3 && member.core.epoch() != nullptr &&
           (!by_name_ || !FreeNames(member).empty());
  }
  static bool IsFinished(const SimulatedMember& member) {
    return member.next_call == kCalls &&
           std::all_of(member.calls.begin(), member.calls.end(), [](const Made& m) { return m.done; });
  }

  // The next call of a name that none is under way of. Each member has an order of names of its own.
  static std::vector<int> FreeNames(const SimulatedMember& member) {
    std::vector<int> names;
    for (int name = 0; name < kNames; ++name) {
      const bool free = std::none_of(member.calls.begin(), member.calls.end(), [name](const Made& made) {
        return !made.done && made.number % kNames == name;
      });
      if (free && kNames * member.calls_of_name[static_cast<size_t>(name)] + name < kCalls) {
        names.push_back(name);
      }
    }
    return names;
  }
  int AnyOfNames(SimulatedMember* member) {
    const std::vector<int> names = FreeNames(*member);
    const int name = names[Below(names.size())];
    return kNames * member->calls_of_name[static_cast<size_t>(name)]++ + name;
  }

  void MakeCall(SimulatedMember* member) {
    const int number = by_name_ ? AnyOfNames(member) : member->next_call;
    Made& made = member->calls.emplace_back();
    made.number = number;
    ++member->next_call;
    made.spec.kind = KindOf(made.number);
    made.spec.dtype = DType::kInt32;
    made.spec.name = absl::StrCat("call ", by_name_ ? number % kNames : number);
    if (by_name_ && number % kNames == 0) made.spec.name.clear();  // Those match by their kind.
    made.spec.by_name = by_name_;
    made.spec.shape = absl::StrCat(" number ", number);
    made.spec.count = CountOf(made.number);
    if (made.spec.kind == CallKind::kBarrier) made.spec.count = 0;
    const auto members = static_cast<uint64_t>(member->core.epoch()->members_size());
    uint64_t in = made.spec.count, out = made.spec.count;
    if (made.spec.kind == CallKind::kAllGather) out *= members;
    if (made.spec.kind == CallKind::kAllToAll) in = out = made.spec.count * members;
    made.spec.in_counts.assign(members, made.spec.count);
    made.spec.out_counts = made.spec.in_counts;
    made.in.resize(in);
    made.out.resize(out);
    for (uint64_t i = 0; i < in; ++i)
      made.in[i] = ValueOf(member->rank, made.spec.count == 0 ? i : i % made.spec.count);
    if (made.spec.kind == CallKind::kAllReduce && made.number % 2 == 0) {
      made.out = made.in;
      made.spec.in = reinterpret_cast<const uint8_t*>(made.out.data());
    } else {
      made.spec.in = reinterpret_cast<const uint8_t*>(made.in.data());
    }
    made.spec.out = reinterpret_cast<uint8_t*>(made.out.data());
    const absl::Status submitted =
        member->core.Submit(made.spec, [&made](const absl::Status& status, uint32_t counted) {
          made.done = true;
          made.status = status;
          made.members = counted;
        });
    if (!submitted.ok()) {
      made.done = true;
      made.status = submitted;
      (void)member->core.Acknowledge();
    }
    Flush(member);
  }

  void Flush(SimulatedMember* member) {
    for (const MemberCore::Out& out : member->core.TakeOutgoing()) {
      Link& link = LinkOf(member, out.server);
      if (link.ends) continue;  // It has left.
      // Bytes as they are now: a sender's memory is its own again when the call is done.
      link.up.push_back(ByteChain::FromString(EncodeCallFrame(out.frame).ToString()));
    }
    for (const MemberCore::Finished& call : member->core.TakeFinished()) call.done(call.status, call.members);
  }

  void Leave(SimulatedMember* member) {
    member->left = true;
    for (auto& [server, link] : member->links) link.ends = true;
  }

  void DeliverUp(Link* link, size_t server) {
    CallDesk::Answers answers;
    if (link->up.empty()) {
      link->ended = true;
      desks_[server]->Ended(link->stream, "its connection ended", &answers);
    } else {
      absl::StatusOr<CallFrame> frame = DecodeCallFrame(link->up.front());
      link->up.pop_front();
      REQUIRE(frame.ok());
      const absl::Status handled = desks_[server]->Handle(link->stream, *std::move(frame), Now(), &answers);
      INFO(handled);
      REQUIRE(handled.ok());
    }
    for (const ChunkBook::Outcome& answer : answers.frames) SendDown(answer);
    for (const ChunkBook::Ready& ready : answers.ready) {
      for (const ChunkBook::Outcome& answer : AnswersOf(ready)) SendDown(answer);
    }
    // A process that was replaced ends.
    for (const auto& [stream, why] : answers.sent_away) {
      if (owners_[stream].first->alive) Kill(owners_[stream].first);
    }
  }
  void SendDown(const ChunkBook::Outcome& answer) {
    const auto [member, server] = owners_.at(answer.stream);
    Link& link = member->links.at(server);
    if (member->alive && !link.ends) link.down.push_back(EncodeCallFrame(answer.frame));
  }
  void DeliverDown(SimulatedMember* member, Link* link, size_t server) {
    const absl::StatusOr<CallFrame> frame = DecodeCallFrame(link->down.front());
    link->down.pop_front();
    REQUIRE(frame.ok());
    member->core.OnFrame(server, *frame);
    Flush(member);
  }

  // Whose values are in a result of a reduction: a bit each.
  void CheckResult(const SimulatedMember& member, const Made& made) const {
    const uint64_t count = made.spec.count;
    const auto all = static_cast<int32_t>((1U << size_) - 1);
    if (made.spec.kind == CallKind::kAllReduce) {
      int32_t mask = 0;
      for (uint64_t i = 0; i < count; ++i) {
        const auto pattern = static_cast<int32_t>(Pattern(i));
        REQUIRE(made.out[i] % pattern == 0);
        if (i == 0) mask = made.out[i] / pattern;
        REQUIRE(made.out[i] / pattern == mask);  // The same members in all of it.
      }
      if (count == 0) return;
      CHECK((mask & (1 << member.rank)) != 0);
      CHECK(static_cast<uint32_t>(__builtin_popcount(static_cast<unsigned>(mask))) == made.members);
      if (!shrink_) CHECK(mask == all);
    } else if (made.spec.kind == CallKind::kBroadcast) {
      for (uint64_t i = 0; i < count; ++i) REQUIRE(made.out[i] == ValueOf(0, i));
    } else if (made.spec.kind == CallKind::kAllGather || made.spec.kind == CallKind::kAllToAll) {
      if (made.members != size_) return;  // Of a smaller set: places are not ranks.
      for (uint64_t i = 0; i < made.out.size(); ++i) {
        REQUIRE(made.out[i] == ValueOf(static_cast<uint32_t>(i / count), i % count));
      }
    }
  }

  std::mt19937 random_;
  const bool shrink_, by_name_;
  size_t servers_ = 1, size_ = 2;
  const uint64_t script_ = (uint64_t{random_()} << 32) | random_();
  std::vector<std::unique_ptr<CallDesk>> desks_;
  std::vector<std::unique_ptr<SimulatedMember>> members_;
  std::map<uint64_t, std::pair<SimulatedMember*, size_t>> owners_;  // Of streams.
  uint64_t last_stream_ = 0;
  bool restarted_ = false;
};

// Events until nothing happens any more; `deaths` of them on the way.
void Run(uint32_t seed, bool shrink, int deaths, bool restart, bool by_name = false) {
  INFO("seed " << seed << (shrink ? ", shrink" : "") << ", deaths " << deaths
               << (restart ? ", restarts" : ""));
  World world(seed, shrink, by_name);
  std::vector<uint32_t> when;
  for (int i = 0; i < deaths; ++i) when.push_back(world.Below(60 * world.size()));
  uint32_t step = 0;
  bool died = false;
  for (bool going = true; going; ++step) {
    going = world.Step();
    REQUIRE(step < 200'000);
    if (std::count(when.begin(), when.end(), step) == 0) continue;
    SimulatedMember* const member = world.AnyAlive();
    if (member == nullptr) continue;
    died = true;
    world.Kill(member);
    if (restart) {
      world.NoteRestart();
      world.AddMember(member->rank);
    }
    going = true;
  }
  world.CheckEnd(died);
}

TEST_CASE("calls end well where nobody dies, whenever members leave", "[collective]") {
  for (uint32_t seed = 0; seed < 200; ++seed) Run(seed, /*shrink=*/false, /*deaths=*/0, /*restart=*/false);
}

TEST_CASE("whoever dies in the middle of a call, its others get an error or a right result", "[collective]") {
  for (uint32_t seed = 1000; seed < 1400; ++seed)
    Run(seed, /*shrink=*/false, 1 + static_cast<int>(seed % 2), false);
}

TEST_CASE("a set that shrinks goes on with those who are left, and its results count the same members",
          "[collective]") {
  for (uint32_t seed = 2000; seed < 2400; ++seed)
    Run(seed, /*shrink=*/true, 1 + static_cast<int>(seed % 2), false);
}

TEST_CASE("a process that takes a dead one's rank begins a new epoch, and nobody hangs", "[collective]") {
  for (uint32_t seed = 3000; seed < 3300; ++seed) Run(seed, seed % 2 == 0, 1, /*restart=*/true);
}

TEST_CASE("calls that match by name end well in whatever order members make them, and who dies",
          "[collective]") {
  for (uint32_t seed = 4000; seed < 4300; ++seed) {
    Run(seed, /*shrink=*/seed % 2 == 0, /*deaths=*/static_cast<int>(seed / 2 % 3), /*restart=*/false,
        /*by_name=*/true);
  }
}

TEST_CASE("a member knows which ranks have gone, until its caller knows the epoch without them",
          "[collective]") {
  MemberCore core({"s", "w0", /*shrink=*/false});
  SetEpoch epoch;
  epoch.set_set(7);
  epoch.set_epoch(1);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    SetMember* member = epoch.add_members();
    member->set_rank(rank);
    member->set_name(absl::StrCat("w", rank));
  }
  const auto tell = [&core](CallFrameKind kind, const std::string& what) {
    CallFrame frame;
    frame.header.kind = kind;
    frame.payload = ByteChain::FromString(what);
    core.OnFrame(0, frame);
  };
  tell(CallFrameKind::kEpoch, epoch.SerializeAsString());
  REQUIRE(core.Acknowledge() != nullptr);
  CHECK(core.lost().empty());

  MembersLost lost;
  lost.set_set(7);
  lost.set_epoch(1);
  lost.add_went()->set_rank(2);
  tell(CallFrameKind::kLost, lost.SerializeAsString());
  CHECK(core.lost() == std::vector<uint32_t>{2});
  core.Acknowledge();  // The epoch is the same one still.
  CHECK(core.lost() == std::vector<uint32_t>{2});
  CHECK_FALSE(core.changed());

  epoch.set_epoch(2);
  *epoch.add_went() = lost.went(0);
  epoch.add_went()->set_rank(1);
  *epoch.add_came() = epoch.members(1);
  *epoch.add_came() = epoch.members(2);
  tell(CallFrameKind::kEpoch, epoch.SerializeAsString());
  CHECK(core.lost() == std::vector<uint32_t>{2, 1});
  CHECK(core.changed());
  core.Acknowledge();
  CHECK(core.lost().empty());
}

}  // namespace
}  // namespace recon
