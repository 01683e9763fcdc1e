// A worker's parameters, handed to another and checked by the server.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/mutex.h"
#include "common/codec/codec.h"
#include "common/codec/page_hash.h"
#include "common/metrics/metrics.h"
#include "common/rpc/caller.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/param_service.h"
#include "common/rpc/rpc_server.h"
#include "common/tensor/page.h"
#include "common/tensor/shard_assignment.h"
#include "tests/server/data_plane/push_frames.h"
#include "tests/support/certificates.h"
#include "worker/comm/frames.h"
#include "worker/comm/param_client.h"
#include "worker/comm/peer_source.h"
#include "worker/comm/replica.h"
#include "worker/comm/replica_server.h"

namespace recon {
namespace {

constexpr size_t kSize = 9 * kPageParams + 100;

ModelSpec TenPages() {
  ModelSpec model;
  model.set_name("ten pages");
  for (const char* name : {"front", "back"}) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name(name);
    tensor->add_shape(name == std::string("front") ? 5 * kPageParams : kSize - 5 * kPageParams);
  }
  return model;
}

constexpr char kToken[] = "token";

std::vector<float> SomeValues() {
  std::vector<float> values(kSize);
  for (size_t i = 0; i < kSize; ++i) values[i] = 1.0f / static_cast<float>(i + 3);
  return values;
}

std::vector<float> Rounded(CodecId codec, const std::vector<float>& values) {
  std::vector<uint8_t> bytes(EncodedBytes(codec, values.size()));
  std::vector<float> rounded(values.size());
  Encode(codec, values.data(), values.size(), bytes.data());
  Decode(codec, bytes.data(), values.size(), rounded.data());
  return rounded;
}

// A server and workers without training.
class Job {
 public:
  Job() : server_(/*bound=*/-1) {
    server_.Define(TenPages(), SomeValues());
    server_.Join(1);
    layout_ = server_.server().layout();
    REQUIRE(layout_->shard_count() > 2);
  }

  const ParamLayout& layout() const { return *layout_; }

  // The reply to a pull of everything; who says what it has gets what differs.
  Frame Pull(CodecId codec, const Replica* has = nullptr) {
    Frame pull = server_.MakeFrame(FrameKind::kPull, WorkerId(1), server_.IncarnationOf(1), 0, {});
    pull.header.reply_codec = static_cast<uint8_t>(codec);
    for (uint32_t i = 0; has != nullptr && i < layout_->shard_count(); ++i) {
      const Replica::Values hashes = has->HashShard(i);
      pull.parts[i].codec = static_cast<uint8_t>(hashes.codec);
      pull.payloads[i] = hashes.payload;
    }
    const auto pending = server_.Send(pull);
    pending->done.WaitForNotification();
    return *DecodeFrame(*pending->reply);
  }
  // All shards in `codec` but the first, which came in fp32, as those have that no push has changed since.
  std::unique_ptr<Replica> WorkerThatPulled(CodecId codec) {
    auto replica = std::make_unique<Replica>(layout_.get());
    Frame first = Pull(CodecId::kFp32);
    Frame others = Pull(codec);
    others.parts[0] = first.parts[0];
    others.payloads[0] = first.payloads[0];
    REQUIRE(replica->Adopt(others).ok());
    REQUIRE(replica->complete());
    return replica;
  }
  std::unique_ptr<ReplicaServer> Serve(const Replica& replica, const TlsFlags& tls = {}) {
    auto server = *ReplicaServer::Start("127.0.0.1:0", tls, layout_.get(), &replica, &metrics_);
    server->SetToken(kToken);
    return server;
  }

 private:
  ParamServerHarness server_;
  std::shared_ptr<const ParamLayout> layout_;
  Metrics metrics_;
};

bool NeverStopped() { return false; }

std::vector<float> ValuesOf(const Replica& replica) {
  const absl::Span<const float> values = replica.view().values;
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("a worker takes parameters from others as they have them, and the server sends what is wrong",
          "[join]") {
  Job job;
  const CodecId codec = GENERATE(CodecId::kFp32, CodecId::kFp16, CodecId::kBf16);
  const auto one = job.WorkerThatPulled(codec);
  const auto two = job.WorkerThatPulled(codec);
  const auto serves_one = job.Serve(*one);
  const auto serves_two = job.Serve(*two);
  Replica joins(&job.layout());
  const auto read = ReadPeers({{serves_one->address(), serves_two->address()}, kToken}, {}, job.layout(),
                              NeverStopped, &joins);
  REQUIRE(read.ok());
  CHECK(read->peers == 2);
  const uint32_t first = job.layout().shards()[0].size;
  CHECK(read->bytes == EncodedBytes(CodecId::kFp32, first) + EncodedBytes(codec, kSize - first));
  CHECK_FALSE(joins.complete());  // Nobody has said yet that it is right.
  const Frame same = job.Pull(CodecId::kFp32, &joins);
  CHECK(same.header.payload_bytes == 0);
  REQUIRE(joins.TakeCorrections(same).ok());
  CHECK(joins.complete());
  CHECK(joins.versions() == one->versions());
  CHECK(ValuesOf(joins) == ValuesOf(*one));

  // One of them has gone wrong, in one value.
  Frame wrong = job.Pull(codec);
  std::string payload = wrong.payloads[1].ToString();
  payload[5] = static_cast<char>(payload[5] ^ 1);
  wrong.payloads[1] = ByteChain::FromString(payload);
  REQUIRE(two->TakeCorrections(wrong).ok());
  Replica later(&job.layout());
  REQUIRE(ReadPeers({{serves_two->address()}, kToken}, {}, job.layout(), NeverStopped, &later).ok());
  const Frame corrections = job.Pull(CodecId::kFp32, &later);
  CHECK(corrections.header.payload_bytes == kPageBytes);
  REQUIRE(later.TakeCorrections(corrections).ok());
  std::vector<float> expected = Rounded(codec, SomeValues());
  const size_t page = job.layout().shards()[1].offset;
  const std::vector<float> exact = SomeValues();
  std::copy_n(exact.begin() + page, kPageParams, expected.begin() + page);
  CHECK(ValuesOf(later) == expected);
  // Of two kinds now: whoever takes it from here gets it exactly.
  CHECK(later.HashShard(1).codec == CodecId::kFp32);
}

TEST_CASE("what a worker does not give, or not soon, is left to the server", "[join]") {
  Job job;
  const auto has = job.WorkerThatPulled(CodecId::kFp16);
  const Replica empty(&job.layout());
  const auto serves = job.Serve(*has);
  const auto serves_nothing = job.Serve(empty);
  std::string gone;
  {
    const auto closed = job.Serve(*has);
    gone = closed->address();
  }
  // It takes every request and answers none.
  std::vector<Transport::Done> held;
  Mutex mu;
  ParamService silent_service(
      [&](const ByteChain&, const TakenCallback&, Transport::Done done, const RequestContext&) {
        MutexLock lock(&mu);
        held.push_back(std::move(done));
      });
  const auto silent = *RpcServer::Start("--listen", "127.0.0.1:0", {}, {&silent_service});
  Replica joins(&job.layout());
  const auto none = ReadPeers({{gone, serves_nothing->address(), silent->address()}, kToken}, {},
                              job.layout(), NeverStopped, &joins);
  CHECK(absl::IsUnavailable(none.status()));
  const auto some =
      ReadPeers({{gone, serves->address(), serves_nothing->address(), "not an address"}, kToken}, {},
                job.layout(), NeverStopped, &joins);
  REQUIRE(some.ok());
  CHECK(some->peers == 1);
  CHECK(absl::IsCancelled(ReadPeers(
                              {{serves->address()}, kToken}, {}, job.layout(), [] { return true; }, &joins)
                              .status()));
  Replica again(&job.layout());
  REQUIRE(ReadPeers({{gone, serves->address()}, kToken}, {}, job.layout(), NeverStopped, &again).ok());
  const Frame rest = job.Pull(CodecId::kFp32, &again);
  CHECK(rest.header.payload_bytes > 0);
  REQUIRE(again.TakeCorrections(rest).ok());
  CHECK(again.complete());
  CHECK(Rounded(CodecId::kFp16, ValuesOf(again)) == Rounded(CodecId::kFp16, SomeValues()));
  silent_service.Close();
  silent->Shutdown(absl::ZeroDuration());
  MutexLock lock(&mu);
  for (Transport::Done& done : held) done(absl::UnavailableError("the test is over"));
}

TEST_CASE("what another worker sends is checked before it is taken", "[join]") {
  Job job;
  Replica joins(&job.layout());
  Frame reply = job.Pull(CodecId::kFp16);
  const auto refused = [&](const Frame& frame) {
    return absl::IsInvalidArgument(joins.TakeUnchecked(frame));
  };
  CHECK_FALSE(refused(reply));
  Frame other = reply;
  other.parts[0].count += 1;
  CHECK(refused(other));
  other = reply;
  other.parts[0].shard = job.layout().shard_count();
  CHECK(refused(other));
  other = reply;
  std::string infinite = reply.payloads[0].ToString();
  infinite[0] = '\x00';
  infinite[1] = '\x7c';
  other.payloads[0] = ByteChain::FromString(infinite);
  CHECK(refused(other));
  other = reply;
  other.payloads[0] = ByteChain::FromString("too short");
  CHECK(refused(other));
  // A frame of a kind whose payloads have other lengths is no reply.
  ParamService service(
      [&](const ByteChain& request, const TakenCallback&, Transport::Done done, const RequestContext&) {
        Frame frame = *DecodeFrame(request);
        for (size_t i = 0; i < frame.parts.size(); ++i) {
          frame.payloads[i] = ByteChain::FromString(std::string(PageHashesBytes(frame.parts[i].count), 'x'));
        }
        done(EncodeFrame(frame));
      });
  const auto echoes = *RpcServer::Start("--listen", "127.0.0.1:0", {}, {&service});
  CHECK(absl::IsUnavailable(
      ReadPeers({{echoes->address()}, kToken}, {}, job.layout(), NeverStopped, &joins).status()));
  service.Close();
  echoes->Shutdown(absl::ZeroDuration());
}

TEST_CASE("with TLS, workers show each other certificates of the job's CA", "[join]") {
  Job job;
  const Certificates ours("ours");
  const Certificates theirs("theirs");
  const auto has = job.WorkerThatPulled(CodecId::kFp16);
  const auto serves = job.Serve(*has, ours.Client());
  const auto read = [&](const TlsFlags& tls) {
    Replica joins(&job.layout());
    return ReadPeers({{serves->address()}, kToken}, tls, job.layout(), NeverStopped, &joins).status();
  };
  CHECK(read(ours.Client()).ok());
  CHECK(absl::IsUnavailable(read(theirs.Client())));
  CHECK(absl::IsUnavailable(read({})));
}

TEST_CASE("a worker gives its parameters to who shows the token that the head gives to workers", "[join]") {
  Job job;
  const auto has = job.WorkerThatPulled(CodecId::kFp16);
  const auto serves = job.Serve(*has);
  const auto read = [&](const std::string& token) {
    Replica joins(&job.layout());
    return ReadPeers({{serves->address()}, token}, {}, job.layout(), NeverStopped, &joins).status();
  };
  CHECK(read(kToken).ok());
  for (const std::string wrong : {"", "another", "tokem"}) CHECK(absl::IsUnavailable(read(wrong)));
  serves->SetToken("the next head's");
  CHECK(absl::IsUnavailable(read(kToken)));
  CHECK(read("the next head's").ok());
  serves->SetToken("");  // Of a head that gives none.
  CHECK(absl::IsUnavailable(read("")));
}

TEST_CASE("a worker is asked for parameters only, and of its own model", "[join]") {
  Job job;
  const auto has = job.WorkerThatPulled(CodecId::kFp16);
  const auto serves = job.Serve(*has);
  ParamClient client(AssignShards(job.layout(), 1));
  client.Connect(
      {*ConnectForFrames(serves->address(), {}, 1, std::make_shared<SendWindow>(1, 1), Caller{"", kToken})});
  const auto refusal = [&](FrameKind kind, std::vector<Frame> frames) {
    return client.CallAll(kind, std::move(frames), absl::Seconds(10)).front().status();
  };
  const auto frames = [&] {
    return FramesFor(job.layout(), {}, WorkerIdentity(), PlainShards(job.layout(), SomeValues()));
  };
  CHECK_THAT(std::string(refusal(FrameKind::kPush, frames()).message()), Catch::Contains("kind is 2"));
  std::vector<Frame> pull =
      FramesFor(job.layout(), {}, WorkerIdentity(), std::vector<EncodedShard>(job.layout().shard_count()));
  pull.resize(1);
  pull[0].parts.resize(1);
  pull[0].payloads.resize(1);
  pull[0].parts[0].count += 1;
  CHECK(absl::IsInvalidArgument(refusal(FrameKind::kPull, pull)));
  pull[0].parts[0].shard = job.layout().shard_count();
  CHECK(absl::IsInvalidArgument(refusal(FrameKind::kPull, pull)));
}

}  // namespace recon
