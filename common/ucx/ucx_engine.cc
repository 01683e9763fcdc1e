#include "common/ucx/ucx_engine.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/copied_bytes.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/transport/envelope.h"

namespace recon {
namespace {

// All messages are of one kind.
constexpr unsigned kMessages = 1;
constexpr size_t kMessageBytesMax = limits::kFrameBytesMax + kEnvelopeBytes;
// From here on a message is fetched by its receiver (UCX's rendezvous); smaller ones are copied out of UCX's
// memory.
constexpr size_t kFetchedBytes = size_t{16} << 10;
// Buffers that are kept for the next messages, so that each is registered once.
constexpr size_t kBufferBytes = 2 * limits::kFrameTargetBytes;
constexpr size_t kBuffersKept = 64;
constexpr size_t kAlignment = 4096;

absl::Status FromUcx(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("UCX: ", what, ": ", ucs_status_string(status)));
}

// Memory for messages that come. Thread-safe; buffers may outlive it.
class Buffers : public std::enable_shared_from_this<Buffers> {
 public:
  ~Buffers() {
    for (uint8_t* buffer : free_) std::free(buffer);
  }

  std::shared_ptr<uint8_t> Take(size_t bytes) {
    if (bytes > kBufferBytes) {
      auto* large = static_cast<uint8_t*>(
          std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
      return std::shared_ptr<uint8_t>(large, [](uint8_t* at) { std::free(at); });
    }
    uint8_t* buffer = nullptr;
    {
      MutexLock lock(&mu_);
      if (!free_.empty()) {
        buffer = free_.back();
        free_.pop_back();
      }
    }
    if (buffer == nullptr) buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
    return std::shared_ptr<uint8_t>(buffer, [pool = shared_from_this()](uint8_t* at) { pool->Give(at); });
  }

 private:
  void Give(uint8_t* buffer) {
    {
      MutexLock lock(&mu_);
      if (free_.size() < kBuffersKept) {
        free_.push_back(buffer);
        return;
      }
    }
    std::free(buffer);
  }

  Mutex mu_;
  std::vector<uint8_t*> free_ ABSL_GUARDED_BY(mu_);
};

// A message on its way out: UCX reads it where it lies.
struct Sending {
  ByteChain message;
  std::vector<ucp_dt_iov_t> pieces;
};

// A message on its way in.
struct Receiving {
  UcxCore* core = nullptr;
  uint64_t connection = 0;
  std::shared_ptr<uint8_t> buffer;
};

}  // namespace

class UcxCore : public std::enable_shared_from_this<UcxCore> {
 public:
  explicit UcxCore(UcxEngine::Callbacks callbacks) : callbacks_(std::move(callbacks)) {}
  ~UcxCore() { CloseUcx(); }

  absl::Status Open(const UcxAddress* listen);
  void Start() {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "ucx");
      Run();
    });
  }
  void Stop() {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
    }
    ucp_worker_signal(worker_);
    thread_.join();
    MutexLock lock(&mu_);
    CloseUcx();
  }

  int port() const { return port_; }

  uint64_t Connect(const UcxAddress& address) {
    Command command;
    command.kind = Command::kConnect;
    command.connection = next_connection_.fetch_add(1);
    command.address = address;
    const uint64_t connection = command.connection;
    Post(std::move(command));
    return connection;
  }

  void Send(uint64_t connection, const ByteChain& message) {
    Command command;
    command.kind = Command::kSend;
    command.connection = connection;
    command.message = message;
    Post(std::move(command));
  }

  void Close(uint64_t connection) {
    Command command;
    command.kind = Command::kClose;
    command.connection = connection;
    Post(std::move(command));
  }

 private:
  struct Command {
    enum Kind { kConnect, kSend, kClose } kind = kSend;
    uint64_t connection = 0;
    UcxAddress address;
    ByteChain message;
  };

  // For UCX's thread to do.
  void Post(Command command) {
    MutexLock lock(&mu_);
    if (ended_) return;
    commands_.push_back(std::move(command));
    if (commands_.size() == 1) ucp_worker_signal(worker_);  // Otherwise it has been woken.
  }

  void CloseUcx() {
    if (worker_ != nullptr) ucp_worker_destroy(std::exchange(worker_, nullptr));
    if (context_ != nullptr) ucp_cleanup(std::exchange(context_, nullptr));
  }
  void Run();
  bool Sleep();
  void Execute(Command command);
  void OnConnect(uint64_t connection, const ucp_ep_params_t& how);
  void OnSend(uint64_t connection, ucp_ep_h endpoint, ByteChain message);
  void EndFailed();
  void End(uint64_t connection, const absl::Status& why);
  ucs_status_t OnMessage(void* data, size_t bytes, const ucp_am_recv_param_t* param);
  ucs_status_t Fetch(uint64_t connection, void* description, size_t bytes);
  void OnFetched(const Receiving& into, ucs_status_t status, size_t bytes);
  void Deliver(uint64_t connection, const ByteChain& message);

  const UcxEngine::Callbacks callbacks_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  int wake_up_ = -1;
  int port_ = 0;
  const std::shared_ptr<Buffers> buffers_ = std::make_shared<Buffers>();
  std::atomic<uint64_t> next_connection_{1};
  std::thread thread_;

  // Its thread's. UCX calls back in the middle of things: what that asks for is done afterwards.
  std::map<uint64_t, ucp_ep_h> endpoints_;
  std::map<ucp_ep_h, uint64_t> connections_;
  std::vector<std::pair<uint64_t, absl::Status>> failed_;
  std::vector<ucp_conn_request_h> accepted_;
  int closing_ = 0;

  Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

absl::Status UcxCore::Open(const UcxAddress* listen) {
  // A server that starts again listens on its port at once.
  setenv("UCX_TCP_CM_REUSEADDR", "y", /*overwrite=*/0);
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_config_t* config = nullptr;
  RECON_RETURN_IF_ERROR(FromUcx(ucp_config_read(nullptr, nullptr, &config), "its settings"));
  const ucs_status_t made = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (made != UCS_OK) context_ = nullptr;
  RECON_RETURN_IF_ERROR(FromUcx(made, "start"));
  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  RECON_RETURN_IF_ERROR(FromUcx(ucp_worker_create(context_, &worker_params, &worker_), "create a worker"));
  RECON_RETURN_IF_ERROR(FromUcx(ucp_worker_get_efd(worker_, &wake_up_), "wake up"));
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kMessages;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.arg = this;
  handler.cb = [](void* core, const void*, size_t, void* data, size_t bytes,
                  const ucp_am_recv_param_t* param) {
    return static_cast<UcxCore*>(core)->OnMessage(data, bytes, param);
  };
  RECON_RETURN_IF_ERROR(FromUcx(ucp_worker_set_am_recv_handler(worker_, &handler), "receive"));
  if (listen == nullptr) return absl::OkStatus();
  ucp_listener_params_t listening = {};
  listening.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  listening.sockaddr.addr = reinterpret_cast<const sockaddr*>(&listen->address);
  listening.sockaddr.addrlen = listen->bytes;
  listening.conn_handler.arg = this;
  listening.conn_handler.cb = [](ucp_conn_request_h request, void* core) {
    static_cast<UcxCore*>(core)->accepted_.push_back(request);
  };
  RECON_RETURN_IF_ERROR(FromUcx(ucp_listener_create(worker_, &listening, &listener_), "listen"));
  ucp_listener_attr_t attributes = {};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  RECON_RETURN_IF_ERROR(FromUcx(ucp_listener_query(listener_, &attributes), "listen"));
  const auto* bound = &attributes.sockaddr;
  port_ = ntohs(bound->ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(bound)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(bound)->sin_port);
  return absl::OkStatus();
}

void UcxCore::Run() {
  while (true) {
    std::vector<Command> commands;
    {
      MutexLock lock(&mu_);
      if (stopping_) break;
      commands.swap(commands_);
    }
    for (Command& command : commands) Execute(std::move(command));
    const bool idle =
        ucp_worker_progress(worker_) == 0 && commands.empty() && accepted_.empty() && failed_.empty();
    for (ucp_conn_request_h request : std::exchange(accepted_, {})) {
      if (connections_.size() >= limits::kMembersMax) {
        ucp_listener_reject(listener_, request);
        continue;
      }
      ucp_ep_params_t how = {};
      how.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
      how.conn_request = request;
      const uint64_t connection = next_connection_.fetch_add(1);
      callbacks_.on_accepted(connection);
      OnConnect(connection, how);
    }
    EndFailed();
    if (idle && !Sleep()) break;
  }
  while (!endpoints_.empty())
    End(endpoints_.begin()->first, absl::UnavailableError("the connection was closed"));
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  while (closing_ > 0) ucp_worker_progress(worker_);
  std::vector<Command> left;
  {
    MutexLock lock(&mu_);
    ended_ = true;
    left.swap(commands_);
  }
  for (Command& command : left) {
    if (command.kind == Command::kConnect) {
      callbacks_.on_closed(command.connection, absl::UnavailableError("the connection was closed"));
    }
  }
}

// Until there is something to do. False if UCX is broken.
bool UcxCore::Sleep() {
  const ucs_status_t armed = ucp_worker_arm(worker_);
  if (armed == UCS_ERR_BUSY) return true;
  if (armed != UCS_OK) {
    spdlog::error("UCX cannot wait for events: {}", ucs_status_string(armed));
    return false;
  }
  pollfd event = {wake_up_, POLLIN, 0};
  poll(&event, 1, -1);
  return true;
}

void UcxCore::Execute(Command command) {
  if (command.kind == Command::kConnect) {
    ucp_ep_params_t how = {};
    how.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    how.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    how.sockaddr.addr = reinterpret_cast<const sockaddr*>(&command.address.address);
    how.sockaddr.addrlen = command.address.bytes;
    return OnConnect(command.connection, how);
  }
  const auto found = endpoints_.find(command.connection);
  if (found == endpoints_.end()) return;
  if (command.kind == Command::kSend) {
    return OnSend(command.connection, found->second, std::move(command.message));
  }
  End(command.connection, absl::UnavailableError("the connection was closed"));
}

void UcxCore::OnConnect(uint64_t connection, const ucp_ep_params_t& how) {
  ucp_ep_params_t params = how;
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = this;
  params.err_handler.cb = [](void* arg, ucp_ep_h failed, ucs_status_t status) {
    auto* core = static_cast<UcxCore*>(arg);
    const auto found = core->connections_.find(failed);
    if (found == core->connections_.end()) return;
    core->failed_.emplace_back(found->second, FromUcx(status, "connection"));
  };
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t created = ucp_ep_create(worker_, &params, &endpoint);
  if (created != UCS_OK) return callbacks_.on_closed(connection, FromUcx(created, "connect"));
  endpoints_[connection] = endpoint;
  connections_[endpoint] = connection;
}

void UcxCore::OnSend(uint64_t connection, ucp_ep_h endpoint, ByteChain message) {
  auto* sending = new Sending{std::move(message), {}};
  for (const ByteChain::Piece& piece : sending->message.pieces()) {
    sending->pieces.push_back({const_cast<uint8_t*>(piece.data), piece.size});
  }
  ucp_request_param_t how = {};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                     UCP_OP_ATTR_FIELD_FLAGS;
  how.flags = UCP_AM_SEND_FLAG_REPLY;  // Tells the receiver on which connection.
  // It is fetched to where it is used. Small ones are not worth a round trip.
  if (sending->message.size() >= kFetchedBytes) how.flags |= UCP_AM_SEND_FLAG_RNDV;
  how.datatype = ucp_dt_make_iov();
  how.user_data = sending;
  how.cb.send = [](void* request, ucs_status_t, void* sent) {  // An error ends the connection, too.
    delete static_cast<Sending*>(sent);
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint, kMessages, nullptr, 0, sending->pieces.data(), sending->pieces.size(), &how);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) return;
  delete sending;
  if (UCS_PTR_IS_ERR(request)) failed_.emplace_back(connection, FromUcx(UCS_PTR_STATUS(request), "send"));
}

void UcxCore::EndFailed() {
  for (const auto& [connection, why] : std::exchange(failed_, {})) End(connection, why);
}

void UcxCore::End(uint64_t connection, const absl::Status& why) {
  const auto found = endpoints_.find(connection);
  if (found == endpoints_.end()) return;  // It has ended for another reason.
  ucp_ep_h endpoint = found->second;
  endpoints_.erase(found);
  connections_.erase(endpoint);
  ucp_request_param_t how = {};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  how.flags = UCP_EP_CLOSE_FLAG_FORCE;
  how.user_data = this;
  how.cb.send = [](void* request, ucs_status_t, void* core) {
    --static_cast<UcxCore*>(core)->closing_;
    ucp_request_free(request);
  };
  ++closing_;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &how);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) --closing_;
  callbacks_.on_closed(connection, why);
}

ucs_status_t UcxCore::OnMessage(void* data, size_t bytes, const ucp_am_recv_param_t* param) {
  const bool said = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  const auto found = connections_.find(said ? param->reply_ep : nullptr);
  if (found == connections_.end()) return UCS_OK;
  const uint64_t connection = found->second;
  if (bytes > kMessageBytesMax) {
    failed_.emplace_back(connection,
                         absl::DataLossError(absl::StrCat("UCX: a message of ", bytes, " bytes")));
    return UCS_OK;
  }
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return Fetch(connection, data, bytes);
  CountCopy(CopyReason::kUcx, bytes);
  Deliver(connection, ByteChain::FromString(std::string(static_cast<const char*>(data), bytes)));
  return UCS_OK;
}

// A message that its sender has in its memory still.
ucs_status_t UcxCore::Fetch(uint64_t connection, void* description, size_t bytes) {
  auto receiving = std::make_unique<Receiving>(Receiving{this, connection, buffers_->Take(bytes)});
  ucp_request_param_t how = {};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  how.user_data = receiving.get();
  how.cb.recv_am = [](void* request, ucs_status_t status, size_t received, void* user_data) {
    const std::unique_ptr<Receiving> into(static_cast<Receiving*>(user_data));
    ucp_request_free(request);
    into->core->OnFetched(*into, status, received);
  };
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_, description, receiving->buffer.get(), bytes, &how);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) {
    static_cast<void>(receiving.release());  // Its callback's.
    return UCS_INPROGRESS;
  }
  OnFetched(*receiving, UCS_PTR_STATUS(request), bytes);
  return request == nullptr ? UCS_INPROGRESS : UCS_PTR_STATUS(request);
}

void UcxCore::OnFetched(const Receiving& into, ucs_status_t status, size_t bytes) {
  if (status != UCS_OK) {
    failed_.emplace_back(into.connection, FromUcx(status, "receive"));
    return;
  }
  ByteChain message;
  message.Append(into.buffer.get(), bytes, into.buffer);
  Deliver(into.connection, message);
}

void UcxCore::Deliver(uint64_t connection, const ByteChain& message) {
  if (endpoints_.count(connection) > 0) callbacks_.on_message({shared_from_this(), connection}, message);
}

void UcxSender::Send(const ByteChain& message) const { core_->Send(connection_, message); }

void UcxSender::Close() const { core_->Close(connection_); }

absl::StatusOr<std::unique_ptr<UcxEngine>> UcxEngine::Start(const UcxAddress* listen, Callbacks callbacks) {
  auto core = std::make_shared<UcxCore>(std::move(callbacks));
  RECON_RETURN_IF_ERROR(core->Open(listen));
  core->Start();
  return std::unique_ptr<UcxEngine>(new UcxEngine(std::move(core)));
}

UcxEngine::~UcxEngine() { core_->Stop(); }

int UcxEngine::port() const { return core_->port(); }

uint64_t UcxEngine::Connect(const UcxAddress& address) { return core_->Connect(address); }

absl::StatusOr<UcxAddress> ResolveUcx(const std::string& host_port) {
  const size_t colon = host_port.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(host_port.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("UCX: ", host_port, ": expected HOST:PORT"));
  }
  absl::string_view host(host_port.data(), colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(std::string(host).c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (failure != 0)
    return absl::UnavailableError(absl::StrCat("UCX: ", host_port, ": ", gai_strerror(failure)));
  UcxAddress address;
  address.bytes = found->ai_addrlen;
  std::memcpy(&address.address, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

}  // namespace recon
