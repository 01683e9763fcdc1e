#include "server/dashboard/dashboard.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/json/message_json.h"
#include "server/dashboard/job_json.h"
#include "server/dashboard/page_files.h"

namespace recon {
namespace {

// Answers that are kept for whoever asks the same of the same status.
constexpr size_t kRenderedMax = 8;
constexpr char kNoSnapshots[] = R"({"loading":false,"error":"","snapshots":[],"verify":null})";

// Names by which this machine may be asked: that of the flag, and its own.
std::vector<std::string> OwnNames(const std::string& address) {
  std::vector<std::string> names = {absl::AsciiStrToLower(address.substr(0, address.rfind(':')))};
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) == 0 && name[0] != '\0') {
    names.push_back(absl::AsciiStrToLower(name));
    names.push_back(names.back().substr(0, names.back().find('.')));
  }
  return names;
}

WebResponse JsonResponse(std::shared_ptr<const std::string> body) {
  WebResponse response;
  response.content_type = "application/json";
  response.body = std::move(body);
  return response;
}

WebResponse PageFileResponse(const std::string& path) {
  // Each file's text once, for all clients.
  static const auto* const kFiles = [] {
    auto* files = new std::map<std::string, WebResponse>;
    for (size_t i = 0; i < kPageFileCount; ++i) {
      const PageFile& file = kPageFiles[i];
      WebResponse& response = (*files)[file.path];
      response.content_type = absl::StrCat(file.content_type, "; charset=utf-8");
      response.body =
          std::make_shared<const std::string>(reinterpret_cast<const char*>(file.bytes), file.size);
    }
    return files;
  }();
  const auto found = kFiles->find(path);
  return found == kFiles->end() ? TextResponse(404, "there is nothing here\n") : found->second;
}

}  // namespace

Dashboard::Dashboard(bool tls, RequestChecks checks) : tls_(tls), checks_(std::move(checks)) {}

absl::StatusOr<std::unique_ptr<Dashboard>> Dashboard::Start(const std::string& address, const TlsFlags& tls) {
  const bool encrypted = !tls.cert.empty();
  std::unique_ptr<Dashboard> dashboard(new Dashboard(encrypted, RequestChecks(encrypted, OwnNames(address))));
  RECON_ASSIGN_OR_RETURN(
      dashboard->http_,
      HttpServer::Start({"--dashboard", address, tls}, [owner = dashboard.get()](const WebRequest& request) {
        return owner->Handle(request);
      }));
  return dashboard;
}

Dashboard::~Dashboard() {
  http_ = nullptr;
  Detach();
}

void Dashboard::Attach(HistoryKeeper* history, std::shared_ptr<ObjectStore> snapshots,
                       MayObserve may_observe) {
  MutexLock lock(&mu_);
  history_ = history;
  may_observe_ = std::move(may_observe);
  if (snapshots != nullptr) snapshots_ = std::make_unique<SnapshotView>(std::move(snapshots));
}

void Dashboard::Detach() {
  std::unique_ptr<SnapshotView> view;
  {
    MutexLock lock(&mu_);
    history_ = nullptr;
    may_observe_ = nullptr;
    rendered_.clear();
    view.swap(snapshots_);
  }
  if (view == nullptr) return;
  view->GiveUp();
  ended_views_.Post([view = std::move(view)] {});
}

std::string Dashboard::url() const { return absl::StrCat(tls_ ? "https://" : "http://", address(), "/"); }

WebResponse Dashboard::Handle(const WebRequest& request) {
  std::optional<WebResponse> response = checks_.Refusal(request);
  if (!response) {
    MutexLock lock(&mu_);
    response = Answer(request);
  }
  AddSecurityHeaders(&*response);
  return *std::move(response);
}

WebResponse Dashboard::Answer(const WebRequest& request) {
  const std::string& path = request.path;
  if (tls_ && may_observe_ && (request.method == "POST" || absl::StartsWith(path, "/api/"))) {
    const absl::Status may = may_observe_(request.certificate);
    if (!may.ok()) return TextResponse(403, absl::StrCat(may.message(), "\n"));
  }
  if (request.method == "POST") {
    return path == "/api/snapshots/verify" ? Verify(request)
                                           : TextResponse(404, "nothing here takes a POST\n");
  }
  if (path == "/healthz") return TextResponse(200, "ok\n");
  if (path == "/readyz") {
    const auto status = history_ == nullptr ? nullptr : history_->status();
    if (status == nullptr) return TextResponse(503, "the server recovers\n");
    if (status->phase() == PHASE_DRAINING) return TextResponse(503, "the server drains\n");
    return TextResponse(200, "ok\n");
  }
  return absl::StartsWith(path, "/api/") ? Api(request) : PageFileResponse(path);
}

template <typename Render>
Dashboard::Body Dashboard::Shared(const std::string& key, const std::shared_ptr<const StatusReply>& from,
                                  Render render) {
  // Of an older status nobody needs one any more.
  if (!rendered_.empty() && rendered_.begin()->second.from != from) rendered_.clear();
  const auto found = rendered_.find(key);
  if (found != rendered_.end()) return found->second.body;
  if (rendered_.size() >= kRenderedMax) rendered_.clear();
  Body body = std::make_shared<const std::string>(render());
  rendered_[key] = {from, body};
  return body;
}

WebResponse Dashboard::Api(const WebRequest& request) {
  const absl::Time now = Now();
  HistoryKeeper* const history = history_;
  const auto status = history == nullptr ? nullptr : history->status();
  if (status == nullptr) return TextResponse(503, "the server recovers\n");
  history->NoteWatched(now);
  WebResponse response = TextResponse(404, "there is nothing here\n");
  if (request.path == "/api/status") {
    response = JsonResponse(Shared("status", status, [&] { return ToJson(*status); }));
  } else if (request.path == "/api/live") {
    response = JsonResponse(Shared("live", status, [&] {
      std::string json;
      history->Read([&](const History& kept) { json = LiveJson(*status, kept); });
      return json;
    }));
  } else if (request.path == "/api/history") {
    int64_t since_ms = 0;
    const std::string& since = request.Query("since");
    const std::string& worker = request.Query("worker");
    if (!since.empty() && !absl::SimpleAtoi(since, &since_ms))
      return TextResponse(400, "since: expected milliseconds since 1970\n");
    since_ms = std::max<int64_t>(0, since_ms);
    response = JsonResponse(Shared(absl::StrCat("history ", since_ms, " ", worker), status,
                                   [&] { return HistoryJson(history->Encode(worker, since_ms)); }));
  } else if (request.path == "/api/snapshots") {
    response = JsonResponse(std::make_shared<const std::string>(
        snapshots_ == nullptr ? kNoSnapshots : snapshots_->Json(status->snapshot().generation(), now)));
  }
  response.headers.emplace_back("X-Status-Age-Ms",
                                absl::StrCat(absl::ToInt64Milliseconds(now - history->status_at())));
  response.headers.emplace_back("X-Now-Ms", absl::StrCat(absl::ToUnixMillis(WallNow())));
  return response;
}

WebResponse Dashboard::Verify(const WebRequest& request) {
  uint64_t generation = 0;
  if (!absl::SimpleAtoi(request.Query("generation"), &generation) || generation == 0)
    return TextResponse(400, "generation: expected the number of a snapshot\n");
  if (snapshots_ == nullptr) return TextResponse(503, "the server recovers\n");
  const absl::Status status = snapshots_->Verify(generation);
  if (!status.ok()) return TextResponse(409, absl::StrCat(status.message(), "\n"));
  return TextResponse(202, "begun\n");
}

}  // namespace recon
