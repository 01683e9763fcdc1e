// Of ParamServer: synchronous steps.

#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/server/data_plane/small_job.h"
#include "tests/support/temp_dir.h"

namespace recon {

TEST_CASE("BSP answers when all have pushed, with the mean applied", "[param_server]") {
  SmallJob f(0, 3);
  const auto one = f.Push(1, 0, 3);
  const auto two = f.Push(2, 0, 6);
  f.Settle();
  CHECK_FALSE(Done(one));
  CHECK(f.Values(1)[0] == 0);
  const auto three = f.Push(3, 0, 0);
  CHECK(Await(one).ok());
  CHECK(Await(two).ok());
  CHECK(Await(three).ok());
  CHECK(f.Values(1) == std::vector<float>(kSampleParams, -3));
}

TEST_CASE("BSP goes on without a worker that is expelled: shards it had reached count it, others do not",
          "[param_server]") {
  SmallJob f(0);
  Frame half = f.PushFrame(2, 0, 100);
  half.parts.pop_back();
  half.payloads.pop_back();
  const auto unfinished = f.Send(half);
  const auto one = f.Push(1, 0, 3);
  f.Settle();
  CHECK_FALSE(Done(one));
  f.server().members()->Expel(WorkerId(2));
  CHECK(Await(one).ok());
  const std::vector<float> values = f.Values(1);
  CHECK(values.front() == -(3 + 100) / 2.0f);
  CHECK(values.back() == -3);
  // Back again, it is told that its push came too late, and takes part from the next step.
  f.server().members()->Admit(WorkerId(2), f.IncarnationOf(2), 0);
  CHECK(absl::IsAborted(Await(f.Push(2, 0, 100))));
  CHECK(f.server().members()->Activate(WorkerId(2), 0, false) == 1);
  const auto next = f.Push(1, 1, 1);
  CHECK(Await(f.Push(2, 1, 1)).ok());
  CHECK(Await(next).ok());
  CHECK(f.Values(1).back() == -4);
}

TEST_CASE("a server may end while a closing that nobody waits for is on its way to the disk",
          "[param_server]") {
  for (int i = 0; i < 20; ++i) {
    const TempDir directory;
    SmallJob f(0);
    PushLog::Options options;
    options.directory = directory.path();
    options.sync = true;
    f.server().log()->Set(
        *PushLog::Open(options, FileSystem::Local(), f.server().rules(), f.server().position().sequence + 1));
    f.server().log()->NoteSnapshot(1);
    const auto one = f.Push(1, 0, 3);
    f.server().BeginDrain();
    CHECK(absl::IsUnavailable(Await(one)));
    f.server().members()->Expel(WorkerId(2));  // The step has all its pushes now.
  }
}

TEST_CASE("BSP: the reply of a frame comes when all have sent its shards, not all of theirs",
          "[param_server]") {
  SmallJob f(0);
  const auto first_shard = [&](uint32_t worker, float value) {
    Frame frame = f.PushFrame(worker, 0, value);
    frame.parts.resize(1);
    frame.payloads.resize(1);
    return frame;
  };
  const auto one = f.Send(first_shard(1, 3));
  f.Settle();
  CHECK_FALSE(Done(one));
  const auto two = f.Send(first_shard(2, 5));
  CHECK(Await(one).ok());
  CHECK(Await(two).ok());
  CHECK(f.Values(1).front() == -4);
  CHECK(f.Values(1).back() == 0);
  // The rest, with what has been sent already.
  const auto rest = f.Push(1, 0, 3);
  f.Settle();
  CHECK_FALSE(Done(rest));
  CHECK(Await(f.Push(2, 0, 5)).ok());
  CHECK(Await(rest).ok());
  CHECK(f.Values(1) == std::vector<float>(kSampleParams, -4));
}

TEST_CASE("BSP: what a worker sends before the others begin is taken; side by side it waits for their part",
          "[param_server]") {
  SmallJob f(0);
  const auto first = f.Send(f.PartOf(1, 0, 0, 3, /*parts=*/2));
  f.Settle();
  CHECK(first->taken);
  const auto theirs = f.Send(f.PartOf(2, 0, 1, 5, 2));
  const auto second = f.Send(f.PartOf(1, 0, 1, 3, 2));
  CHECK(Await(theirs).ok());
  CHECK(Await(second).ok());
  CHECK_FALSE(theirs->taken);
  CHECK_FALSE(second->taken);
  CHECK(Await(f.Send(f.PartOf(2, 0, 0, 5, 2))).ok());
  CHECK(Await(first).ok());
  // Of the next step the first to come is before the others; then one who waits for long has fallen behind.
  const auto early = f.Push(1, 1, 3);
  f.Settle();
  CHECK(early->taken);
  const auto late = f.Send(f.PartOf(2, 1, 0, 5, 2));
  CHECK(Await(f.Send(f.PartOf(2, 1, 1, 5, 2))).ok());
  CHECK(Await(late).ok());
  CHECK(Await(early).ok());
  const auto ahead = f.Send(f.PartOf(1, 2, 0, 3, 2));
  const auto aside = f.Send(f.PartOf(2, 2, 1, 5, 2));
  f.Settle();
  f.server().Tick(Now());
  CHECK_FALSE(aside->taken);
  f.server().Tick(Now() + limits::kInStepPatience);
  CHECK(aside->taken);
  CHECK_FALSE(Done(aside));
  CHECK(f.Values(1).back() == -8);
}

TEST_CASE("BSP: with a quorum whatever comes is taken at once, as no shard is closed before the step is",
          "[param_server]") {
  SmallJob f(0);
  f.server().members()->SetQuorum(2, absl::Hours(1));
  const auto first = f.Send(f.PartOf(1, 0, 0, 3, /*parts=*/2));
  const auto theirs = f.Send(f.PartOf(2, 0, 0, 5, 2));
  f.Settle();
  CHECK(first->taken);
  CHECK(theirs->taken);
  CHECK_FALSE(Done(first));
  CHECK_FALSE(Done(theirs));
  // Nobody's window is full of what waits for others: the rest comes, and all of it is answered.
  const auto rest = f.Send(f.PartOf(1, 0, 1, 3, 2));
  const auto last = f.Send(f.PartOf(2, 0, 1, 5, 2));
  for (const auto& pending : {first, theirs, rest, last}) CHECK(Await(pending).ok());
}

TEST_CASE("BSP: a worker that is expelled while its reply waits is told so, and its push does not count",
          "[param_server]") {
  SmallJob f(0);
  const auto waiting = f.Push(2, 0, 100);
  f.Settle();
  f.server().members()->Expel(WorkerId(2));
  CHECK(absl::IsFailedPrecondition(Await(waiting)));
  CHECK(Await(f.Push(1, 0, 3)).ok());
  CHECK(f.Values(1)[0] == -3);
}

TEST_CASE("BSP: a reply that was lost is given again; the push had counted", "[param_server]") {
  SmallJob f(0);
  const auto one = f.Push(1, 0, 2);
  CHECK(Await(f.Push(2, 0, 4)).ok());
  CHECK(Await(one).ok());
  CHECK(Await(f.Push(1, 0, 2)).ok());
  CHECK(f.Values(1)[0] == -3);
}

TEST_CASE("BSP: a dead process' push is not mixed with its replacement's", "[param_server]") {
  SmallJob f(0);
  f.Push(2, 0, 100);
  f.Settle();
  f.server().members()->Expel(WorkerId(2));
  f.server().members()->Admit(WorkerId(2), Incarnation(5555), 0);
  f.server().members()->Activate(WorkerId(2), 0, false);
  const auto one = f.Push(1, 0, 2);
  const auto replacement = f.Send(f.MakeFrame(FrameKind::kPushPull, WorkerId(2), Incarnation(5555), 0,
                                              std::vector<float>(kSampleParams, 4)));
  CHECK(Await(replacement).ok());
  CHECK(Await(one).ok());
  CHECK(f.Values(1)[0] == -3);
}

}  // namespace recon
