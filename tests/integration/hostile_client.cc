// Everything at once that somebody may try who reaches a server's port and does not belong to its job:
//
//   hostile_client SERVER VICTIM [CERT KEY CA]
//
// VICTIM is the name of a worker that trains. With CERT, KEY and CA, which the server does not take, calls go
// over TLS, and none gets through. It goes on until SIGTERM, then says "ATTACK COUNT" for each attack, and
// ends with 1 if something was answered that must not be; standard error says what.
// RECON_HOSTILE_ONLY=ATTACK: that one alone.
//
// It yields the processor to everybody else (nice), and each attack pauses between two tries: what is looked
// at is what the server spends on it. More than the machine's cores can accept stops any server.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/sleep.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "common/rpc/grpc_transport.h"
#include "google/protobuf/stubs/logging.h"
#include "tests/integration/chaos_model.h"
#include "tests/support/choices.h"
#include "tests/support/raw_http2.h"
#include "worker/comm/frames.h"
#include "worker/comm/param_client.h"

namespace recon {
namespace {

// The workers of the job, as ChaosModel() has them.
constexpr uint32_t kWorkers = 2;
constexpr absl::Duration kDeadline = absl::Seconds(2);
// Of a connection without the library that the server has closed: all together begin 2,000 a second at most.
constexpr absl::Duration kReconnect = absl::Milliseconds(250);
std::atomic<bool> g_ended{false};

bool Chosen(const std::string& attack) {
  const char* const only = std::getenv("RECON_HOSTILE_ONLY");
  return only == nullptr || attack == only;
}

struct Count {
  explicit Count(std::string name) : attack(std::move(name)) {}
  const std::string attack;
  std::atomic<uint64_t> tries{0};
};

// What no server may do, and this one has done.
std::atomic<bool> g_taken{false};
void MustFail(const char* what, const absl::Status& status) {
  if (!status.ok()) return;
  std::fprintf(stderr, "taken: %s\n", what);
  g_taken = true;
}

class RandomBytes {
 public:
  std::string operator()(size_t bytes) {
    std::string text(bytes, '\0');
    for (char& byte : text) byte = static_cast<char>(random_());
    return text;
  }
  // Of letters: what is to be text is refused where it is no UTF-8, before anybody looks at it.
  std::string Text(size_t bytes) {
    std::string text(bytes, '\0');
    for (char& byte : text) byte = static_cast<char>('a' + Of(26));
    return text;
  }
  uint32_t Of(uint32_t options) { return static_cast<uint32_t>(random_()) % options; }

 private:
  std::mt19937 random_{std::random_device{}()};
};

// So many connections without a library, each of which is sent what `next` says (its first message, or a
// later one) until the server closes it, or some time has gone by. Nothing is ever read from them.
class RawAttack {
 public:
  using Next = std::function<std::string(uint64_t message, RandomBytes* random)>;

  RawAttack(const std::string& name, size_t connections, Next next)
      : next_(std::move(next)), connections_(connections), count_(name) {}

  void Step(const std::string& server) {
    for (One& one : connections_) {
      const absl::Time now = Now();
      if (one.until < now || (!one.sender.open && one.since + kReconnect < now)) {
        one = {{ConnectTcp(server)}, 0, now, now + absl::Milliseconds(500 + random_.Of(4000))};
        if (one.sender.fd.get() < 0) one.sender.open = false;
        ++count_.tries;
      }
      if (!one.sender.open) continue;
      const bool more = one.sender.rest.empty();
      one.sender.Send(more ? next_(one.messages, &random_) : one.sender.rest);
      if (more) ++one.messages;
    }
  }
  const Count& count() const { return count_; }

 private:
  struct One {
    RawSender sender = {OwnedFd(), 0, "", false};
    uint64_t messages = 0;
    absl::Time since = absl::InfinitePast();
    absl::Time until = absl::InfinitePast();
  };
  const Next next_;
  std::vector<One> connections_;
  RandomBytes random_;
  Count count_;
};

std::string SomeFrame(RandomBytes* random) {
  return Http2Frame(static_cast<Http2>(random->Of(12)), static_cast<uint8_t>(random->Of(64)), random->Of(4),
                    (*random)(random->Of(200)));
}

// Streams of `path` that are opened, given `body`, and left alone; some of a connection in each message.
std::unique_ptr<RawAttack> OpenStreams(const std::string& name, const std::string& path,
                                       const std::string& body, bool ends) {
  return std::make_unique<RawAttack>(name, 4, [path, body, ends](uint64_t message, RandomBytes* random) {
    constexpr uint32_t kStreams = 8;
    std::string bytes = message == 0 ? Http2Preface() : "";
    for (uint32_t i = 0; i < kStreams; ++i) {
      const uint32_t stream = 2 * (static_cast<uint32_t>(message) * kStreams + i) + 1;
      const std::string secret = absl::Base64Escape((*random)(WorkerSecret::kBytes));
      const bool first = message == 0 && i == 0;
      bytes += Http2Frame(Http2::kHeaders, kEndOfHeaders, stream,
                          first ? HpackCall(path, kSecretMetadata, secret) : HpackSameCall());
      bytes += Http2Frame(
          Http2::kData, ends ? kEndOfStream : 0, stream,
          absl::StrCat(std::string(1, '\0'), BigEndian(static_cast<uint32_t>(body.size()), 4), body));
    }
    return bytes;
  });
}

// As fast as it goes, so many streams that are reset at once.
std::string OpenAndReset(uint64_t message, RandomBytes*) {
  std::string bytes = message == 0 ? Http2Preface() : "";
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t stream = 2 * (static_cast<uint32_t>(message) * 16 + i) + 1;
    bytes +=
        Http2Frame(Http2::kHeaders, kEndOfHeaders, stream,
                   message == 0 && i == 0 ? HpackCall("/recon.Control/Status", "a", "b") : HpackSameCall());
    bytes += Http2Frame(Http2::kReset, 0, stream, BigEndian(8, 4));
  }
  return bytes;
}

// Headers that do not end: one that claims to have 2 GiB, or small ones.
std::string EndlessHeaders(bool one_literal, uint64_t message) {
  const std::string more = one_literal ? std::string(4000, 'a') : std::string("\0\1x\1y", 5);
  std::string block;
  while (block.size() < 4000) block += more;
  if (message > 0) return Http2Frame(Http2::kContinuation, 0, 1, block);
  const std::string claim = std::string("\0\1x\x7f\xff\xff\xff\xff\7", 9);
  return Http2Preface() + Http2Frame(Http2::kHeaders, 0, 1, one_literal ? claim + block : block);
}

// Metadata of many kilobytes, whole, for call after call.
std::string LargeHeaders(uint64_t message, RandomBytes* random) {
  std::string block = HpackCall("/recon.Control/Status", "a", "b");
  for (int i = 0; i < 100; ++i) {
    block += std::string(1, '\0') + HpackText(absl::StrCat("x-", i)) + HpackText(std::string(120, 'v'));
  }
  return absl::StrCat(
      message == 0 ? Http2Preface() : "",
      Http2Frame(Http2::kHeaders, kEndOfHeaders, 2 * static_cast<uint32_t>(message) + 1, block),
      random->Of(2) == 0 ? "" : Http2Frame(Http2::kPing, 0, 0, "12345678"));
}

std::vector<std::unique_ptr<RawAttack>> RawAttacks() {
  std::vector<std::unique_ptr<RawAttack>> all;
  const auto add = [&all](const char* name, size_t connections, RawAttack::Next next) {
    all.push_back(std::make_unique<RawAttack>(name, connections, std::move(next)));
  };
  add("silent", 200, [](uint64_t, RandomBytes*) { return std::string(); });
  // A greeting of HTTP/2, or the beginning of one of TLS.
  add("half-open", 200, [](uint64_t message, RandomBytes* random) {
    if (message > 0) return std::string();
    return random->Of(2) == 0 ? Http2Preface()
                              : std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  });
  add("garbage", 4, [](uint64_t, RandomBytes* random) { return (*random)(1000); });
  add("frames", 4, [](uint64_t message, RandomBytes* random) {
    return message == 0 ? Http2Preface() : SomeFrame(random);
  });
  add("endless-header", 4, [](uint64_t message, RandomBytes*) { return EndlessHeaders(true, message); });
  add("endless-headers", 4, [](uint64_t message, RandomBytes*) { return EndlessHeaders(false, message); });
  add("large-headers", 2, &LargeHeaders);
  add("opened-and-reset", 2, &OpenAndReset);
  add("streams-left-open", 4, [](uint64_t message, RandomBytes*) {
    return Http2Calls("/recon.Param/Exchange", static_cast<uint32_t>(message) * 16 + 1, 8, message == 0,
                      false);
  });
  all.push_back(OpenStreams("streams-of-nonsense", "/recon.Param/Exchange", "nonsense", false));
  all.push_back(OpenStreams("streams-never-read", "/recon.Control/Status", "", true));
  all.push_back(OpenStreams("history-never-read", "/recon.Control/History", "", true));
  all.push_back(OpenStreams("collectives", "/recon.Collective/Exchange", std::string(60, '\1'), false));
  all.push_back(OpenStreams("unknown-calls", "/recon.Control/Nothing", "", true));
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const auto& attack) { return !Chosen(attack->count().attack); }),
            all.end());
  return all;
}

// What is done with the library, each on a thread of its own.
class HostileCalls {
 public:
  HostileCalls(std::string server, std::string victim, TlsFlags tls)
      : server_(std::move(server)), victim_(std::move(victim)), tls_(std::move(tls)) {}

  void Start() {
    Each("forged-calls", absl::Milliseconds(20), [this] { ForgedCall(); });
    Each("forged-pushes", absl::Milliseconds(50), [this] { ForgedPush(); });
    Each("names", absl::Milliseconds(50), [this] { TakeName(); });
    Each("odd-registrations", absl::Milliseconds(50), [this] { OddRegistration(); });
    Each("large-messages", absl::Seconds(1), [this] { LargeMessage(); });
    Each("members", absl::Milliseconds(50), [this] { ActAsMember(); });
    Each("connections", absl::Milliseconds(20), [this] { (void)Client(Caller()).Status(); });
  }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
  }
  void Print() const {
    for (const Count& count : counts_) {
      std::printf("%s %llu\n", count.attack.c_str(), static_cast<unsigned long long>(count.tries));
    }
  }

 private:
  void Each(const char* name, absl::Duration pause, std::function<void()> attack) {
    if (!Chosen(name)) return;
    Count* count = &counts_.emplace_back(name);
    threads_.emplace_back([count, pause, attack = std::move(attack)] {
      while (!g_ended) {
        attack();
        ++count->tries;
        Sleep(pause);
      }
    });
  }

  // Over a connection of its own, that ends with it.
  ControlClient Client(Caller caller) { return ControlClient(Channel(), kDeadline, std::move(caller)); }
  std::shared_ptr<grpc::Channel> Channel() { return *ConnectTo(server_, tls_, ++connections_); }

  WorkerSecret Secret(RandomBytes* random) {
    return *WorkerSecret::FromBytes((*random)(WorkerSecret::kBytes));
  }

  // Whom everybody can read about. The worker's number is what anybody would try first.
  WorkerIdentity VictimIdentity(ControlClient* client) {
    WorkerIdentity identity;
    const auto status = client->Status();
    if (!status.ok()) return identity;
    identity.set_cluster_epoch(status->cluster_epoch());
    for (const MemberStatus& member : status->members()) {
      if (member.name() != victim_) continue;
      identity.set_worker(member.worker());
      identity.set_incarnation(member.incarnation());
    }
    return identity;
  }

  RegisterRequest Registration(const std::string& name, uint64_t incarnation) {
    RegisterRequest request;
    request.set_name(name);
    request.set_incarnation(incarnation);
    *request.mutable_model() = ChaosModel(kWorkers);
    request.set_train_samples(1000);
    request.set_test_samples(10);
    return request;
  }

  // In the victim's name, without its secret: with none, another, or what is none.
  void ForgedCall() {
    RandomBytes random;
    const Caller callers[] = {Caller(),
                              Caller::Worker(Secret(&random)),
                              {random(random.Of(100)), ""},
                              {"", absl::WebSafeBase64Escape(random(20))}};
    ControlClient client = Client(callers[random.Of(4)]);
    const WorkerIdentity identity = VictimIdentity(&client);
    const uint64_t number = random.Of(2) == 0 ? random.Of(1000) : UINT64_MAX - random.Of(4);
    switch (random.Of(6)) {
      case 0: {
        HeartbeatRequest request;
        *request.mutable_identity() = identity;
        request.set_next_step(number);
        request.mutable_progress()->ParseFromString(random(50));
        return MustFail("a heartbeat in another's name", client.Heartbeat(request).status());
      }
      case 1: {
        AcquireRequest request;
        *request.mutable_identity() = identity;
        return MustFail("a lease in another's name", client.Acquire(request).status());
      }
      case 2: {
        CompleteRequest request;
        *request.mutable_identity() = identity;
        request.set_lease(number);
        return MustFail("a completion in another's name", client.Complete(request).status());
      }
      case 3: {
        LeaveRequest request;
        *request.mutable_identity() = identity;
        request.set_reason(random.Text(random.Of(5000)));
        return MustFail("leaving in another's name", client.Leave(request).status());
      }
      case 4: {
        RejoinRequest request;
        *request.mutable_identity() = identity;
        request.set_next_step(number);
        return MustFail("a step in another's name", client.Rejoin(request).status());
      }
      default: {
        PolicySettings policy;
        policy.ParseFromString(random(20));
        return MustFail("an operator's call", Stranger()->SetPolicy(policy).status());
      }
    }
  }
  // One that shows a token, so that it does not find the operator's on this machine.
  std::unique_ptr<ControlClient> Stranger() {
    return std::make_unique<ControlClient>(Channel(), kDeadline, Caller{"", "nobody-has-this-token"});
  }

  void ForgedPush() {
    RandomBytes random;
    const Caller caller = random.Of(2) == 0 ? Caller() : Caller::Worker(Secret(&random));
    ControlClient client = Client(caller);
    const WorkerIdentity identity = VictimIdentity(&client);
    GrpcTransport transport({Channel()}, std::make_shared<SendWindow>(1, 1), caller);
    if (random.Of(2) == 0) {
      transport.Call(ByteChain::FromString(random(random.Of(2000))), [](absl::StatusOr<ByteChain>) {});
    }
    const ParamLayout layout = *ParamLayout::Create(ChaosModel(kWorkers));
    FrameHeader header;
    header.step = random.Of(2) == 0 ? random.Of(1000) : UINT64_MAX - random.Of(4);
    header.samples = 1;
    std::vector<EncodedShard> shards = PlainShards(layout, std::vector<float>(layout.params(), 3e38F));
    for (EncodedShard& shard : shards) shard.version = 0;
    const FrameKind kinds[] = {FrameKind::kPush, FrameKind::kPushPull, FrameKind::kInit};
    ParamClient frames(&transport);
    for (const auto& reply :
         frames.CallAll(kinds[random.Of(3)], FramesFor(layout, header, identity, shards), kDeadline)) {
      MustFail("a push in another's name", reply.status());
    }
  }

  void TakeName() {
    RandomBytes random;
    const WorkerSecret secret = Secret(&random);
    ControlClient client = Client(Caller::Worker(secret));
    const WorkerIdentity identity = VictimIdentity(&client);
    RegisterRequest request =
        Registration(victim_, random.Of(2) == 0 ? secret.incarnation().value() : identity.incarnation());
    request.set_name_is_drawn(random.Of(2) == 0);
    request.set_next_step(random.Of(1000));
    MustFail("a living worker's name", client.Register(request).status());
  }

  void OddRegistration() {
    RandomBytes random;
    const WorkerSecret secret = Secret(&random);
    RegisterRequest request = Registration(random.Of(4) == 0 ? random(20) : random.Text(random.Of(2000)),
                                           secret.incarnation().value());
    for (uint32_t i = random.Of(2000); i > 0; --i) {
      Lease* lease = request.add_held();
      lease->set_lease(i);
      lease->set_split(UINT32_MAX - random.Of(3));
      lease->set_splits(UINT32_MAX);
      lease->set_end(UINT64_MAX);
    }
    TensorSpec* tensor = request.mutable_model()->add_tensors();
    tensor->set_name(random.Text(random.Of(500)));
    for (uint32_t i = 0; i < random.Of(20); ++i) tensor->add_shape(UINT32_MAX);
    request.set_next_step(UINT64_MAX);
    request.set_serves_parameters(random.Text(random.Of(100)));
    MustFail("another model", Client(Caller::Worker(secret)).Register(request).status());
  }

  // The largest that gRPC sends, before anything else.
  void LargeMessage() {
    RandomBytes random;
    const WorkerSecret secret = Secret(&random);
    RegisterRequest request = Registration("large", secret.incarnation().value());
    request.mutable_model()->set_name(std::string(31 << 20, 'n'));
    MustFail("a name of 31 MiB", Client(Caller::Worker(secret)).Register(request).status());
  }

  // Whoever comes may join, where no tokens are asked for: in its own name, under a few names that it keeps
  // taking from itself. It pushes nothing that counts.
  void ActAsMember() {
    RandomBytes random;
    const WorkerSecret secret = Secret(&random);
    ControlClient client = Client(Caller::Worker(secret));
    const std::string name = absl::StrCat("hostile-", random.Of(8));
    const auto registered = client.Register(Registration(name, secret.incarnation().value()));
    if (!registered.ok()) return;
    WorkerIdentity identity;
    identity.set_worker(registered->worker());
    identity.set_incarnation(secret.incarnation().value());
    identity.set_cluster_epoch(registered->cluster_epoch());
    HeartbeatRequest heartbeat;
    *heartbeat.mutable_identity() = identity;
    heartbeat.set_next_step(UINT64_MAX - random.Of(3));
    for (uint32_t i = random.Of(100); i > 0; --i) heartbeat.add_leases(random.Of(1000));
    heartbeat.mutable_progress()->ParseFromString(random(60));
    client.Heartbeat(heartbeat).IgnoreError();
    AcquireRequest acquire;
    *acquire.mutable_identity() = identity;
    const auto acquired = client.Acquire(acquire);
    CompleteRequest complete;
    *complete.mutable_identity() = identity;
    complete.set_lease(acquired.ok() ? acquired->lease().lease() + 1 + random.Of(3) : random.Of(100));
    MustFail("a lease that it does not hold", client.Complete(complete).status());
    GrpcTransport frames({Channel()}, std::make_shared<SendWindow>(1, 1), Caller::Worker(secret));
    frames.Call(ByteChain::FromString(random(random.Of(2000))), [](absl::StatusOr<ByteChain>) {});
    LeaveRequest leave;
    *leave.mutable_identity() = identity;
    client.Leave(leave).IgnoreError();
  }

  const std::string server_, victim_;
  const TlsFlags tls_;
  std::atomic<int> connections_{0};
  std::deque<Count> counts_;
  std::vector<std::thread> threads_;
};

int Run(int argc, char** argv) {
  const TlsFlags tls = argc == 6 ? TlsFlags{argv[3], argv[4], argv[5], false} : TlsFlags();
  HostileCalls calls(argv[1], argv[2], tls);
  calls.Start();
  const auto raw = RawAttacks();
  while (!g_ended) {
    for (const auto& attack : raw) attack->Step(argv[1]);
    Sleep(absl::Milliseconds(10));
  }
  calls.Join();
  calls.Print();
  for (const auto& attack : raw) {
    std::printf("%s %llu\n", attack->count().attack.c_str(),
                static_cast<unsigned long long>(attack->count().tries));
  }
  return g_taken ? 1 : 0;
}

}  // namespace
}  // namespace recon

int main(int argc, char** argv) {
  if (argc != 3 && argc != 6) return 2;
  setpriority(PRIO_PROCESS, 0, 10);
  std::signal(SIGTERM, [](int) { recon::g_ended = true; });
  std::signal(SIGPIPE, SIG_IGN);
  setenv("GRPC_VERBOSITY", "NONE", 0);       // It says of each handshake that fails that it does.
  google::protobuf::SetLogHandler(nullptr);  // It says of each text that it is not UTF-8.
  return recon::Run(argc, argv);
}
