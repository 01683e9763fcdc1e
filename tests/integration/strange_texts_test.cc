// Names and texts that a stranger sends: nothing of them that is not plain text comes out anywhere.

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "catch2/catch.hpp"
#include "common/base/plain_text.h"
#include "common/base/process.h"
#include "common/storage/http_client.h"
#include "nlohmann/json.hpp"
#include "tests/integration/process_job.h"
#include "tests/support/listening_socket.h"
#include "tests/support/raw_http2.h"

namespace recon {
namespace {

// ESC, C1's ESC [, from right to left, no width, a line's end.
const std::string kStrange = "\x1b[31m\xc2\x9b\xe2\x80\xae\xe2\x80\x8b\xe2\x80\xa8";
const std::string kShown = "\\x1b[31m\\u009b\\u202e\\u200b\\u2028";

std::string FreeAddress() { return ListeningSocket().address(); }

std::string Get(const std::string& url) {
  HttpRequest request;
  request.url = url;
  const auto answer = HttpClient({}).Send(request);
  return answer.ok() && answer->ok() ? answer->body : "";
}

// Lines of UTF-8, each plain.
void CheckIsPlain(const std::string& what, const std::string& text) {
  INFO(what << ": " << EscapeControls(text));
  CHECK(!text.empty());
  CHECK(EscapeControls(text) == absl::StrReplaceAll(text, {{"\n", "\\n"}}));
}

RegisterRequest Registration(const std::string& name, const WorkerSecret& secret) {
  RegisterRequest request;
  request.set_name(name);
  request.set_incarnation(secret.incarnation().value());
  TensorSpec* tensor = request.mutable_model()->add_tensors();
  tensor->set_name("w" + kStrange);
  tensor->add_shape(8);
  request.mutable_model()->set_name("model" + kStrange);
  request.set_device("device" + kStrange);
  request.set_codec("codec" + kStrange);
  request.set_train_samples(1000);
  request.set_test_samples(10);
  return request;
}

}  // namespace

TEST_CASE("texts of strangers reach log, metrics, dashboard and terminal as plain text", "[bad_input]") {
  const std::string metrics = FreeAddress();
  ProcessJob job({"--metrics-address", metrics, "--dashboard", "127.0.0.1:0", "--evict-after", "10m",
                  "--suspect-after", "5m"});
  REQUIRE(job.StartServer());
  const WorkerSecret secret = WorkerSecret::Draw();
  ControlClient client(*ConnectTo(job.address(), {}), absl::Seconds(30), Caller::Worker(secret));
  for (const std::string& name : {"w" + kStrange, std::string("w\xc2\x85"), std::string("w\n")}) {
    const absl::Status refused = client.Register(Registration(name, secret)).status();
    INFO(refused);
    CHECK(absl::IsInvalidArgument(refused));
    CHECK(absl::StrContains(refused.message(), "worker name \"w\\"));
  }
  CHECK_FALSE(client.Register(Registration("w\xff", secret)).ok());  // No UTF-8.
  const std::string name = "w-\xc3\xa9\xe6\xbc\xa2";
  const auto registered = client.Register(Registration(name, secret));
  REQUIRE(registered.status() == absl::OkStatus());
  HeartbeatRequest heartbeat;
  heartbeat.mutable_identity()->set_worker(registered->worker());
  heartbeat.mutable_identity()->set_incarnation(secret.incarnation().value());
  heartbeat.mutable_identity()->set_cluster_epoch(registered->cluster_epoch());
  heartbeat.mutable_progress()->set_diverged("NaN" + kStrange);
  heartbeat.mutable_progress()->mutable_device_status()->set_throttled(true);
  heartbeat.mutable_progress()->mutable_device_status()->set_throttled_why("hot" + kStrange);
  CHECK(client.Heartbeat(heartbeat).status() == absl::OkStatus());
  // A header whose value gRPC does not take, and tells.
  RawSender raw{ConnectTcp(job.address())};
  const std::string call =
      Http2Preface() + Http2Frame(Http2::kHeaders, kEndOfHeaders | kEndOfStream, 1,
                                  HpackCall("/recon.Control/Status", "content-type", "\xff\x80" + kStrange));
  CHECK(Eventually([&] {
    raw.Send(call);
    return raw.sent >= call.size();
  }));
  const std::string dashboard =
      std::string(absl::StripAsciiWhitespace(ReadWholeFile(job.data() + "/DASHBOARD")));
  const auto shows = [&](const std::string& path) {
    return absl::StrContains(Get(dashboard + path), "x1b[31m");
  };
  CHECK(
      Eventually([&] { return absl::StrContains(Get(absl::StrCat("http://", metrics, "/metrics")), name); }));
  CheckIsPlain("metrics", Get(absl::StrCat("http://", metrics, "/metrics")));
  CHECK(Eventually([&] { return shows("api/live") && shows("api/history"); }));
  for (const std::string path : {"api/live", "api/history", "api/status"}) {
    CheckIsPlain(path, Get(dashboard + path));
    CHECK_FALSE(nlohmann::json::parse(Get(dashboard + path), nullptr, false).is_discarded());
  }
  const auto live = nlohmann::json::parse(Get(dashboard + "api/live"), nullptr, false);
  CHECK(live["workers"]["device"][0] == "device" + kShown);
  // JSON for programs has what was sent.
  const auto status = nlohmann::json::parse(Get(dashboard + "api/status"), nullptr, false);
  CHECK(status["members"][0]["device"] == "device" + kStrange);
  CHECK(status["members"][0]["name"] == name);
  for (const std::vector<std::string>& verb : std::vector<std::vector<std::string>>{
           {"status"}, {"status", "--json"}, {"history"}, {"history", "--json"}}) {
    std::vector<std::string> arguments = {"reconctl"};
    arguments.insert(arguments.end(), verb.begin(), verb.end());
    arguments.insert(arguments.end(), {verb[0] == "status" ? "--server" : job.address()});
    if (verb[0] == "status") arguments.push_back(job.address());
    std::string output;
    CHECK(RunProgram(arguments, &output) == 0);
    CheckIsPlain(verb.back(), output);
  }
  LeaveRequest leave;
  *leave.mutable_identity() = heartbeat.identity();
  leave.set_reason("bye" + kStrange);
  CHECK(client.Leave(leave).status() == absl::OkStatus());
  CHECK(Eventually([&] { return absl::StrContains(job.ServerLog(), "bye" + kShown); }));
  CheckIsPlain("log", job.ServerLog());
  CheckIsPlain("audit log", ReadWholeFile(job.data() + "/AUDIT"));
}

}  // namespace recon
