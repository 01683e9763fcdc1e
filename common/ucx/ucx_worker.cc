#include "common/ucx/ucx_worker.h"

#include <netinet/in.h>
#include <poll.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/ucx/ucx_address.h"

namespace recon {
namespace {

// Between two tries where events cannot be waited for.
constexpr absl::Duration kPoll = absl::Milliseconds(1);

}  // namespace

absl::Status UcxWorker::Checked(ucs_status_t status, const std::string& what) const {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("UCX: ", what, ": ", ucx_.ucs_status_string(status)));
}

absl::Status UcxWorker::Open(const std::string& listen, unsigned message, const Handlers& handlers) {
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_config_t* config = nullptr;
  RECON_RETURN_IF_ERROR(Checked(ucx_.ucp_config_read(nullptr, nullptr, &config), "its settings"));
  const ucs_status_t made = ucx_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_.ucp_config_release(config);
  if (made != UCS_OK) context_ = nullptr;
  RECON_RETURN_IF_ERROR(Checked(made, "start"));
  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  RECON_RETURN_IF_ERROR(
      Checked(ucx_.ucp_worker_create(context_, &worker_params, &worker_), "create a worker"));
  RECON_RETURN_IF_ERROR(Checked(ucx_.ucp_worker_get_efd(worker_, &wake_up_), "wake up"));
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = message;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.arg = handlers.arg;
  handler.cb = handlers.on_message;
  RECON_RETURN_IF_ERROR(Checked(ucx_.ucp_worker_set_am_recv_handler(worker_, &handler), "receive"));
  return listen.empty() ? absl::OkStatus() : Listen(listen, handlers);
}

absl::Status UcxWorker::Listen(const std::string& listen, const Handlers& handlers) {
  RECON_ASSIGN_OR_RETURN(const UcxAddress address, UcxAddress::Resolve(listen));
  ucp_listener_params_t listening = {};
  listening.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  listening.sockaddr.addr = address.get();
  listening.sockaddr.addrlen = address.bytes;
  listening.conn_handler.arg = handlers.arg;
  listening.conn_handler.cb = handlers.on_connection;
  RECON_RETURN_IF_ERROR(
      Checked(ucx_.ucp_listener_create(worker_, &listening, &listener_), absl::StrCat("listen on ", listen)));
  ucp_listener_attr_t attributes = {};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  RECON_RETURN_IF_ERROR(Checked(ucx_.ucp_listener_query(listener_, &attributes), "listen"));
  const auto* bound = &attributes.sockaddr;
  port_ = ntohs(bound->ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(bound)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(bound)->sin_port);
  any_host_ = address.any();
  return absl::OkStatus();
}

void UcxWorker::CloseListener() {
  if (listener_ != nullptr) ucx_.ucp_listener_destroy(std::exchange(listener_, nullptr));
}

void UcxWorker::Close() {
  if (worker_ != nullptr) ucx_.ucp_worker_destroy(std::exchange(worker_, nullptr));
  if (context_ != nullptr) ucx_.ucp_cleanup(std::exchange(context_, nullptr));
}

void UcxWorker::Wait() const {
  const ucs_status_t armed = ucx_.ucp_worker_arm(worker_);
  if (armed == UCS_ERR_BUSY) return;
  pollfd event = {wake_up_, POLLIN, 0};
  // If UCX cannot tell, it is asked again and again.
  poll(&event, 1, armed == UCS_OK ? -1 : static_cast<int>(absl::ToInt64Milliseconds(kPoll)));
}

}  // namespace recon
