#include "common/ucx/ucx_engine.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/copied_bytes.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/transport/envelope.h"
#include "common/ucx/ucx_address.h"
#include "common/ucx/ucx_buffers.h"
#include "common/ucx/ucx_library.h"
#include "common/ucx/ucx_worker.h"

namespace recon {
namespace {

// All messages are of one kind.
constexpr unsigned kMessages = 1;
constexpr size_t kMessageBytesMax = limits::kFrameBytesMax + kEnvelopeBytes;
// From here on a message is fetched by its receiver (UCX's rendezvous); smaller ones are copied out of UCX's
// memory.
constexpr size_t kFetchedBytes = size_t{16} << 10;
// Of a connection, what UCX has to send at a time: the rest waits where it lies. A receiver is never asked to
// fetch more than that and one message.
constexpr size_t kSendingBytesMax = limits::kRequestBytesInFlight;
constexpr size_t kFetchingBytesMax = kSendingBytesMax + kMessageBytesMax;
// For messages under way when all is ended.
constexpr absl::Duration kFarewell = absl::Milliseconds(200);

// A message on its way out. UCX reads a small one where it lies; a large one lies side by side in a buffer of
// the pool: a fabric's adapter takes it from there by itself.
struct Sending {
  UcxCore* core = nullptr;
  uint64_t connection = 0;
  size_t bytes = 0;
  ByteChain message;
  std::vector<ucp_dt_iov_t> pieces;
  std::shared_ptr<uint8_t> buffer;
};

// A message on its way in.
struct Receiving {
  UcxCore* core = nullptr;
  uint64_t connection = 0;
  size_t bytes = 0;
  std::shared_ptr<uint8_t> buffer;
};

}  // namespace

class UcxCore : public std::enable_shared_from_this<UcxCore> {
 public:
  UcxCore(const UcxLibrary* ucx, UcxEngine::Callbacks callbacks)
      : ucx_(*ucx), callbacks_(std::move(callbacks)), worker_(ucx) {}
  ~UcxCore() { worker_.Close(); }  // UCX may call back once more: the rest of this must still be there.

  absl::Status Open(const std::string& listen);
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
    worker_.Signal();
    thread_.join();
    worker_.Close();  // Nobody else uses it any more: ended_.
  }

  int port() const { return worker_.port(); }
  bool any_host() const { return worker_.any_host(); }

  uint64_t Connect(const std::string& address) {
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
    std::string address;
    ByteChain message;
  };

  struct Endpoint {
    ucp_ep_h endpoint = nullptr;
    std::deque<ByteChain> waiting;  // To be sent.
    size_t sending = 0;             // Bytes.
    size_t fetching = 0;
  };

  // For UCX's thread to do.
  void Post(Command command) {
    MutexLock lock(&mu_);
    if (ended_) return;
    commands_.push_back(std::move(command));
    if (commands_.size() == 1) worker_.Signal();  // Otherwise it has been woken.
  }

  void Run();
  void Execute(Command command);
  void OnConnect(uint64_t connection, const ucp_ep_params_t& how);
  void SendWhatMay(uint64_t connection);
  void StartSend(uint64_t connection, Endpoint* to, ByteChain message);
  void OnSent(std::unique_ptr<Sending> sent);
  void EndFailed();
  void End(uint64_t connection, const absl::Status& why);
  ucs_status_t OnMessage(void* data, size_t bytes, const ucp_am_recv_param_t* param);
  ucs_status_t Fetch(uint64_t connection, void* description, size_t bytes);
  void OnFetched(const Receiving& into, ucs_status_t status);
  void Fail(uint64_t connection, const absl::Status& why) { failed_.emplace_back(connection, why); }
  void Deliver(uint64_t connection, const ByteChain& message);

  const UcxLibrary& ucx_;
  const UcxEngine::Callbacks callbacks_;
  UcxWorker worker_;
  const std::shared_ptr<UcxBuffers> buffers_ = std::make_shared<UcxBuffers>();
  std::atomic<uint64_t> next_connection_{1};
  std::thread thread_;

  // Its thread's. UCX calls back in the middle of things: what that asks for is done afterwards.
  std::map<uint64_t, Endpoint> endpoints_;
  std::map<ucp_ep_h, uint64_t> connections_;
  std::vector<std::pair<uint64_t, absl::Status>> failed_;
  std::vector<ucp_conn_request_h> accepted_;
  std::set<uint64_t> may_send_;  // Something of theirs was sent.
  int under_way_ = 0;            // Messages and closings whose callbacks are still to come.

  Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

absl::Status UcxCore::Open(const std::string& listen) {
  UcxWorker::Handlers handlers;
  handlers.arg = this;
  handlers.on_message = [](void* core, const void*, size_t, void* data, size_t bytes,
                           const ucp_am_recv_param_t* param) {
    return static_cast<UcxCore*>(core)->OnMessage(data, bytes, param);
  };
  handlers.on_connection = [](ucp_conn_request_h request, void* core) {
    static_cast<UcxCore*>(core)->accepted_.push_back(request);
  };
  return worker_.Open(listen, kMessages, handlers);
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
    const bool idle = ucx_.ucp_worker_progress(worker_.get()) == 0 && commands.empty() && accepted_.empty() &&
                      failed_.empty() && may_send_.empty();
    for (const uint64_t connection : std::exchange(may_send_, {})) SendWhatMay(connection);
    for (ucp_conn_request_h request : std::exchange(accepted_, {})) {
      if (endpoints_.size() >= limits::kMembersMax) {
        ucx_.ucp_listener_reject(worker_.listener(), request);
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
    if (idle) worker_.Wait();
  }
  for (ucp_conn_request_h request : std::exchange(accepted_, {}))
    ucx_.ucp_listener_reject(worker_.listener(), request);
  while (!endpoints_.empty())
    End(endpoints_.begin()->first, absl::UnavailableError("the connection was closed"));
  worker_.CloseListener();
  // What UCX does not give back by then goes with its worker.
  const absl::Time give_up = Now() + kFarewell;
  while (under_way_ > 0 && Now() < give_up) ucx_.ucp_worker_progress(worker_.get());
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

void UcxCore::Execute(Command command) {
  if (command.kind == Command::kConnect) {
    const absl::StatusOr<UcxAddress> address = UcxAddress::Resolve(command.address);
    if (!address.ok()) return callbacks_.on_closed(command.connection, address.status());
    ucp_ep_params_t how = {};
    how.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    how.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    how.sockaddr.addr = address->get();
    how.sockaddr.addrlen = address->bytes;
    return OnConnect(command.connection, how);
  }
  const auto found = endpoints_.find(command.connection);
  if (found == endpoints_.end()) return;
  if (command.kind == Command::kSend) {
    found->second.waiting.push_back(std::move(command.message));
    return SendWhatMay(command.connection);
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
    if (found != core->connections_.end())
      core->Fail(found->second, core->worker_.Checked(status, "connection"));
  };
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t created = ucx_.ucp_ep_create(worker_.get(), &params, &endpoint);
  if (created != UCS_OK) return callbacks_.on_closed(connection, worker_.Checked(created, "connect"));
  endpoints_[connection].endpoint = endpoint;
  connections_[endpoint] = connection;
}

void UcxCore::SendWhatMay(uint64_t connection) {
  const auto found = endpoints_.find(connection);
  if (found == endpoints_.end()) return;
  Endpoint& to = found->second;
  while (!to.waiting.empty() &&
         (to.sending == 0 || to.sending + to.waiting.front().size() <= kSendingBytesMax)) {
    ByteChain message = std::move(to.waiting.front());
    to.waiting.pop_front();
    StartSend(connection, &to, std::move(message));
  }
}

void UcxCore::StartSend(uint64_t connection, Endpoint* to, ByteChain message) {
  auto sending = std::make_unique<Sending>();
  sending->core = this;
  sending->connection = connection;
  sending->bytes = message.size();
  to->sending += message.size();
  ucp_request_param_t how = {};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                     UCP_OP_ATTR_FIELD_FLAGS;
  how.flags = UCP_AM_SEND_FLAG_REPLY;  // Tells the receiver on which connection.
  how.user_data = sending.get();
  how.cb.send = [](void* request, ucs_status_t, void* user_data) {  // An error ends the connection, too.
    std::unique_ptr<Sending> sent(static_cast<Sending*>(user_data));
    sent->core->ucx_.ucp_request_free(request);
    --sent->core->under_way_;
    sent->core->OnSent(std::move(sent));
  };
  const void* data = nullptr;
  size_t count = 0;
  if (message.size() >= kFetchedBytes) {
    how.flags |= UCP_AM_SEND_FLAG_RNDV;
    how.datatype = ucp_dt_make_contig(1);
    sending->buffer = buffers_->Take(message.size());
    uint8_t* end = sending->buffer.get();
    for (const ByteChain::Piece& piece : message.pieces()) {
      std::memcpy(end, piece.data, piece.size);
      end += piece.size;
    }
    CountCopy(CopyReason::kUcx, message.size());
    data = sending->buffer.get();
    count = message.size();
  } else {
    how.datatype = ucp_dt_make_iov();
    for (const ByteChain::Piece& piece : message.pieces()) {
      sending->pieces.push_back({const_cast<uint8_t*>(piece.data), piece.size});
    }
    data = sending->pieces.data();
    count = sending->pieces.size();
    sending->message = std::move(message);
  }
  const ucs_status_ptr_t request =
      ucx_.ucp_am_send_nbx(to->endpoint, kMessages, nullptr, 0, data, count, &how);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) {
    static_cast<void>(sending.release());  // Its callback's.
    ++under_way_;
    return;
  }
  if (UCS_PTR_IS_ERR(request)) Fail(connection, worker_.Checked(UCS_PTR_STATUS(request), "send"));
  OnSent(std::move(sending));
}

void UcxCore::OnSent(std::unique_ptr<Sending> sent) {
  const auto found = endpoints_.find(sent->connection);
  if (found == endpoints_.end()) return;
  found->second.sending -= sent->bytes;
  may_send_.insert(sent->connection);
}

void UcxCore::EndFailed() {
  for (const auto& [connection, why] : std::exchange(failed_, {})) End(connection, why);
}

void UcxCore::End(uint64_t connection, const absl::Status& why) {
  const auto found = endpoints_.find(connection);
  if (found == endpoints_.end()) return;  // It has ended for another reason.
  ucp_ep_h endpoint = found->second.endpoint;
  endpoints_.erase(found);  // And what waits.
  connections_.erase(endpoint);
  ucp_request_param_t how = {};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  how.flags = UCP_EP_CLOSE_FLAG_FORCE;
  how.user_data = this;
  how.cb.send = [](void* request, ucs_status_t, void* arg) {
    auto* core = static_cast<UcxCore*>(arg);
    --core->under_way_;
    core->ucx_.ucp_request_free(request);
  };
  ++under_way_;
  const ucs_status_ptr_t request = ucx_.ucp_ep_close_nbx(endpoint, &how);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) --under_way_;
  callbacks_.on_closed(connection, why);
}

ucs_status_t UcxCore::OnMessage(void* data, size_t bytes, const ucp_am_recv_param_t* param) {
  const bool said = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  const auto found = connections_.find(said ? param->reply_ep : nullptr);
  if (found == connections_.end()) return UCS_OK;
  const uint64_t connection = found->second;
  if (bytes > kMessageBytesMax) {
    Fail(connection, absl::DataLossError(absl::StrCat("UCX: a message of ", bytes, " bytes")));
    return UCS_OK;
  }
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return Fetch(connection, data, bytes);
  CountCopy(CopyReason::kUcx, bytes);
  Deliver(connection, ByteChain::FromString(std::string(static_cast<const char*>(data), bytes)));
  return UCS_OK;
}

// A message that its sender has in its memory still.
ucs_status_t UcxCore::Fetch(uint64_t connection, void* description, size_t bytes) {
  Endpoint& from = endpoints_[connection];
  if (from.fetching + bytes > kFetchingBytesMax) {
    Fail(connection, absl::ResourceExhaustedError("the other end sends more than its credit"));
    return UCS_OK;
  }
  from.fetching += bytes;
  auto receiving = std::make_unique<Receiving>(Receiving{this, connection, bytes, buffers_->Take(bytes)});
  ucp_request_param_t how = {};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  how.user_data = receiving.get();
  how.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user_data) {
    const std::unique_ptr<Receiving> into(static_cast<Receiving*>(user_data));
    into->core->ucx_.ucp_request_free(request);
    --into->core->under_way_;
    into->core->OnFetched(*into, status);
  };
  const ucs_status_ptr_t request =
      ucx_.ucp_am_recv_data_nbx(worker_.get(), description, receiving->buffer.get(), bytes, &how);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) {
    static_cast<void>(receiving.release());  // Its callback's.
    ++under_way_;
    return UCS_INPROGRESS;
  }
  OnFetched(*receiving, UCS_PTR_STATUS(request));
  return request == nullptr ? UCS_INPROGRESS : UCS_PTR_STATUS(request);
}

void UcxCore::OnFetched(const Receiving& into, ucs_status_t status) {
  const auto found = endpoints_.find(into.connection);
  if (found == endpoints_.end()) return;
  found->second.fetching -= into.bytes;
  if (status != UCS_OK) return Fail(into.connection, worker_.Checked(status, "receive"));
  ByteChain message;
  message.Append(into.buffer.get(), into.bytes, into.buffer);
  Deliver(into.connection, message);
}

void UcxCore::Deliver(uint64_t connection, const ByteChain& message) {
  callbacks_.on_message({shared_from_this(), connection}, message);
}

void UcxSender::Send(const ByteChain& message) const { core_->Send(connection_, message); }

void UcxSender::Close() const { core_->Close(connection_); }

absl::StatusOr<std::unique_ptr<UcxEngine>> UcxEngine::Start(const std::string& listen, Callbacks callbacks) {
  RECON_ASSIGN_OR_RETURN(const UcxLibrary* ucx, LoadUcx());
  auto core = std::make_shared<UcxCore>(ucx, std::move(callbacks));
  RECON_RETURN_IF_ERROR(core->Open(listen));
  core->Start();
  return std::unique_ptr<UcxEngine>(new UcxEngine(std::move(core)));
}

UcxEngine::~UcxEngine() { core_->Stop(); }

int UcxEngine::port() const { return core_->port(); }

bool UcxEngine::any_host() const { return core_->any_host(); }

uint64_t UcxEngine::Connect(const std::string& address) { return core_->Connect(address); }

}  // namespace recon
