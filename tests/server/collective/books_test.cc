#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "common/base/secret.h"
#include "common/collective/ticket.h"
#include "server/collective/call_desk.h"

namespace recon {
namespace {

using Catch::Matchers::Contains;

const absl::Time kStart = absl::FromUnixSeconds(1000);

JoinRequest Fixed(uint32_t rank, uint32_t size, bool shrink = false) {
  JoinRequest request;
  request.set_set("s");
  request.set_member(absl::StrCat("w", rank));
  request.set_rank(rank);
  request.set_size(size);
  request.set_shrink(shrink);
  return request;
}
JoinRequest Elastic(const std::string& name, uint32_t size) {
  JoinRequest request;
  request.set_set("s");
  request.set_member(name);
  request.set_elastic(true);
  request.set_size(size);
  return request;
}

TEST_CASE("a set begins when all of its ranks are there", "[collective]") {
  SetBook book({absl::Seconds(3), 7});
  SetBook::Changes changes;
  REQUIRE(book.Join(1, Fixed(1, 2), kStart, &changes).ok());
  CHECK(changes.epochs.empty());
  REQUIRE(book.Join(2, Fixed(0, 2), kStart, &changes).ok());
  REQUIRE(changes.epochs.size() == 2);
  const auto& [stream, epoch] = changes.epochs[0];
  CHECK(stream == 2);  // Rank 0.
  CHECK(epoch.set() == 7);
  CHECK(epoch.epoch() == 1);
  CHECK(epoch.members(1).name() == "w1");
}

TEST_CASE("a join that contradicts the set shows both sides", "[collective]") {
  SetBook book({absl::Seconds(3), 1});
  SetBook::Changes changes;
  REQUIRE(book.Join(1, Fixed(0, 2), kStart, &changes).ok());
  const absl::Status other = book.Join(2, Fixed(1, 3), kStart, &changes);
  CHECK(absl::IsInvalidArgument(other));
  CHECK_THAT(std::string(other.message()),
             Contains("a set of 3 members") && Contains("it is a set of 2 members"));
  CHECK(absl::IsInvalidArgument(book.Join(3, Fixed(2, 2), kStart, &changes)));
  CHECK(absl::IsInvalidArgument(book.Join(4, Fixed(0, 0), kStart, &changes)));
  CHECK(absl::IsInvalidArgument(book.Join(5, JoinRequest(), kStart, &changes)));
  CHECK(absl::IsInvalidArgument(book.Join(1, Fixed(1, 2), kStart, &changes)));  // A second time.
  CHECK(absl::IsInvalidArgument(book.Join(6, Elastic("w\x1b[31m", 2), kStart, &changes)));
  JoinRequest named = Elastic("w", 2);
  named.set_set("s\xe2\x80\xae");
  const absl::Status refused = book.Join(6, named, kStart, &changes);
  CHECK_THAT(std::string(refused.message()), Contains("a set's name \"s\\u202e\" has \\u202e as byte 2"));
}

TEST_CASE("a lost rank leaves a fixed set as it is until another process takes it", "[collective]") {
  SetBook book({absl::Seconds(3), 1});
  SetBook::Changes began, lost, again;
  REQUIRE(book.Join(1, Fixed(0, 2), kStart, &began).ok());
  REQUIRE(book.Join(2, Fixed(1, 2), kStart, &began).ok());
  book.Leave(2, "its connection ended", &lost);
  CHECK(lost.epochs.empty());
  REQUIRE(lost.losses.size() == 1);
  CHECK(lost.losses[0].first == 1);
  CHECK(lost.losses[0].second.went(0).name() == "w1");
  REQUIRE(lost.over.size() == 1);
  CHECK(lost.over[0].place == 1);
  REQUIRE(book.Join(3, Fixed(1, 2), kStart, &again).ok());
  REQUIRE(again.epochs.size() == 2);
  CHECK(again.epochs[0].second.epoch() == 2);
  CHECK(again.epochs[0].second.came(0).rank() == 1);
  CHECK(again.over[0].place == kEverybody);
}

TEST_CASE("a set that shrinks has a new epoch at once", "[collective]") {
  SetBook book({absl::Seconds(3), 1});
  SetBook::Changes began, lost;
  for (uint32_t rank = 0; rank < 3; ++rank)
    REQUIRE(book.Join(rank + 1, Fixed(rank, 3, true), kStart, &began).ok());
  book.Leave(2, "its connection ended", &lost);
  REQUIRE(lost.epochs.size() == 2);
  CHECK(lost.epochs[1].second.place() == 1);
  CHECK(lost.epochs[1].second.members(1).rank() == 2);  // A rank stays what it was.
  CHECK(lost.epochs[1].second.went(0).why() == "its connection ended");
}

TEST_CASE("an elastic set numbers its members anew and waits when they are too few", "[collective]") {
  SetBook book({absl::Seconds(3), 1});
  SetBook::Changes changes;
  REQUIRE(book.Join(1, Elastic("a", 2), kStart, &changes).ok());
  CHECK(changes.epochs.empty());
  REQUIRE(book.Join(2, Elastic("b", 2), kStart, &changes).ok());
  REQUIRE(book.Join(3, Elastic("c", 2), kStart, &changes).ok());
  CHECK(changes.epochs.back().second.epoch() == 2);
  CHECK(changes.epochs.back().second.members_size() == 3);
  changes = {};
  book.Leave(1, "it left", &changes);
  REQUIRE(changes.epochs.size() == 2);
  CHECK(changes.epochs[0].second.members(0).name() == "b");
  CHECK(changes.epochs[0].second.members(0).rank() == 0);
  changes = {};
  book.Leave(2, "it left", &changes);
  CHECK(changes.epochs.empty());
  CHECK(changes.losses.size() == 1);
  book.Leave(3, "it left", &changes);
  CHECK(book.empty());
}

TEST_CASE("who is silent for longer than its patience is evicted, and not when the server stood still",
          "[collective]") {
  CallDesk desk({true, {absl::Seconds(3), 1}, nullptr, ""});
  CallDesk::Answers answers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    CallFrame join;
    join.header.kind = CallFrameKind::kJoin;
    join.payload = ByteChain::FromString(Fixed(rank, 2).SerializeAsString());
    REQUIRE(desk.Handle(rank + 1, join, kStart, &answers).ok());
  }
  answers = {};
  CallFrame beat;
  beat.header.kind = CallFrameKind::kHeartbeat;
  for (int i = 1; i <= 31; ++i) {
    const absl::Time now = kStart + i * absl::Milliseconds(100);
    REQUIRE(desk.Handle(1, beat, now, &answers).ok());
    desk.EvictSilent(now, &answers);
    CHECK(answers.sent_away.size() == (i <= 30 ? 0 : 1));
  }
  CHECK(answers.sent_away[0].first == 2);
  CHECK_THAT(std::string(answers.sent_away[0].second.message()), Contains("silent for 3.1s"));
  desk.EvictSilent(kStart + absl::Hours(1), &answers);
  CHECK(answers.sent_away.size() == 1);
}

// What is answered to a stream's request to join.
absl::Status Join(CallDesk* desk, uint64_t stream, const JoinRequest& request, CallDesk::Answers* answers) {
  CallFrame join;
  join.header.kind = CallFrameKind::kJoin;
  join.payload = ByteChain::FromString(request.SerializeAsString());
  return desk->Handle(stream, join, kStart, answers);
}

// A frame of the first chunk of a call.
CallFrame Chunk(uint32_t place, uint64_t sequence, const std::string& text, uint64_t bytes = 4) {
  CallFrame frame;
  frame.header.kind = CallFrameKind::kChunk;
  frame.header.combine = Combine::kReduce;
  frame.header.dtype = DType::kInt32;
  frame.header.place = frame.header.rank = place;
  frame.header.members = 2;
  frame.header.source = frame.header.receiver = kEverybody;
  frame.header.set = frame.header.epoch = 1;
  frame.header.sequence = sequence;
  frame.header.bytes = frame.header.total = bytes;
  frame.text = text;
  frame.payload = ByteChain::FromString(std::string(bytes, 'x'));
  return frame;
}

TEST_CASE("different calls that meet fail for all, with both sides, and the next call is right",
          "[collective]") {
  ChunkBook book;
  ChunkBook::Decided decided;
  REQUIRE(book.Add(1, Chunk(0, 0, "all_reduce 'a' sum int32[1]"), kStart, &decided).ok());
  CHECK(book.bytes() > 4);
  REQUIRE(book.Add(2, Chunk(1, 0, "all_reduce 'b' sum int32[2]", 8), kStart, &decided).ok());
  REQUIRE(decided.failed.size() == 2);
  for (const ChunkBook::Outcome& outcome : decided.failed) {
    CHECK_THAT(outcome.frame.text, Contains("rank 0 calls all_reduce 'a' sum int32[1] (4 bytes)") &&
                                       Contains("rank 1 calls all_reduce 'b' sum int32[2] (8 bytes)"));
  }
  CHECK(book.bytes() == 0);
  decided = {};
  REQUIRE(book.Add(1, Chunk(0, 1, "c"), kStart, &decided).ok());
  REQUIRE(book.Add(2, Chunk(1, 1, "c"), kStart, &decided).ok());
  CHECK(decided.failed.empty());
  REQUIRE(decided.ready.size() == 1);
  CHECK(decided.ready[0].streams == std::vector<uint64_t>{1, 2});
}

TEST_CASE("an epoch in which too many calls have failed is over for those that wait, too", "[collective]") {
  ChunkBook book;
  ChunkBook::Decided decided;
  REQUIRE(book.Enter(2, Chunk(1, 0, "").header).ok());
  constexpr uint64_t kWaits = 1'000'000;
  REQUIRE(book.Add(1, Chunk(0, kWaits, "barrier"), kStart, &decided).ok());
  CallHeader call = Chunk(1, 0, "").header;
  for (; call.sequence < limits::kCollectiveFailedCallsMax; ++call.sequence) {
    REQUIRE(book.FailCall(2, call, absl::InternalError("it failed here"), &decided).ok());
  }
  CHECK(decided.failed.empty());
  CHECK(book.bytes() > 4);
  REQUIRE(book.FailCall(2, call, absl::InternalError("it failed here"), &decided).ok());
  REQUIRE(decided.failed.size() == 1);
  CHECK(decided.failed[0].stream == 1);
  CHECK(decided.failed[0].frame.header.sequence == kWaits);
  CHECK_THAT(decided.failed[0].frame.text, Contains("the set has to begin anew"));
  CHECK(book.bytes() == 0);
  // Both go on in the next epoch, and nothing of this one is left.
  for (uint32_t place = 0; place < 2; ++place) {
    CallFrame next = Chunk(place, 0, "c");
    next.header.epoch = 2;
    REQUIRE(book.Add(1 + place, next, kStart, &decided).ok());
  }
  CHECK(decided.ready.size() == 1);
}

TEST_CASE("who waits for whom is known, since when", "[collective]") {
  ChunkBook book;
  ChunkBook::Decided decided;
  REQUIRE(book.Add(2, Chunk(1, 5, "late"), kStart + absl::Seconds(1), &decided).ok());
  REQUIRE(book.Add(2, Chunk(1, 4, "early"), kStart, &decided).ok());
  const std::vector<ChunkBook::Waiting> waiting = book.waiting();
  REQUIRE(waiting.size() == 2);
  CHECK(waiting[0].what == "early");
  CHECK(waiting[0].since == kStart);
  CHECK(waiting[0].here == std::vector<uint32_t>{1});
  CHECK(waiting[0].missing == std::vector<uint32_t>{0});
}

TEST_CASE("what a lost member has sent counts, what it has not ends the call", "[collective]") {
  ChunkBook book;
  ChunkBook::Decided decided;
  REQUIRE(book.Add(2, Chunk(1, 0, "a"), kStart, &decided).ok());
  REQUIRE(book.Enter(1, Chunk(0, 0, "a").header).ok());
  book.End(2, "its connection ended", &decided);
  REQUIRE(book.Add(1, Chunk(0, 0, "a"), kStart, &decided).ok());
  CHECK(decided.ready.size() == 1);
  REQUIRE(book.Add(1, Chunk(0, 1, "b"), kStart, &decided).ok());
  REQUIRE(decided.failed.size() == 1);
  CHECK(decided.failed[0].frame.header.lost == 1);
  CHECK(decided.failed[0].frame.text == "its connection ended");
}

TEST_CASE("a member cannot speak for another or send twice", "[collective]") {
  ChunkBook book;
  ChunkBook::Decided decided;
  REQUIRE(book.Add(1, Chunk(0, 0, "a"), kStart, &decided).ok());
  CHECK(absl::IsInvalidArgument(book.Add(1, Chunk(0, 0, "a"), kStart, &decided)));
  CHECK(absl::IsInvalidArgument(book.Add(1, Chunk(1, 0, "a"), kStart, &decided)));
  CHECK(absl::IsInvalidArgument(book.Add(3, Chunk(0, 1, "a"), kStart, &decided)));
  CallFrame three = Chunk(1, 0, "a");
  three.header.members = 3;
  CHECK(absl::IsInvalidArgument(book.Add(2, three, kStart, &decided)));
}

TEST_CASE("a frame comes back as it was, and one that cannot be is refused", "[collective]") {
  const CallFrame frame = Chunk(1, 3, "all_reduce");
  const ByteChain bytes = EncodeCallFrame(frame);
  const auto decoded = DecodeCallFrame(bytes);
  REQUIRE(decoded.ok());
  CHECK(decoded->text == "all_reduce");
  CHECK(decoded->payload.ToString() == "xxxx");
  CHECK(decoded->header.sequence == 3);
  for (size_t size = 0; size < bytes.size(); ++size) CHECK_FALSE(DecodeCallFrame(bytes.Range(0, size)).ok());
  const auto refused = [](const std::function<void(CallFrame*)>& change) {
    CallFrame wrong = Chunk(1, 3, "all_reduce");
    change(&wrong);
    return absl::IsInvalidArgument(DecodeCallFrame(EncodeCallFrame(wrong)).status());
  };
  CHECK(refused([](CallFrame* f) { f->header.place = 2; }));
  CHECK(refused([](CallFrame* f) { f->header.members = 0; }));
  CHECK(refused([](CallFrame* f) { f->header.source = 2; }));
  CHECK(refused([](CallFrame* f) { f->header.bytes = uint64_t{1} << 40; }));
  CHECK(refused([](CallFrame* f) { f->header.op = ReduceOp::kMean; }));  // Of integers.
  CHECK(refused([](CallFrame* f) { f->header.dtype = static_cast<DType>(99); }));
  CHECK(refused([](CallFrame* f) { f->header.wire = Wire::kFloat16; }));
  CHECK(refused([](CallFrame* f) {  // A scale without values.
    f->header.dtype = DType::kFloat32;
    f->header.wire = Wire::kInt8;
  }));
  CHECK(refused([](CallFrame* f) { f->header.combine = Combine::kCopy; }));  // Of everybody.
  // A sum, or a concatenation, of one member's bytes, or of a pair's: nothing to be combined with would come.
  for (const Combine combine : {Combine::kReduce, Combine::kConcat}) {
    CHECK(refused([&](CallFrame* f) {
      f->header.combine = combine;
      f->header.source = 1;
    }));
    CHECK(refused([&](CallFrame* f) {
      f->header.combine = combine;
      f->header.pair = 1;
    }));
    CHECK(refused([&](CallFrame* f) {
      f->header.combine = combine;
      f->header.source = f->header.receiver = 1;
      f->header.pair = 1;
    }));
  }
}

TEST_CASE("nobody speaks to the head in an epoch that it has not been told of", "[collective]") {
  CallDesk desk({true, {absl::Seconds(3), 1}, nullptr, ""});
  CallDesk::Answers answers;
  REQUIRE(Join(&desk, 1, Elastic("a", 1), &answers).ok());
  // Of the epoch that comes next, as everybody can guess, and with more members than it will have.
  CallFrame early = Chunk(3, 1, "early");
  early.header.members = 4;
  early.header.epoch = 2;
  CHECK(absl::IsInvalidArgument(desk.Handle(9, early, kStart, &answers)));
  CHECK(absl::IsInvalidArgument(desk.Handle(1, early, kStart, &answers)));
  REQUIRE(Join(&desk, 2, Elastic("b", 1), &answers).ok());
  const SetsReply sets = desk.Sets(kStart);
  REQUIRE(sets.sets_size() == 1);
  CHECK(sets.sets(0).epoch() == 2);
  CHECK(sets.sets(0).calls_size() == 0);
  // Who is in it is understood.
  answers = {};
  for (uint32_t place = 0; place < 2; ++place) {
    CallFrame frame = Chunk(place, 1, "call");
    frame.header.epoch = 2;
    CHECK(desk.Handle(place + 1, frame, kStart, &answers).ok());
  }
  CHECK(answers.ready.size() == 1);
}

TEST_CASE("a server that is not the head hears those whom the head has given a ticket for it",
          "[collective]") {
  const std::string key = DrawSecret(kTicketKeyBytes);
  CallDesk::Options options{true, {absl::Seconds(3), 1}, nullptr, ""};
  options.other_servers = [&key] {
    return std::vector<CallDesk::OtherServer>{{"b:1", "another's"}, {"c:1", key}};
  };
  CallDesk head(options);
  CallDesk::Answers told;
  for (const uint64_t stream : {1, 2}) REQUIRE(Join(&head, stream, Fixed(stream - 1, 2), &told).ok());
  CHECK(told.is_member);
  REQUIRE(told.frames.size() == 2);
  CallDesk server({false, {absl::Seconds(3), 1}, nullptr, key});
  CallDesk::Answers answers;
  std::vector<CallFrame> calls;
  for (const ChunkBook::Outcome& outcome : told.frames) {
    SetEpoch epoch;
    REQUIRE(epoch.ParseFromString(outcome.frame.payload.ToString()));
    REQUIRE(epoch.other_servers_size() == 2);
    REQUIRE(epoch.tickets_size() == 2);
    CallFrame call = Chunk(epoch.place(), 1, "call");
    call.header.set = epoch.set();
    call.header.epoch = epoch.epoch();
    CHECK(absl::IsInvalidArgument(server.Handle(outcome.stream, call, kStart, &answers)));
    CallFrame enter = call;
    enter.header.kind = CallFrameKind::kEnter;
    const auto shows = [&](const std::string& ticket) {
      enter.payload = ByteChain::FromString(ticket);
      return server.Handle(outcome.stream, enter, kStart, &answers);
    };
    for (const std::string& wrong :
         {epoch.tickets(0), std::string(), std::string(32, 'x'), epoch.tickets(1).substr(1)}) {
      CHECK(absl::IsUnavailable(shows(wrong)));
    }
    // Of another place, epoch or set it is none.
    for (uint32_t* field : {&enter.header.place, &enter.header.members}) {
      *field ^= 1;
      CHECK(absl::IsUnavailable(shows(epoch.tickets(1))));
      *field ^= 1;
    }
    for (uint64_t* field : {&enter.header.set, &enter.header.epoch}) {
      *field ^= 1;
      CHECK(absl::IsUnavailable(shows(epoch.tickets(1))));
      *field ^= 1;
    }
    CHECK_FALSE(answers.is_member);
    CHECK(shows(epoch.tickets(1)).ok());
    CHECK(std::exchange(answers.is_member, false));
    // The head has its own list.
    CHECK(absl::IsInvalidArgument(head.Handle(outcome.stream, enter, kStart, &told)));
    calls.push_back(call);
  }
  // Whoever only beats shows nothing by that.
  CHECK(server.Handle(3, CallFrame(), kStart, &answers).ok());
  CHECK_FALSE(answers.is_member);
  for (size_t i = 0; i < calls.size(); ++i) {
    CHECK(server.Handle(i + 1, calls[i], kStart, &answers).ok());
    CHECK(std::exchange(answers.is_member, false));
  }
  CHECK(answers.ready.size() == 1);
  // Without a key there are no tickets.
  CallDesk keyless({false, {absl::Seconds(3), 1}, nullptr, ""});
  CallFrame enter = calls[0];
  enter.header.kind = CallFrameKind::kEnter;
  enter.payload = ByteChain::FromString(TicketFor("", enter.header));
  CHECK(absl::IsUnavailable(keyless.Handle(1, enter, kStart, &answers)));
}

TEST_CASE("what others are told of a text that is no UTF-8 can be read", "[collective]") {
  CallDesk desk({true, {absl::Seconds(3), 1}, nullptr, ""});
  CallDesk::Answers answers;
  for (const uint64_t stream : {1, 2, 3}) {
    REQUIRE(Join(&desk, stream, Elastic(absl::StrCat("w", stream), 2), &answers).ok());
  }
  answers = {};
  const auto say = [&](uint64_t stream, const CallFrame& frame) {
    return desk.Handle(stream, *DecodeCallFrame(EncodeCallFrame(frame)), kStart, &answers);
  };
  CallFrame leave;
  leave.header.kind = CallFrameKind::kLeave;
  leave.text = "tsch\xc3\xbc\xc3\xff";
  REQUIRE(say(3, leave).ok());
  REQUIRE(answers.frames.size() == 2);
  uint64_t number = 0;
  for (const ChunkBook::Outcome& told : answers.frames) {
    SetEpoch epoch;
    REQUIRE(epoch.ParseFromString(told.frame.payload.ToString()));
    REQUIRE(epoch.went_size() == 1);
    CHECK(epoch.went(0).why() == "tsch\xc3\xbc??");
    number = epoch.epoch();
  }
  CallFrame call = Chunk(0, 1, "");
  call.header.epoch = number;
  call.text = "\xed\xa0\x80";
  REQUIRE(say(1, call).ok());
  SetsReply sets;
  REQUIRE(sets.ParseFromString(desk.Sets(kStart).SerializeAsString()));
  REQUIRE(sets.sets(0).calls_size() == 1);
  CHECK(sets.sets(0).calls(0).what() == "???");
}

TEST_CASE("what a stream makes a server remember is bounded", "[collective]") {
  ChunkBook book;
  SECTION("epochs in which it speaks") {
    CallHeader header = Chunk(0, 1, "").header;
    absl::Status status;
    size_t entered = 0;
    for (; status.ok() && entered < 100'000; ++entered) {
      header.set = entered;
      status = book.Enter(1, header);
    }
    CHECK(absl::IsResourceExhausted(status));
    CHECK(entered == ChunkBook::kEpochsOfStreamMax + 1);
    ChunkBook::Decided decided;
    book.End(1, "it ended", &decided);
    CHECK(book.Enter(1, header).ok());
  }
  SECTION("but not those that are over") {
    CallHeader header = Chunk(0, 1, "").header;
    ChunkBook::Decided decided;
    for (size_t i = 0; i < 3 * ChunkBook::kEpochsOfStreamMax; ++i) {
      ++header.epoch;
      REQUIRE(book.Enter(1, header).ok());
      if (i > 0) REQUIRE(book.SpeaksIn(1, header));
      book.Lose(header.set, header.epoch, kEverybody, "the set has changed", &decided);
    }
  }
  SECTION("calls that have no bytes") {
    ChunkBook::Decided decided;
    for (uint64_t sequence = 0; sequence < 100; ++sequence) {
      REQUIRE(book.Add(1, Chunk(0, sequence, std::string(1000, 't'), 0), kStart, &decided).ok());
    }
    CHECK(book.bytes() > 100 * 1000);
    book.End(1, "it ended", &decided);
    CHECK(book.bytes() == 0);
  }
  SECTION("places that are none of an epoch's") {
    for (const CallFrameKind kind : {CallFrameKind::kGone, CallFrameKind::kFailCall}) {
      CallFrame frame = Chunk(0, 1, "");
      frame.header.kind = kind;
      frame.header.lost = kEverybody;
      const auto readable = [&] { return DecodeCallFrame(EncodeCallFrame(frame)).ok(); };
      CHECK(readable());
      frame.header.lost = 2;
      CHECK(readable() == (kind == CallFrameKind::kFailCall));
      frame.header.lost = 1;
      frame.header.place = 2;
      CHECK_FALSE(readable());
      frame.header.place = 0;
      frame.header.members = limits::kCollectiveMembersMax + 1;
      CHECK_FALSE(readable());
    }
  }
}

}  // namespace
}  // namespace recon
