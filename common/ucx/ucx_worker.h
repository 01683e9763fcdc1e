#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/ucx/ucx_library.h"

namespace recon {

// What a UcxEngine has of UCX: its context, a worker (UCX's word for a set of connections that one thread
// drives), and a listener if somebody may connect.
//
// Threads: Signal() on any, while it is open; all else on one. Ownership: it closes in its destructor what is
// open; nobody may use the worker any more then. `ucx` is the loaded library, which stays loaded.
class UcxWorker {
 public:
  // UCX calls these with `arg`, on the thread that drives the worker.
  struct Handlers {
    void* arg = nullptr;
    ucp_am_recv_callback_t on_message = nullptr;
    ucp_listener_conn_callback_t on_connection = nullptr;
  };

  explicit UcxWorker(const UcxLibrary* ucx) : ucx_(*ucx) {}
  ~UcxWorker() { Close(); }
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // `listen`: HOST:PORT, or empty if nobody connects here. `message`: the number of the kind of messages
  // that on_message is called for. FailedPrecondition if UCX cannot be used, or the address not be listened
  // on. Once.
  absl::Status Open(const std::string& listen, unsigned message, const Handlers& handlers);
  // Nobody can connect any more.
  void CloseListener();
  void Close();

  // Wait() returns soon, or, if it does not wait, the next one does.
  void Signal() const { ucx_.ucp_worker_signal(worker_); }
  // Until there is something for ucp_worker_progress() to do. It returns after a millisecond where UCX cannot
  // tell.
  void Wait() const;
  // OK, or FailedPrecondition with what UCX says of `status`, and `what` was to be done.
  absl::Status Checked(ucs_status_t status, const std::string& what) const;

  ucp_worker_h get() const { return worker_; }
  ucp_listener_h listener() const { return listener_; }  // Null if nobody connects here.
  // The port that is listened on, and whether on all addresses of the machine.
  int port() const { return port_; }
  bool any_host() const { return any_host_; }

 private:
  absl::Status Listen(const std::string& listen, const Handlers& handlers);

  const UcxLibrary& ucx_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  int wake_up_ = -1;
  int port_ = 0;
  bool any_host_ = false;
};

}  // namespace recon
