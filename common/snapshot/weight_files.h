#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/snapshot/safetensors.h"
#include "common/storage/file_system.h"

namespace recon {

// The tensors of a model in one safetensors file or in several. Opening reads the headers, and values are
// read when they are asked for. Not thread-safe.
class WeightFiles {
 public:
  struct Tensor {
    SafetensorsEntry entry;
    size_t file = 0;
    uint64_t at = 0;  // In the file.
    uint64_t bytes() const { return entry.end - entry.begin; }
  };

  // Each path is a safetensors file, an index ("*.json"), or a directory: its index or, without one, all its
  // safetensors files. NotFound, DataLoss for what breaks the format's rules, InvalidArgument for a directory
  // that leaves a choice; each names the file. `files` must outlive this.
  static absl::StatusOr<WeightFiles> Open(const std::vector<std::string>& paths,
                                          FileSystem* files = FileSystem::Local());

  // File by file, each in the order of its bytes. Names differ.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Of all files; where they differ, the first counts.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& file(size_t number) const { return names_[number]; }
  size_t files() const { return names_.size(); }

  // `size` bytes of a tensor from its byte `offset` on.
  absl::StatusOr<std::string> Read(const Tensor& tensor, uint64_t offset, uint64_t size) const;

 private:
  explicit WeightFiles(FileSystem* files) : files_(files) {}

  absl::Status AddPath(const std::string& path);
  absl::Status AddDirectory(const std::string& path);
  absl::Status AddIndex(const std::string& path);
  absl::Status AddFile(const std::string& path);
  absl::Status CheckNames() const;

  FileSystem* files_;
  std::vector<std::string> names_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace recon
