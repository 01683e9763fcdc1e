#include "common/storage/hdfs_store.h"

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/hash.h"
#include "tests/common/storage/store_conformance.h"
#include "tests/support/temp_dir.h"
#include "tests/support/webhdfs_test_server.h"
#include "tools/source_paths.h"

namespace recon {
namespace {

using Fault = WebHdfsTestServer::Fault;

HdfsStore::Options TestOptions(absl::Duration patience = absl::Seconds(10)) {
  HdfsStore::Options options;
  options.user = "tester";
  options.patience = patience;
  return options;
}

}  // namespace

TEST_CASE("what Hadoop was recorded to answer is understood", "[hdfs]") {
  int exchanges = 0;
  for (const absl::string_view line : absl::StrSplit(
           ReadWholeFile(InSources("tests/common/storage/webhdfs_recorded.tsv")), '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    REQUIRE(fields.size() == 4);
    const std::string &expected = fields[2], &body = fields[3];
    INFO(fields[0]);
    ++exchanges;
    if (expected == "true" || expected == "false") {
      CHECK(*ParseHdfsBoolean(body) == (expected == "true"));
    } else if (expected == "status") {
      const auto file = ParseHdfsStatus(body);
      REQUIRE(file.ok());
      CHECK(file->directory == absl::StrContains(fields[0], "directory"));
      CHECK(file->bytes == (file->directory ? 0 : 32));
    } else if (expected == "listing") {
      const auto files = ParseHdfsListing(body);
      REQUIRE(files.ok());
      CHECK(files->size() == (absl::StrContains(fields[0], "empty") ? 0 : 7));
    } else {
      const absl::Status error = ParseHdfsError(std::stoi(fields[1]), body, "what");
      CHECK(absl::StatusCodeToString(error.code()) == expected);
      CHECK_FALSE(absl::StrContains(error.message(), "\n"));
    }
  }
  CHECK(exchanges == 26);
}

TEST_CASE("answers that are not WebHDFS's are refused", "[hdfs]") {
  for (const char* body :
       {"", "null", "[]", "{}", "{\"boolean\":1}", "{\"FileStatus\":[]}", "<html>",
        "{\"FileStatuses\":{\"FileStatus\":[{}]}}", "{\"FileStatus\":{\"length\":-1,\"type\":\"FILE\"}}",
        "{\"FileStatuses\":{\"FileStatus\":[{\"pathSuffix\":\"../x\",\"length\":1,\"type\":\"FILE\"}]}}"}) {
    INFO(body);
    CHECK(absl::IsFailedPrecondition(ParseHdfsStatus(body).status()));
    CHECK(absl::IsFailedPrecondition(ParseHdfsListing(body).status()));
    CHECK(absl::IsFailedPrecondition(ParseHdfsBoolean(body).status()));
    CHECK(absl::IsPermissionDenied(ParseHdfsError(403, body, "")));
    CHECK(absl::IsUnavailable(ParseHdfsError(503, body, "")));
    // Whoever says so, knows nothing of files.
    CHECK(absl::IsUnavailable(ParseHdfsError(404, body, "")));
  }
}

TEST_CASE("a directory of HDFS is an object store", "[hdfs]") {
  WebHdfsTestServer server;
  auto store = HdfsStore::Open(server.address(), "/recon/job", TestOptions(), /*writer=*/true);
  REQUIRE(store.ok());
  CheckStoreConformance(store->get());
}

// RECON_TEST_WEBHDFS=HOST:PORT, RECON_TEST_WEBHDFS_DIRECTORY=/where/all/may/write: the same with a real one.
TEST_CASE("a directory of a real HDFS is an object store", "[hdfs]") {
  const char* host = std::getenv("RECON_TEST_WEBHDFS");
  const char* directory = std::getenv("RECON_TEST_WEBHDFS_DIRECTORY");
  if (host == nullptr || directory == nullptr) {
    WARN("SKIP: no RECON_TEST_WEBHDFS and RECON_TEST_WEBHDFS_DIRECTORY");
    return;
  }
  const std::string path = absl::StrCat(directory, "/recon-", absl::Hex(RandomNonZero()));
  auto store = HdfsStore::Open(host, path, HdfsStore::OptionsFromEnvironment(), /*writer=*/true);
  REQUIRE(store.status() == absl::OkStatus());
  CheckStoreConformance(store->get());
}

TEST_CASE("HDFS: what fails for a while is done once", "[hdfs]") {
  WebHdfsTestServer server;
  auto store = *HdfsStore::Open(server.address(), "/recon/job", TestOptions(), /*writer=*/true);
  const std::string bytes = RandomBytes(9'000'000);
  REQUIRE(store->PutIfAbsent("there", "before").ok());
  for (const Fault fault : {Fault::kStandby, Fault::kDropBefore, Fault::kDropAfter, Fault::kHalf}) {
    for (const std::string operation :
         {"CREATE", "APPEND", "RENAME", "DELETE", "OPEN", "LISTSTATUS", "GETFILESTATUS"}) {
      if (fault == Fault::kHalf && operation != "APPEND" && operation != "CREATE" && operation != "OPEN")
        continue;
      INFO(operation << ", fault " << static_cast<int>(fault));
      server.Fail(operation, fault, 2);
      auto writer = store->Create("packs/one");
      REQUIRE(writer.ok());
      for (size_t at = 0; at < bytes.size(); at += 3'000'000) {
        REQUIRE((*writer)->Append(absl::string_view(bytes).substr(at, 3'000'000)).ok());
      }
      REQUIRE((*writer)->Close().ok());
      CHECK(*store->Read("packs/one", 0, bytes.size()) == bytes);
      CHECK(store->PutIfAbsent("new", "new").ok());
      CHECK(absl::IsAlreadyExists(store->PutIfAbsent("there", "after")));
      CHECK(*store->Read("there", 0, 6) == "before");
      CHECK(*store->List("") == std::vector<std::string>{"new", "packs/one", "there"});
      CHECK(store->Delete("new").ok());
      CHECK(store->Delete("packs/one").ok());
      server.FailNoMore();
      CHECK(server.files().size() == 1);
    }
  }
}

TEST_CASE("HDFS: a quota that cuts a file short is noticed", "[hdfs]") {
  WebHdfsTestServer server;
  auto store = *HdfsStore::Open(server.address(), "/recon/job", TestOptions(), /*writer=*/true);
  server.Fail("CREATE", Fault::kQuota, 1);
  CHECK(absl::IsResourceExhausted(store->PutIfAbsent("one", "some bytes")));
  CHECK(server.files().empty());
}

TEST_CASE("HDFS: whoever does not answer is not waited for without end", "[hdfs]") {
  WebHdfsTestServer server;
  auto store = *HdfsStore::Open(server.address(), "/recon/job", TestOptions(absl::Milliseconds(300)), true);
  REQUIRE(store->PutIfAbsent("one", "x").ok());
  server.Fail("OPEN", Fault::kDropBefore, 1000);
  CHECK(absl::IsUnavailable(store->Read("one", 0, 1).status()));
  server.Fail("GETFILESTATUS", Fault::kStandby, 1000);
  const auto size = store->Size("one");
  CHECK(absl::IsUnavailable(size.status()));
  CHECK(absl::StrContains(size.status().message(), "StandbyException"));
  CHECK(absl::IsUnavailable(
      HdfsStore::Open("127.0.0.1:1", "/x", TestOptions(absl::Milliseconds(300)), false).status()));
}

TEST_CASE("HDFS: what a crash left is removed by whoever owns the directory", "[hdfs]") {
  WebHdfsTestServer server;
  CHECK(absl::IsNotFound(HdfsStore::Open(server.address(), "/recon/job", TestOptions(), false).status()));
  auto first = *HdfsStore::Open(server.address(), "/recon/job", TestOptions(), true);
  REQUIRE(first->PutIfAbsent("one", "x").ok());
  auto writer = *first->Create("packs/two");
  REQUIRE(writer->Append(RandomBytes(9'000'000)).ok());
  CHECK(server.files().size() == 2);
  CHECK(*(*HdfsStore::Open(server.address(), "/recon/job", TestOptions(), false))->List("") ==
        std::vector<std::string>{"one"});
  CHECK(server.files().size() == 2);
  auto again = *HdfsStore::Open(server.address(), "/recon/job", TestOptions(), true);
  REQUIRE(again->RemoveLeftovers({"manifests/"}).ok());
  CHECK(server.files().size() == 2);
  REQUIRE(again->RemoveLeftovers({"packs/"}).ok());
  CHECK(server.files().size() == 1);
  // It has nothing to put in another's place.
  CHECK_FALSE(writer->Close().ok());
  CHECK(server.files().size() == 1);
}

}  // namespace recon
