#include "common/storage/s3_store.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/storage/s3_messages.h"
#include "tests/common/storage/store_conformance.h"
#include "tests/support/http_test_server.h"
#include "tests/support/swift_server.h"

namespace recon {
namespace {

S3Store::Options OptionsFor(const std::string& endpoint, absl::Duration patience = absl::Seconds(20)) {
  S3Store::Options options;
  options.endpoint = endpoint;
  options.access_key = SwiftServer::kAccessKey;
  options.secret_key = SwiftServer::kSecretKey;
  options.patience = patience;
  return options;
}

// Uploads that have been begun and neither completed nor ended.
size_t UploadsOf(const std::string& endpoint) {
  HttpClient::Options options;
  options.sign = "aws:amz:us-east-1:s3";
  options.access_key = SwiftServer::kAccessKey;
  options.secret_key = SwiftServer::kSecretKey;
  HttpRequest request;
  request.url = endpoint + "/recon/?uploads=";
  request.headers = {
      "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"};
  HttpClient client(options);
  const auto response = client.Send(request);
  REQUIRE(response.ok());
  const auto uploads = ParseS3Uploads(response->body);
  INFO(response->body);
  REQUIRE(uploads.ok());
  return uploads->uploads.size();
}

}  // namespace

TEST_CASE("a bucket is an object store: OpenStack Swift's S3 API", "[s3]") {
  SwiftServer swift;
  REQUIRE(swift.Start());
  const S3Store::Options options = OptionsFor(swift.endpoint());

  SECTION("below a prefix, and whole") {
    auto below = S3Store::Open("recon", "jobs/one", options, /*writer=*/true);
    REQUIRE(below.status() == absl::OkStatus());
    CheckStoreConformance(below->get(), /*atomic=*/false);
    const auto whole = S3Store::Open("recon", "", options, /*writer=*/false);
    REQUIRE(whole.ok());
    CHECK((*whole)->List("")->size() == 3);
    CHECK(*(*whole)->Size("jobs/one/a/one") == 11);
    CHECK(UploadsOf(swift.endpoint()) == 0);
  }
  SECTION("a listing of several pages is whole") {
    auto store = *S3Store::Open("recon", "many", options, /*writer=*/true);
    for (int i = 0; i < 1010; ++i) {
      REQUIRE(store->PutIfAbsent(absl::StrCat("leases/", absl::Dec(i, absl::kZeroPad4)), "").ok());
    }
    const auto names = store->List("leases/");
    REQUIRE(names.ok());
    CHECK(names->size() == 1010);
    CHECK(names->back() == "leases/1009");
  }
  SECTION("uploads that a crash left are ended by whoever owns that part of the bucket") {
    auto store = *S3Store::Open("recon", "job", options, /*writer=*/true);
    auto other = *S3Store::Open("recon", "another", options, /*writer=*/true);
    auto writer = *store->Create("packs/one");
    REQUIRE(writer->Append(RandomBytes(20'000'000)).ok());
    CHECK(UploadsOf(swift.endpoint()) == 1);
    auto again = *S3Store::Open("recon", "job", options, /*writer=*/true);
    REQUIRE(again->RemoveLeftovers({"manifests/"}).ok());
    REQUIRE(other->RemoveLeftovers({"packs/", "manifests/"}).ok());
    CHECK(UploadsOf(swift.endpoint()) == 1);
    REQUIRE(again->RemoveLeftovers({"packs/", "manifests/"}).ok());
    CHECK(UploadsOf(swift.endpoint()) == 0);
    CHECK_FALSE(writer->Close().ok());  // It has lost the right to.
    CHECK(store->List("packs/")->empty());
  }
  SECTION("what is wrong is said") {
    S3Store::Options wrong = options;
    wrong.secret_key = "guessed";
    const auto refused = S3Store::Open("recon", "job", wrong, /*writer=*/false);
    CHECK(absl::IsPermissionDenied(refused.status()));
    CHECK(absl::StrContains(refused.status().message(), "SignatureDoesNotMatch"));
    const auto absent = S3Store::Open("no-such-bucket", "job", options, /*writer=*/true);
    CHECK(absl::IsFailedPrecondition(absent.status()));
    CHECK(absl::StrContains(absent.status().message(), "NoSuchBucket"));
  }
  SECTION("a store that goes away is waited for, and not without end") {
    auto store = *S3Store::Open("recon", "job", OptionsFor(swift.endpoint(), absl::Milliseconds(300)), true);
    REQUIRE(store->PutIfAbsent("one", "x").ok());
    swift.Stop();
    CHECK(absl::IsUnavailable(store->Size("one").status()));
    CHECK(absl::IsUnavailable(store->PutIfAbsent("two", "x")));
    CHECK(absl::IsUnavailable(store->List("").status()));
  }
}

TEST_CASE("S3: an answer that is lost is not taken for another's object", "[s3]") {
  std::string there;
  int puts = 0, failures = 0;
  HttpTestServer server([&](const HttpTestServer::Request& request) -> HttpTestServer::Response {
    if (request.method == "GET" && request.path == "/recon/") {
      return {200, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"};
    }
    if (request.method == "HEAD" || request.method == "GET") return {200, there};
    ++puts;
    if (failures > 0 && --failures > 0) return {503, "<Error><Code>SlowDown</Code></Error>"};
    if (!there.empty()) return {412, "<Error><Code>PreconditionFailed</Code></Error>"};
    there = request.body;
    return {200, "", {}, /*drop=*/true};
  });
  auto store = *S3Store::Open("recon", "", OptionsFor("http://" + server.address()), /*writer=*/false);
  CHECK(store->PutIfAbsent("one", "ours").ok());
  CHECK(puts == 2);
  CHECK(absl::IsAlreadyExists(store->PutIfAbsent("one", "other")));
  // Nobody but us can have put it, were there not the others.
  failures = 3;
  CHECK(absl::IsAlreadyExists(store->PutIfAbsent("one", "four")));
}

TEST_CASE("S3: errors that waiting cannot mend are told at once", "[s3]") {
  std::string code;
  int status = 400, requests = 0;
  HttpTestServer server([&](const HttpTestServer::Request&) -> HttpTestServer::Response {
    ++requests;
    return {status, code.empty() ? "<html/>" : "<Error><Code>" + code + "</Code></Error>"};
  });
  S3Store::Options options = OptionsFor("http://" + server.address(), absl::Milliseconds(300));
  const auto open = [&](int with_status, const std::string& with_code) {
    status = with_status;
    code = with_code;
    requests = 0;
    return S3Store::Open("recon", "", options, /*writer=*/false).status();
  };
  CHECK(absl::IsPermissionDenied(open(400, "ExpiredToken")));
  CHECK(requests == 1);
  CHECK(absl::IsFailedPrecondition(open(301, "PermanentRedirect")));
  CHECK(requests == 1);
  CHECK(absl::IsFailedPrecondition(open(400, "AuthorizationHeaderMalformed")));
  CHECK(absl::IsFailedPrecondition(open(404, "NoSuchBucket")));
  CHECK(absl::IsNotFound(open(404, "NoSuchKey")));
  CHECK(absl::IsUnavailable(open(404, "")));  // No S3 server speaks so.
  CHECK(absl::IsUnavailable(open(400, "RequestTimeout")));
  CHECK(requests > 1);
  CHECK(absl::IsUnavailable(open(503, "SlowDown")));
  CHECK(requests > 1);
}

TEST_CASE("S3: a server that takes no notice of If-None-Match is refused", "[s3]") {
  HttpTestServer server([&](const HttpTestServer::Request& request) -> HttpTestServer::Response {
    if (request.query.count("uploads") > 0) {
      return {200,
              "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"};
    }
    return {200, ""};
  });
  const auto store = S3Store::Open("recon", "", OptionsFor("http://" + server.address()), /*writer=*/true);
  CHECK(absl::IsUnimplemented(store.status()));
}

TEST_CASE("S3: half a listing is never taken for a whole one", "[s3]") {
  const auto listing = [](const std::string& inner) {
    return ParseS3Listing("<ListBucketResult>" + inner + "</ListBucketResult>");
  };
  CHECK(listing("<IsTruncated>false</IsTruncated><Contents><Key>a</Key></Contents>")->keys.size() == 1);
  CHECK(listing("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>")
            ->next_token == "t");
  CHECK(absl::IsFailedPrecondition(listing("").status()));
  CHECK(absl::IsFailedPrecondition(listing("<IsTruncated>true</IsTruncated>").status()));
  CHECK(absl::IsFailedPrecondition(listing("<IsTruncated>maybe</IsTruncated>").status()));
  CHECK(absl::IsFailedPrecondition(listing("<IsTruncated>false</IsTruncated><Contents/>").status()));
  CHECK(absl::IsFailedPrecondition(
      ParseS3Listing("<ListBucketResult><IsTruncated>false</IsTruncated>").status()));
  CHECK(absl::IsFailedPrecondition(ParseS3Listing("<html/>").status()));
  CHECK(absl::IsFailedPrecondition(ParseS3UploadId("<InitiateMultipartUploadResult/>").status()));
  CHECK(absl::IsFailedPrecondition(ParseS3Uploads("<ListMultipartUploadsResult/>").status()));
  CHECK(IsS3Completion("<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"));
  CHECK_FALSE(IsS3Completion(""));
  CHECK_FALSE(IsS3Completion("<Error><Code>InternalError</Code></Error>"));
  CHECK(ParseS3Error("<Error><Code>A</Code><Message>b</Message></Error>") == "A: b");
  CHECK(ParseS3Error("no xml").empty());
  CHECK(S3CompleteUpload({"\"a&b\""}) ==
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&quot;a&amp;b&quot;</ETag></Part>"
        "</CompleteMultipartUpload>");
}

}  // namespace recon
