// reconctl snapshot export: a snapshot's tensors as files that others read.

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/snapshot/safetensors.h"
#include "common/storage/file_system.h"
#include "nlohmann/json.hpp"
#include "tools/reconctl/open_snapshot.h"
#include "tools/reconctl/torch_file.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

std::string PlaneName(const std::string& optimizer, int role) {
  // An outer optimizer's is named likewise.
  if (absl::EndsWith(optimizer, "adam") || absl::EndsWith(optimizer, "adamw"))
    return role == 1 ? "exp_avg" : "exp_avg_sq";
  return "momentum_buffer";
}

// A file that is there whole or not at all.
class WholeFile {
 public:
  static absl::StatusOr<std::unique_ptr<WholeFile>> Create(const std::string& path) {
    auto whole = std::make_unique<WholeFile>();
    whole->path_ = path;
    RECON_ASSIGN_OR_RETURN(whole->file_, FileSystem::Local()->Create(path + ".tmp"));
    return whole;
  }
  ~WholeFile() {
    if (!done_ && !path_.empty()) (void)FileSystem::Local()->Remove(path_ + ".tmp");
  }
  absl::Status Append(absl::string_view bytes) { return file_->Append({bytes}); }
  absl::Status Close() {
    RECON_RETURN_IF_ERROR(file_->Sync());
    RECON_RETURN_IF_ERROR(FileSystem::Local()->Rename(path_ + ".tmp", path_));
    done_ = true;
    const size_t slash = path_.rfind('/');
    return FileSystem::Local()->SyncDirectory(slash == std::string::npos ? "." : path_.substr(0, slash + 1));
  }

 private:
  std::string path_;
  std::unique_ptr<FileSystem::File> file_;
  bool done_ = false;
};

// A tensor to be exported.
struct Source {
  std::string name;
  const TensorPlacement* tensor = nullptr;
  int role = 0;
  uint64_t bytes() const { return tensor->size * sizeof(float); }
};

std::vector<Source> SourcesOf(const TensorReader& snapshot, bool with_state) {
  std::vector<Source> sources;
  for (const TensorPlacement& tensor : snapshot.layout().tensors()) {
    for (int role = 0; role < (with_state ? snapshot.roles() : 1); ++role) {
      const std::string plane = role == 0 ? "" : PlaneName(snapshot.manifest().optimizer(), role);
      sources.push_back({role == 0 ? tensor.name : absl::StrCat(tensor.name, ".", plane), &tensor, role});
    }
  }
  // As the reference writer sorts tensors of one type.
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.name < b.name; });
  return sources;
}

std::map<std::string, std::string> MetadataOf(const Manifest& manifest) {
  Json model = {{"name", manifest.model().name()}, {"tensors", Json::array()}};
  for (const TensorSpec& tensor : manifest.model().tensors()) {
    model["tensors"].push_back({{"name", tensor.name()}, {"group", tensor.group()}});
  }
  return {{"format", "pt"},
          {"recon.state_root", ToHex(manifest.state_root())},
          {"recon.generation", absl::StrCat(manifest.generation())},
          {"recon.sequence", absl::StrCat(manifest.sequence())},
          {kModelMetadata, model.dump()}};
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<Source>& sources,
                              TensorReader* snapshot) {
  std::vector<SafetensorsEntry> entries;
  uint64_t offset = 0;
  for (const Source& source : sources) {
    entries.push_back({source.name, "F32", source.tensor->shape, offset, offset + source.bytes()});
    offset += source.bytes();
  }
  RECON_ASSIGN_OR_RETURN(const auto file, WholeFile::Create(path));
  RECON_RETURN_IF_ERROR(file->Append(EncodeSafetensorsHeader(entries, MetadataOf(snapshot->manifest()))));
  for (const Source& source : sources) {
    RECON_RETURN_IF_ERROR(
        snapshot->Read(*source.tensor, source.role, [&](uint64_t, absl::Span<const float> values) {
          return file->Append({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
        }));
  }
  return file->Close();
}

absl::Status WriteTorch(const std::string& path, const std::vector<Source>& sources, TensorReader* snapshot) {
  std::vector<TorchTensor> tensors;
  for (const Source& source : sources) {
    tensors.push_back({source.name, source.tensor->shape, [&source, snapshot](std::vector<float>* values) {
                         return snapshot->Read(*source.tensor, source.role,
                                               [&](uint64_t, absl::Span<const float> piece) {
                                                 values->insert(values->end(), piece.begin(), piece.end());
                                                 return absl::OkStatus();
                                               });
                       }});
  }
  return WriteTorchFile(path, tensors);
}

// How PyTorch's users name the files of a model, and what writes one.
struct Format {
  const char* stem;
  const char* suffix;
  absl::Status (*write)(const std::string& path, const std::vector<Source>& sources, TensorReader* snapshot);
};
constexpr Format kSafetensors = {"model", "safetensors", WriteSafetensors};
constexpr Format kTorch = {"pytorch_model", "bin", WriteTorch};

absl::Status WriteSharded(const Format& format, const std::string& directory, uint64_t bytes_max,
                          const std::vector<Source>& sources, TensorReader* snapshot) {
  RECON_RETURN_IF_ERROR(FileSystem::Local()->CreateDirectories(directory));
  std::vector<std::vector<Source>> files(1);
  uint64_t bytes = 0, total = 0;
  for (const Source& source : sources) {
    if (!files.back().empty() && bytes + source.bytes() > bytes_max) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += source.bytes();
    total += source.bytes();
    files.back().push_back(source);
  }
  Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}};
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name =
        absl::StrFormat("%s-%05d-of-%05d.%s", format.stem, i + 1, files.size(), format.suffix);
    RECON_RETURN_IF_ERROR(format.write(absl::StrCat(directory, "/", name), files[i], snapshot));
    for (const Source& source : files[i]) index["weight_map"][source.name] = name;
  }
  RECON_ASSIGN_OR_RETURN(const auto file, WholeFile::Create(absl::StrCat(directory, "/", format.stem, ".",
                                                                         format.suffix, ".index.json")));
  RECON_RETURN_IF_ERROR(file->Append(index.dump(2) + "\n"));
  return file->Close();
}

}  // namespace

absl::Status ExportSnapshot(const ExportTarget& target) {
  RECON_ASSIGN_OR_RETURN(const OpenSnapshot open, OpenGeneration(target.directory, target.generation));
  const std::vector<Source> sources = SourcesOf(*open.tensors, target.with_state);
  const Format& format = target.torch ? kTorch : kSafetensors;
  RECON_RETURN_IF_ERROR(target.file_bytes > 0 ? WriteSharded(format, target.output, target.file_bytes,
                                                             sources, open.tensors.get())
                                              : format.write(target.output, sources, open.tensors.get()));
  std::cout << "snapshot " << open.tensors->manifest().generation() << ": " << sources.size()
            << " tensors to " << target.output << "\n";
  return absl::OkStatus();
}

}  // namespace recon
