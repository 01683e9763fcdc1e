#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/storage/hdfs_messages.h"
#include "common/storage/http_client.h"
#include "common/storage/object_store.h"
#include "common/storage/patience.h"

namespace recon {

// Objects as files below a directory of HDFS, by its REST API WebHDFS (or an HttpFS gateway). The user is a
// name that is believed: clusters with Kerberos are not supported.
//
// A file is written under a name of its own that ends in ".tmp" and renamed, which fails if there is one.
// Durable means what it means to HDFS: its datanodes have the bytes, not necessarily on their disks.
//
// Threads and errors: as ObjectStore's. Blocks on the network. A writer keeps one part of
// limits::kStorePartBytes in memory.
class HdfsStore : public ObjectStore {
 public:
  struct Options {
    std::string user;
    bool tls = false;
    std::string ca_file;  // PEM; empty: the system's.
    absl::Duration patience = limits::kStorePatience;
  };
  // HADOOP_USER_NAME, otherwise USER; SSL_CERT_FILE.
  static Options OptionsFromEnvironment();

  // `host`: "name:port" of the namenode. NotFound if the directory ("/absolute") is absent and `writer` is
  // not set; PermissionDenied, Unavailable.
  static absl::StatusOr<std::unique_ptr<HdfsStore>> Open(const std::string& host,
                                                         const std::string& directory, const Options& options,
                                                         bool writer);

  absl::StatusOr<std::unique_ptr<Writer>> Create(const std::string& name) override;
  absl::Status PutIfAbsent(const std::string& name, absl::string_view bytes) override;
  absl::StatusOr<uint64_t> Size(const std::string& name) override;
  absl::StatusOr<absl::Duration> Age(const std::string& name) override;
  absl::Status ReadInto(const std::string& name, uint64_t offset, uint64_t size, char* out) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& prefix) override;
  absl::Status Delete(const std::string& name) override;
  absl::Status RemoveLeftovers(const std::vector<std::string>& prefixes) override;
  void CapPatience(absl::Duration most) override { patience_.Cap(most); }
  std::string Describe() const override { return where_; }

 private:
  class FileWriter;

  HdfsStore(const std::string& host, const std::string& directory, const Options& options);
  std::string UrlOf(const std::string& name, const std::string& operation) const;
  absl::Status ErrorOf(const HttpResponse& response, const std::string& what) const;
  // One exchange with the namenode; an answer that is not 2xx or `redirect` is an error.
  absl::StatusOr<HttpResponse> AskOnce(const std::string& method, const std::string& name,
                                       const std::string& operation, bool redirect = false);
  absl::StatusOr<HttpResponse> Ask(const std::string& method, const std::string& name,
                                   const std::string& operation, int* tries = nullptr);
  // Where the namenode sends us, and there with `request`'s body and out.
  absl::StatusOr<HttpResponse> TransferOnce(HttpRequest request, const std::string& name,
                                            const std::string& operation);

  absl::StatusOr<HdfsFile> StatusOf(const std::string& name);
  absl::StatusOr<HdfsFile> StatusOnce(const std::string& name);
  // kNot if there is something at `to`, say; kPerhaps if `from` is gone, and an earlier try may have moved
  // it.
  enum class Renamed { kYes, kNot, kPerhaps };
  absl::StatusOr<Renamed> Rename(const std::string& from, const std::string& to);
  absl::Status MakeDirectoryOf(const std::string& name);
  absl::Status ListBelow(const std::string& directory, int depth, std::vector<std::string>* names);

  const std::string where_;  // "webhdfs://host:port/directory".
  const std::string directory_;
  const std::string base_url_;  // Up to "/webhdfs/v1".
  const Options options_;
  Patience patience_;
  HttpClient http_;
};

}  // namespace recon
