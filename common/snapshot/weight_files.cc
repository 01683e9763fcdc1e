#include "common/snapshot/weight_files.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/snapshot/safetensors_json.h"

namespace recon {
namespace {

constexpr char kIndexSuffix[] = ".safetensors.index.json";
constexpr char kFileSuffix[] = ".safetensors";
constexpr uint64_t kLengthBytes = 8;
// As a file's header.
constexpr uint64_t kIndexBytesMax = 100'000'000;

// The same code, with the file in front of the text.
absl::Status In(const std::string& path, const absl::Status& status) {
  if (absl::StrContains(status.message(), path)) return status;
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

std::vector<std::string> EndingIn(absl::string_view suffix, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    // Of the directory itself: not of those below it.
    if (absl::EndsWith(name, suffix) && !absl::StrContains(name, '/')) found.push_back(name);
  }
  return found;
}

}  // namespace

absl::StatusOr<WeightFiles> WeightFiles::Open(const std::vector<std::string>& paths, FileSystem* files) {
  WeightFiles weights(files);
  for (const std::string& path : paths) RECON_RETURN_IF_ERROR(weights.AddPath(path));
  RECON_RETURN_IF_ERROR(weights.CheckNames());
  return weights;
}

absl::StatusOr<std::string> WeightFiles::Read(const Tensor& tensor, uint64_t offset, uint64_t size) const {
  return files_->Read(names_[tensor.file], tensor.at + offset, size);
}

absl::Status WeightFiles::AddPath(const std::string& path) {
  RECON_ASSIGN_OR_RETURN(const bool is_directory, files_->IsDirectory(path));
  if (is_directory) return AddDirectory(path);
  return absl::EndsWith(path, ".json") ? AddIndex(path) : AddFile(path);
}

absl::Status WeightFiles::AddDirectory(const std::string& path) {
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_->List(path));
  const std::vector<std::string> indexes = EndingIn(kIndexSuffix, names);
  const std::string usual = absl::StrCat("model", kIndexSuffix);
  const bool has_usual = std::find(indexes.begin(), indexes.end(), usual) != indexes.end();
  if (has_usual || indexes.size() == 1) {
    return AddIndex(absl::StrCat(path, "/", has_usual ? usual : indexes[0]));
  }
  if (!indexes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has several indexes (", absl::StrJoin(indexes, ", "), "): name one"));
  }
  const std::vector<std::string> files = EndingIn(kFileSuffix, names);
  if (files.empty()) return absl::NotFoundError(absl::StrCat(path, " has no *", kFileSuffix, " file"));
  for (const std::string& name : files) RECON_RETURN_IF_ERROR(AddFile(absl::StrCat(path, "/", name)));
  return absl::OkStatus();
}

absl::Status WeightFiles::AddIndex(const std::string& path) {
  RECON_ASSIGN_OR_RETURN(const uint64_t bytes, files_->Size(path));
  if (bytes > kIndexBytesMax) {
    return absl::DataLossError(
        absl::StrCat(path, ": an index of ", bytes, " bytes, allowed are ", kIndexBytesMax));
  }
  RECON_ASSIGN_OR_RETURN(const std::string json, files_->Read(path, 0, bytes));
  const absl::StatusOr<std::map<std::string, std::string>> file_of = ReadSafetensorsIndex(json);
  if (!file_of.ok()) return In(path, file_of.status());
  std::set<std::string> names;
  for (const auto& [tensor, file] : *file_of) names.insert(file);
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  std::map<std::string, std::string> is_in;
  for (const std::string& name : names) {
    const size_t first = tensors_.size();
    RECON_RETURN_IF_ERROR(AddFile(directory + name));
    for (size_t i = first; i < tensors_.size(); ++i) is_in.try_emplace(tensors_[i].entry.name, name);
    for (size_t i = first; i < tensors_.size(); ++i) {
      const auto said = file_of->find(tensors_[i].entry.name);
      if (said != file_of->end() && said->second == name) continue;
      return absl::DataLossError(absl::StrCat(
          path, ": ", directory, name, " has ", ShownName(tensors_[i].entry.name), ", which the index ",
          said == file_of->end() ? "does not name" : "says is in another file"));
    }
  }
  for (const auto& [tensor, file] : *file_of) {
    if (is_in.count(tensor) > 0) continue;
    return absl::DataLossError(absl::StrCat(path, ": ", ShownName(tensor), " is not in ", directory, file));
  }
  return absl::OkStatus();
}

absl::Status WeightFiles::AddFile(const std::string& path) {
  if (std::find(names_.begin(), names_.end(), path) != names_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is given twice"));
  }
  RECON_ASSIGN_OR_RETURN(const uint64_t bytes, files_->Size(path));
  RECON_ASSIGN_OR_RETURN(const std::string first, files_->Read(path, 0, std::min(kLengthBytes, bytes)));
  const absl::StatusOr<uint64_t> length = SafetensorsHeaderLength(first, bytes);
  if (!length.ok()) return In(path, length.status());
  RECON_ASSIGN_OR_RETURN(const std::string json, files_->Read(path, kLengthBytes, *length));
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, bytes - kLengthBytes - *length);
  if (!header.ok()) return In(path, header.status());
  if (header->tensors.size() > limits::kFileTensorsMax - std::min(limits::kFileTensorsMax, tensors_.size())) {
    return absl::DataLossError(
        absl::StrCat(path, ": with it, the files have more than ", limits::kFileTensorsMax, " tensors"));
  }
  for (SafetensorsEntry& entry : header->tensors) {
    const uint64_t at = header->header_bytes + entry.begin;
    tensors_.push_back({std::move(entry), names_.size(), at});
  }
  metadata_.insert(header->metadata.begin(), header->metadata.end());
  names_.push_back(path);
  return absl::OkStatus();
}

absl::Status WeightFiles::CheckNames() const {
  std::map<std::string, size_t> file_of;
  for (const Tensor& tensor : tensors_) {
    const auto [it, added] = file_of.emplace(tensor.entry.name, tensor.file);
    if (added) continue;
    return absl::DataLossError(absl::StrCat("safetensors: ", ShownName(tensor.entry.name), " is in ",
                                            names_[it->second], " and in ", names_[tensor.file]));
  }
  return absl::OkStatus();
}

}  // namespace recon
