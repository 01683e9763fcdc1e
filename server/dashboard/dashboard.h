#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "common/storage/object_store.h"
#include "common/web/http_server.h"
#include "server/dashboard/request_checks.h"
#include "server/dashboard/snapshot_view.h"
#include "server/history/history_keeper.h"

namespace recon {

// The job in a browser: one page and the data it reads, over HTTP. README.md of this folder says what is
// served where. It serves from the moment the process starts; what it shows of a job comes and goes with
// Attach() and Detach(), as the job does in a rollback. Whatever clients do, training hardly notices: one
// thread, answers that are rendered once for all that ask within half a second, and nothing on the way of a
// push.
//
// Threads: Attach() and Detach() on the owner's thread; requests on the HTTP server's.
class Dashboard {
 public:
  // Listens at `address` (of --dashboard), with `tls` if it has files. Errors as HttpServer::Start() has
  // them.
  static absl::StatusOr<std::unique_ptr<Dashboard>> Start(const std::string& address, const TlsFlags& tls);
  ~Dashboard();

  // OK if the holder of a certificate (DER) may see the job; else why not.
  using MayObserve = std::function<absl::Status(const std::string& certificate)>;
  // The job that is shown from now on. `history` must live until Detach(). `snapshots` may be null, and is
  // used for as long as it takes until it has answered. `may_observe` is called until Detach(), with TLS
  // only, and must not block.
  void Attach(HistoryKeeper* history, std::shared_ptr<ObjectStore> snapshots, MayObserve may_observe);
  // None: its data is answered with 503. Waits for an answer that is being made, and not for the store.
  void Detach();

  // As a browser takes it.
  std::string url() const;
  const std::string& address() const { return http_->address(); }

 private:
  using Body = std::shared_ptr<const std::string>;
  struct Rendered {
    std::shared_ptr<const StatusReply> from;  // Of this status.
    Body body;
  };

  Dashboard(bool tls, RequestChecks checks);
  WebResponse Handle(const WebRequest& request);
  WebResponse Answer(const WebRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  WebResponse Api(const WebRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  WebResponse Verify(const WebRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What was rendered for `key` of this status, or now by `render`.
  template <typename Render>
  Body Shared(const std::string& key, const std::shared_ptr<const StatusReply>& from, Render render)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const bool tls_;
  const RequestChecks checks_;

  Mutex mu_;
  HistoryKeeper* history_ ABSL_GUARDED_BY(mu_) = nullptr;
  MayObserve may_observe_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<SnapshotView> snapshots_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Rendered> rendered_ ABSL_GUARDED_BY(mu_);

  // Where views end: that waits for their stores. ~Dashboard() waits for it.
  Lane ended_views_{"dashboard"};
  std::unique_ptr<HttpServer> http_;  // Last: its handler uses all of this.
};

}  // namespace recon
