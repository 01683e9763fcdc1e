#pragma once

#include <ucp/api/ucp.h>

#include "absl/status/statusor.h"

namespace recon {

// The functions of libucp, which is loaded when UCX is first used: loading it changes a process (handlers of
// signals, memory functions), and programs that do without need not have it.
// clang-format off
#define RECON_UCX_FUNCTIONS(X) \
  X(ucp_am_recv_data_nbx) \
  X(ucp_am_send_nbx) \
  X(ucp_cleanup) \
  X(ucp_config_read) \
  X(ucp_config_release) \
  X(ucp_ep_close_nbx) \
  X(ucp_ep_create) \
  X(ucp_init_version) \
  X(ucp_listener_create) \
  X(ucp_listener_destroy) \
  X(ucp_listener_query) \
  X(ucp_listener_reject) \
  X(ucp_request_free) \
  X(ucp_worker_arm) \
  X(ucp_worker_create) \
  X(ucp_worker_destroy) \
  X(ucp_worker_get_efd) \
  X(ucp_worker_progress) \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_worker_signal) \
  X(ucs_status_string)
// clang-format on

struct UcxLibrary {
#define RECON_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  RECON_UCX_FUNCTIONS(RECON_UCX_MEMBER)
#undef RECON_UCX_MEMBER
};

// FailedPrecondition if it is not there. Thread-safe.
absl::StatusOr<const UcxLibrary*> LoadUcx();

}  // namespace recon
