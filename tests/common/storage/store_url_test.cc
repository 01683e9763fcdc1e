#include "common/storage/store_url.h"

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/support/temp_dir.h"

namespace recon {

TEST_CASE("addresses of stores", "[store_url]") {
  const auto is = [](const std::string& text, StoreUrl::Scheme scheme, const std::string& host,
                     const std::string& path) {
    INFO(text);
    const auto url = ParseStoreUrl(text);
    REQUIRE(url.ok());
    CHECK(url->scheme == scheme);
    CHECK(url->host == host);
    CHECK(url->path == path);
    const auto again = ParseStoreUrl(url->Absolute());
    REQUIRE(again.ok());
    CHECK(again->Absolute() == url->Absolute());
  };
  is("some/where", StoreUrl::Scheme::kFile, "", "some/where");
  is("/some where", StoreUrl::Scheme::kFile, "", "/some where");
  is("file:///some/where", StoreUrl::Scheme::kFile, "", "/some/where");
  is("s3://bucket", StoreUrl::Scheme::kS3, "bucket", "");
  is("s3://my.bucket-1/a/B_c/", StoreUrl::Scheme::kS3, "my.bucket-1", "a/B_c");
  is("webhdfs://nn:50070/recon", StoreUrl::Scheme::kWebHdfs, "nn:50070", "/recon");
  is("webhdfs://nn/recon/job", StoreUrl::Scheme::kWebHdfs, "nn:9870", "/recon/job");
  is("hdfs://nn:8020/recon", StoreUrl::Scheme::kWebHdfs, "nn:9870", "/recon");
  is("swebhdfs://nn.example:9871/recon", StoreUrl::Scheme::kSWebHdfs, "nn.example:9871", "/recon");
}

TEST_CASE("addresses that are none say what is wrong with them", "[store_url]") {
  for (const char* text : {"",
                           "file://host/path",
                           "file://",
                           "file:///",
                           "s3://",
                           "s3://Bucket/x",
                           "s3://b/x",
                           "s3://bucket/a//b",
                           "s3://bucket/../x",
                           "s3://bucket/a b",
                           "s3://bucket/a?b",
                           "hdfs://",
                           "hdfs:///path",
                           "hdfs://nn",
                           "hdfs://nn/",
                           "hdfs://nn:0/x",
                           "hdfs://nn:x/y",
                           "hdfs://n n/x",
                           "webhdfs://nn:99999/x",
                           "webhdfs://user@nn/x",
                           "gs://bucket/x",
                           "://x"}) {
    INFO(text);
    const auto url = ParseStoreUrl(text);
    CHECK(absl::IsInvalidArgument(url.status()));
    CHECK(absl::StrContains(url.status().message(), text));
  }
}

TEST_CASE("a store is opened by its address", "[store_url]") {
  const TempDir directory;
  const auto store = OpenStore("file://" + directory.path() + "/new", /*writer=*/true);
  REQUIRE(store.ok());
  CHECK((*store)->PutIfAbsent("one", "x").ok());
  CHECK(*(*OpenStore(directory / "new", /*writer=*/false))->Size("one") == 1);
  unsetenv("AWS_ACCESS_KEY_ID");
  CHECK(absl::IsFailedPrecondition(OpenStore("s3://bucket/x", /*writer=*/false).status()));
}

}  // namespace recon
