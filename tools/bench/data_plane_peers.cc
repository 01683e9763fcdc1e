#include "tools/bench/data_plane_peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/process.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/grpc_tuning.h"
#include "common/rpc/poller_limit.h"
#include "common/rpc/wire_bytes.h"
#include "common/shm/shm_transport.h"
#include "common/tensor/param_layout.h"
#include "common/ucx/ucx_transport.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "nlohmann/json.hpp"
#include "worker/comm/frames.h"
#include "worker/comm/param_client.h"
#include "worker/model/model_shapes.h"

namespace recon {
namespace {

constexpr size_t kTcpBytes = size_t{1} << 20;
// The best found: with its head it is just below the MiB that gRPC writes at a time. A message of a MiB takes
// two writes, and a tenth more of CPU.
constexpr size_t kGrpcMessageBytes = size_t{960} << 10;

void Print(const std::string& line) { std::cout << line << std::endl; }  // NOLINT: flushes.

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// gRPC streams that drop what comes in.
class DroppingService final : public grpc::CallbackGenericService {
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    Reactor() { StartRead(&incoming_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      incoming_.Clear();
      StartRead(&incoming_);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer incoming_;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor;
  }
};

// Writes one message again and again until a time.
class Blaster final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Blaster(const std::shared_ptr<grpc::Channel>& channel, const grpc::ByteBuffer* message, absl::Time end)
      : stub_(channel), message_(message), end_(end) {
    stub_.PrepareBidiStreamingCall(&context_, "/bench/Drop", grpc::StubOptions(), this);
    StartWrite(message_);
    StartCall();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return;
    bytes_ += kGrpcMessageBytes;
    if (Now() < end_) {
      StartWrite(message_);
    } else {
      StartWritesDone();
    }
  }
  void OnDone(const grpc::Status&) override { done_.Notify(); }
  uint64_t Wait() {
    done_.WaitForNotification();
    return bytes_;
  }

 private:
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ClientContext context_;
  const grpc::ByteBuffer* const message_;
  const absl::Time end_;
  uint64_t bytes_ = 0;
  Notification done_;
};

// A registered worker and what it pushes.
class PushWorker {
 public:
  explicit PushWorker(const PushWorkerOptions& options) : options_(options) {}

  absl::Status Join() {
    RECON_ASSIGN_OR_RETURN(const ModelSpec model, ShapesOf(options_.shapes));
    RECON_ASSIGN_OR_RETURN(ParamLayout layout, ParamLayout::Create(model));
    layout_ = std::make_unique<ParamLayout>(std::move(layout));
    RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(options_.server, {}));
    RECON_ASSIGN_OR_RETURN(Caller caller, CallerFor({}));
    caller.secret = std::string(secret_.bytes());
    control_ = std::make_unique<ControlClient>(channel, ControlClient::kDeadline, caller);
    RegisterRequest request;
    request.set_name(options_.name);
    request.set_incarnation(secret_.incarnation().value());
    *request.mutable_model() = model;
    request.set_train_samples(1000);
    request.set_test_samples(100);
    request.set_codec("fp16");
    request.set_simulated(true);
    RECON_ASSIGN_OR_RETURN(const RegisterReply registered, control_->Register(request));
    identity_.set_worker(registered.worker());
    identity_.set_incarnation(request.incarnation());
    identity_.set_cluster_epoch(registered.cluster_epoch());
    window_ = std::make_shared<SendWindow>(/*servers=*/1, limits::kDataConnections);
    RECON_ASSIGN_OR_RETURN(transport_,
                           ConnectForFrames(options_.server, {}, limits::kDataConnections, window_, caller));
    RECON_ASSIGN_OR_RETURN(const uint16_t port, PortOf(options_.server));
    window_->SetOneMachine(OnOneMachine({port}));  // As a worker does it.
    if (options_.transport == "shm") {
      auto shared = std::make_unique<ShmTransport>(registered.shared_memory(), std::move(transport_),
                                                   std::string(secret_.bytes()));
      if (!shared->Connected()) return absl::UnavailableError("the server shares no memory");
      transport_ = std::move(shared);
    } else if (options_.transport == "ucx") {
      RECON_ASSIGN_OR_RETURN(transport_,
                             ConnectOverUcx(registered.ucx_address(), std::string(secret_.bytes())));
    }
    client_ = std::make_unique<ParamClient>(transport_.get());
    if (!registered.has_values()) RECON_RETURN_IF_ERROR(BringValues());
    EncodeGradients();
    return absl::OkStatus();
  }

  nlohmann::ordered_json Run(FrameKind kind, double seconds, int depth, absl::Duration pause) {
    std::atomic<uint64_t> pushes{0};
    std::vector<std::vector<double>> milliseconds(static_cast<size_t>(depth));
    absl::Status failed = Heartbeat();
    Mutex mu;
    const absl::Time start = Now();
    const absl::Time end = start + absl::Seconds(seconds);
    std::vector<std::thread> threads;
    for (int i = 0; i < depth; ++i) {
      threads.emplace_back([&, i] {
        while (Now() < end) {
          const absl::Time sent = Now();
          const absl::Status status = Once(kind);
          milliseconds[static_cast<size_t>(i)].push_back(absl::ToDoubleMilliseconds(Now() - sent));
          if (!status.ok()) {
            MutexLock lock(&mu);
            failed = status;
            return;
          }
          ++pushes;
          Sleep(pause);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    nlohmann::ordered_json json;
    if (!failed.ok()) json["error"] = std::string(failed.message());
    json["pushes"] = pushes.load();
    json["params"] = static_cast<double>(pushes * layout_->params());
    json["seconds"] = absl::ToDoubleSeconds(Now() - start);
    json["ms"] = nlohmann::ordered_json::array();
    for (const auto& one : milliseconds) {
      for (const double ms : one) json["ms"].push_back(ms);
    }
    return json;
  }

 private:
  // Others have joined since, perhaps.
  absl::Status Heartbeat() {
    HeartbeatRequest request;
    *request.mutable_identity() = identity_;
    RECON_ASSIGN_OR_RETURN(const HeartbeatReply reply, control_->Heartbeat(request));
    window_->ShareWith(reply.workers());
    return absl::OkStatus();
  }

  absl::Status BringValues() {
    while (true) {
      AcquireRequest request;
      *request.mutable_identity() = identity_;
      RECON_ASSIGN_OR_RETURN(const AcquireReply reply, control_->Acquire(request));
      if (!reply.needs_initial_values()) return absl::OkStatus();
      const std::vector<float> zeros(layout_->params());
      for (const auto& done : client_->CallAll(
               FrameKind::kInit, FramesFor(*layout_, FrameHeader(), identity_, PlainShards(*layout_, zeros)),
               absl::Minutes(1))) {
        RECON_RETURN_IF_ERROR(done.status());
      }
    }
  }

  void EncodeGradients() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 1e-3f);
    std::vector<float> values(kShardParamsMax);
    for (float& value : values) value = normal(random);
    gradients_.resize(layout_->shard_count());
    for (uint32_t i = 0; i < layout_->shard_count(); ++i) {
      const uint32_t count = layout_->shards()[i].size;
      const size_t size = EncodedBytes(CodecId::kFp16, count);
      std::shared_ptr<uint8_t[]> memory = client_->PayloadMemory(i, size);  // As a worker does it.
      if (memory == nullptr) memory.reset(new uint8_t[size]);
      Encode(CodecId::kFp16, values.data(), count, memory.get());
      gradients_[i].codec = CodecId::kFp16;
      gradients_[i].payload.Append(memory.get(), size, memory);
    }
  }

  absl::Status Once(FrameKind kind) {
    FrameHeader header;
    header.reply_codec = static_cast<uint8_t>(CodecId::kFp16);
    header.samples = 1;
    std::vector<EncodedShard> shards(layout_->shard_count());
    if (kind != FrameKind::kPull) {
      header.step = next_step_++;
      shards = gradients_;
      for (EncodedShard& shard : shards) shard.version = 0;
    }
    uint64_t bytes = 0;
    // Each is let go as it comes, as a worker does once it has adopted it.
    const auto count = [&bytes](const Frame& reply) { bytes += reply.header.payload_bytes; };
    for (const auto& reply :
         client_->CallAll(kind, FramesFor(*layout_, header, identity_, shards), absl::Minutes(1), count)) {
      RECON_RETURN_IF_ERROR(reply.status());
    }
    const uint64_t expected = kind == FrameKind::kPush ? 0 : EncodedBytes(CodecId::kFp16, layout_->params());
    if (bytes == expected) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("replies have ", bytes, " bytes, expected ", expected));
  }

  const PushWorkerOptions options_;
  const WorkerSecret secret_ = WorkerSecret::Draw();
  std::unique_ptr<ParamLayout> layout_;
  WorkerIdentity identity_;
  std::unique_ptr<ControlClient> control_;
  std::shared_ptr<SendWindow> window_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<ParamClient> client_;
  std::vector<EncodedShard> gradients_;
  std::atomic<uint64_t> next_step_{0};
};

}  // namespace

absl::Status RunTcpSink() {
  TuneProcess();
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 4) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return absl::UnavailableError("cannot listen");
  }
  Print(absl::StrCat(ntohs(address.sin_port)));
  while (true) {
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) return absl::UnavailableError("accept failed");
    std::thread([fd] {
      std::vector<char> buffer(kTcpBytes);
      while (read(fd, buffer.data(), buffer.size()) > 0) {
      }
      close(fd);
    }).detach();
  }
}

absl::Status RunTcpSource(int port) {
  TuneProcess();
  Print("ready");
  const std::vector<char> buffer(kTcpBytes, 'x');
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    double seconds = 0;
    int connections = 1;
    words >> seconds >> connections;
    const absl::Time end = Now() + absl::Seconds(seconds);
    std::atomic<uint64_t> bytes{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < connections; ++i) {
      threads.emplace_back([&] {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const sockaddr_in address = Loopback(port);
        if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
          while (Now() < end) {
            const ssize_t sent = write(fd, buffer.data(), buffer.size());
            if (sent < 0) break;
            bytes += static_cast<uint64_t>(sent);
          }
        }
        close(fd);
      });
    }
    for (std::thread& thread : threads) thread.join();
    Print(absl::StrCat(bytes.load()));
  }
  return absl::OkStatus();
}

absl::Status RunGrpcSink() {
  TuneProcess();
  TuneGrpc();
  const PollerLimit poller_limit;
  DroppingService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::UnavailableError("cannot listen");
  Print(absl::StrCat(port));
  server->Wait();
  return absl::OkStatus();
}

absl::Status RunGrpcSource(int port) {
  TuneProcess();
  TuneGrpc();
  const PollerLimit poller_limit;
  Print("ready");
  const std::string bytes(kGrpcMessageBytes, 'x');
  const grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  const grpc::ByteBuffer message(&slice, 1);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    double seconds = 0;
    int connections = 1;
    words >> seconds >> connections;
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    for (int i = 0; i < connections; ++i) {
      grpc::ChannelArguments args;
      args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
      args.SetInt("recon.connection", i);  // Channels of different arguments do not share a connection.
      channels.push_back(grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                                   grpc::InsecureChannelCredentials(), args));
      if (!channels.back()->WaitForConnected(absl::ToChronoTime(WallNow() + absl::Seconds(10)))) {
        return absl::UnavailableError("cannot connect");
      }
    }
    const absl::Time end = Now() + absl::Seconds(seconds);
    std::vector<std::unique_ptr<Blaster>> blasters;
    for (const auto& channel : channels) {
      blasters.push_back(std::make_unique<Blaster>(channel, &message, end));
    }
    uint64_t total = 0;
    for (const auto& blaster : blasters) total += blaster->Wait();
    Print(absl::StrCat(total));
  }
  return absl::OkStatus();
}

absl::Status RunPushWorker(const PushWorkerOptions& options) {
  TuneProcess();
  TuneGrpc();
  const PollerLimit poller_limit;
  PushWorker worker(options);
  RECON_RETURN_IF_ERROR(worker.Join());
  Print("ready");
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    double seconds = 0, pause_ms = 0;
    int depth = 1;
    words >> verb >> seconds >> depth >> pause_ms;
    const FrameKind kind = verb == "pull"   ? FrameKind::kPull
                           : verb == "push" ? FrameKind::kPush
                                            : FrameKind::kPushPull;
    Print(worker.Run(kind, seconds, depth, absl::Milliseconds(pause_ms)).dump());
  }
  return absl::OkStatus();
}

}  // namespace recon
