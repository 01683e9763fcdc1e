// Of ParamServer: what servers of one job tell each other of synchronous steps.

#include "server/data_plane/peer_steps.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/mutex.h"
#include "tests/server/data_plane/push_frames.h"
#include "tests/server/durability/sample_state.h"

namespace recon {
namespace {

// What a head says, in its order.
class HeardFollowers final : public Followers {
 public:
  void OnClosing(uint32_t server, const StepClosing& closing) override {
    std::string said = absl::StrCat("to ", server, ": step ", closing.step, " of shards");
    for (const uint32_t shard : closing.shards) absl::StrAppend(&said, " ", shard);
    Add(said);
  }
  void OnFrontier(uint64_t frontier, bool anyone_active) override {
    Add(absl::StrCat("frontier ", frontier, anyone_active ? "" : ", nobody"));
  }
  void OnStateCommitted(uint64_t upload) override { Add(absl::StrCat("state ", upload)); }
  std::vector<std::string> Take() {
    MutexLock lock(&mu_);
    return std::exchange(said_, {});
  }

 private:
  void Add(std::string said) {
    MutexLock lock(&mu_);
    said_.push_back(std::move(said));
  }

  Mutex mu_;
  std::vector<std::string> said_ ABSL_GUARDED_BY(mu_);
};

using Said = std::vector<std::string>;

// One of the two servers that have SampleModel()'s two shards, one each, and worker 1.
struct Half : ParamServerHarness {
  explicit Half(const ParamServer::Options& options) : ParamServerHarness(options) {
    if (!server().DefineModel(SampleModel()).ok()) throw std::runtime_error("DefineModel");
    server().AwaitInitialValues(WorkerId(9), [] {});
    server().members()->Admit(WorkerId(9), Incarnation(9), 0);
    Frame values = MakeFrame(FrameKind::kInit, WorkerId(9), Incarnation(9), 0,
                             std::vector<float>(server().layout()->params(), 0));
    if (!Call(Mine(values)).ok()) throw std::runtime_error("Init");
    server().members()->Expel(WorkerId(9));
    Join(1);
  }
  static ParamServer::Options OptionsOf(uint32_t server) {
    ParamServer::Options options = MakeOptions(/*bound=*/0, OptimizerKind::kSgd, 1, 1);
    options.server = server;
    options.servers = 2;
    return options;
  }
  // The part of a frame that this server has.
  Frame Mine(Frame frame) {
    frame.parts = {frame.parts[server().options().server]};
    frame.payloads = {frame.payloads[server().options().server]};
    frame.header.server_parts = 1;
    return frame;
  }
};

}  // namespace

TEST_CASE("the head tells its followers of closings of their shards, and of each frontier once",
          "[param_server]") {
  HeardFollowers heard;
  ParamServer::Options options = Half::OptionsOf(0);
  options.followers = &heard;
  Half head(options);
  CHECK(heard.Take() == Said{"frontier 0"});

  const auto pending = head.Send(head.Mine(head.PushFrame(1, 0, 2)));
  CHECK(
      head.Call(head.Mine(head.MakeFrame(FrameKind::kPull, WorkerId(1), head.IncarnationOf(1), 0, {}))).ok());
  // It is closed here, where nobody else pushes; not on the other server, whose part has not come.
  CHECK(heard.Take() == Said{});
  head.server().peers()->NoteDelivered(WorkerId(1), head.IncarnationOf(1), 0, {1}, 2);
  CHECK(heard.Take() == Said{"to 1: step 0 of shards 1", "frontier 1"});
  head.server().peers()->NoteDelivered(WorkerId(1), head.IncarnationOf(1), 0, {1}, 2);
  CHECK(heard.Take() == Said{});
  pending->done.WaitForNotification();
  CHECK(pending->reply.ok());
}

TEST_CASE("reports that cannot be are not counted", "[param_server]") {
  HeardFollowers heard;
  ParamServer::Options options = Half::OptionsOf(0);
  options.followers = &heard;
  Half head(options);
  PeerSteps* peers = head.server().peers();
  const Incarnation one = head.IncarnationOf(1);
  heard.Take();
  peers->NoteDelivered(WorkerId(1), Incarnation(77), 0, {0, 1}, 2);  // Another process.
  peers->NoteDelivered(WorkerId(2), one, 0, {0, 1}, 2);              // Nobody.
  peers->NoteDelivered(WorkerId(1), one, 0, {0, 1, 2}, 3);           // Shards that there are not.
  peers->NoteDelivered(WorkerId(1), one, 0, {0, 1}, 0);
  peers->NoteDelivered(WorkerId(1), one, 1 << 30, {0, 1}, 2);  // A step far beyond.
  CHECK(heard.Take() == Said{});
  CHECK(head.server().GetStats().pushes == 0);
  peers->NoteDelivered(WorkerId(1), one, 0, {0, 1}, 2);
  CHECK(head.server().GetStats().pushes == 1);
}

TEST_CASE("a follower answers when the head has closed the step, or has come beyond it", "[param_server]") {
  std::vector<uint64_t> reported;
  ParamServer::Options options = Half::OptionsOf(1);
  options.report_delivery = [&](WorkerId, Incarnation, uint64_t step, absl::Span<const uint32_t>, uint32_t) {
    reported.push_back(step);
  };
  Half follower(options);
  const auto first = follower.Send(follower.Mine(follower.PushFrame(1, 0, 2)));
  const auto settle = [&] {
    CHECK(follower
              .Call(follower.Mine(
                  follower.MakeFrame(FrameKind::kPull, WorkerId(1), follower.IncarnationOf(1), 0, {})))
              .ok());
  };
  settle();
  CHECK(reported == std::vector<uint64_t>{0});
  CHECK_FALSE(first->done.HasBeenNotified());
  // Shard 0 is not here, and there is no shard 7: the closings have nothing for this server.
  follower.server().peers()->FollowClosing({0, {7, UINT32_MAX}, {{WorkerId(1), follower.IncarnationOf(1)}}});
  follower.server().peers()->FollowClosing({0, {0}, {{WorkerId(1), follower.IncarnationOf(1)}}});
  settle();
  CHECK_FALSE(first->done.HasBeenNotified());
  follower.server().peers()->FollowClosing({0, {0, 1}, {{WorkerId(1), follower.IncarnationOf(1)}}});
  first->done.WaitForNotification();
  CHECK(first->reply.ok());

  const auto late = follower.Send(follower.Mine(follower.PushFrame(1, 1, 2)));
  settle();
  follower.server().peers()->FollowFrontier(2, true);
  late->done.WaitForNotification();
  CHECK(absl::IsAborted(late->reply.status()));
}

}  // namespace recon
