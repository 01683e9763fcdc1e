// reconctl snapshot export: a snapshot's tensors as files that others read.

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hash.h"
#include "common/base/plain_text.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "common/optim/optimizer.h"
#include "common/snapshot/carried_tensors.h"
#include "common/snapshot/safetensors.h"
#include "common/storage/file_system.h"
#include "nlohmann/json.hpp"
#include "tools/reconctl/encode_values.h"
#include "tools/reconctl/open_snapshot.h"
#include "tools/reconctl/recorded_model.h"
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
    RECON_RETURN_IF_ERROR(CheckReplaceable(path));
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

// A tensor to be exported: one of the snapshot's in some role, or one that is not trained.
struct Source {
  std::string name;
  std::string dtype = "F32";
  std::vector<uint64_t> shape;
  uint64_t bytes = 0;
  const TensorPlacement* tensor = nullptr;
  int role = 0;
  absl::string_view content;  // Where there is no placement.
};

absl::Status ReadSource(const Source& source, TensorReader* snapshot,
                        absl::FunctionRef<absl::Status(absl::string_view bytes)> sink) {
  if (source.tensor == nullptr) return sink(source.content);
  return snapshot->Read(*source.tensor, source.role, [&](uint64_t, absl::Span<const float> values) {
    if (source.dtype == "F32") {
      return sink({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    }
    std::string bytes;
    EncodeValues(source.dtype, values, &bytes);
    return sink(bytes);
  });
}

// Where workers have the optimizer: means of gradients are nobody's weights, and `state/` is of the
// optimizers.
bool Exported(const Manifest& manifest, const std::string& name, bool with_state) {
  if (manifest.optimizer() != OptimizerName(OptimizerKind::kMean)) return true;
  return !absl::StartsWith(name, "gradient/") && (with_state || !absl::StartsWith(name, "state/"));
}

std::vector<Source> SourcesOf(const OpenSnapshot& open, bool with_state) {
  std::vector<Source> sources;
  const TensorReader& snapshot = *open.tensors;
  const ModelSpec& model = snapshot.layout().model();
  for (size_t i = 0; i < snapshot.layout().tensors().size(); ++i) {
    const TensorPlacement& tensor = snapshot.layout().tensors()[i];
    const TensorSpec& spec = model.tensors(static_cast<int>(i));
    if (!Exported(snapshot.manifest(), tensor.name, with_state)) continue;
    // Nothing of an optimizer goes with what is not trained.
    for (int role = 0; role < (with_state && !spec.averaged() ? snapshot.roles() : 1); ++role) {
      const std::string dtype = role > 0 || spec.dtype().empty() ? "F32" : spec.dtype();
      const std::string plane = role == 0 ? "" : PlaneName(snapshot.manifest().optimizer(), role);
      sources.push_back({role == 0 ? tensor.name : absl::StrCat(tensor.name, ".", plane),
                         dtype,
                         tensor.shape,
                         tensor.size * static_cast<uint64_t>(DtypeBits(dtype)) / 8,
                         &tensor,
                         role,
                         {}});
    }
  }
  if (open.carried != nullptr) {
    for (const SafetensorsEntry& tensor : open.carried->tensors()) {
      const absl::string_view content = open.carried->BytesOf(tensor);
      sources.push_back({tensor.name, tensor.dtype, tensor.shape, content.size(), nullptr, 0, content});
    }
  }
  std::map<std::string, std::string> aliases;
  if (open.carried != nullptr) aliases = open.carried->aliases();
  for (const AliasEntry& alias : model.aliases()) aliases[alias.name()] = alias.tensor();
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < sources.size(); ++i) by_name[sources[i].name] = i;
  for (const auto& [name, other] : aliases) {
    const auto found = by_name.find(other);
    // An alias of a tensor that the job's model does not have any more, or has under both names.
    if (found == by_name.end() || by_name.count(name) > 0) continue;
    Source copy = sources[found->second];
    copy.name = name;
    sources.push_back(std::move(copy));
  }
  // As the reference writer sorts them: wide types first, so that values are aligned.
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
    return std::make_tuple(-DtypeBits(a.dtype), a.name) < std::make_tuple(-DtypeBits(b.dtype), b.name);
  });
  return sources;
}

std::map<std::string, std::string> MetadataOf(const Manifest& manifest, const CarriedTensors* carried) {
  return {{"format", "pt"},
          {"recon.state_root", ToHex(manifest.state_root())},
          {"recon.generation", absl::StrCat(manifest.generation())},
          {"recon.sequence", absl::StrCat(manifest.sequence())},
          {kModelMetadata, EncodeRecordedModel(manifest.model(), carried)}};
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<Source>& sources,
                              const OpenSnapshot& open) {
  std::vector<SafetensorsEntry> entries;
  uint64_t offset = 0;
  for (const Source& source : sources) {
    entries.push_back({source.name, source.dtype, source.shape, offset, offset + source.bytes});
    offset += source.bytes;
  }
  RECON_ASSIGN_OR_RETURN(const auto file, WholeFile::Create(path));
  RECON_RETURN_IF_ERROR(file->Append(
      EncodeSafetensorsHeader(entries, MetadataOf(open.tensors->manifest(), open.carried.get()))));
  for (const Source& source : sources) {
    RECON_RETURN_IF_ERROR(
        ReadSource(source, open.tensors.get(), [&](absl::string_view bytes) { return file->Append(bytes); }));
  }
  return file->Close();
}

absl::Status WriteTorch(const std::string& path, const std::vector<Source>& sources,
                        const OpenSnapshot& open) {
  std::vector<TorchTensor> tensors;
  for (const Source& source : sources) {
    tensors.push_back({source.name, source.dtype, source.shape, source.bytes, [&](std::string* content) {
                         return ReadSource(source, open.tensors.get(), [&](absl::string_view bytes) {
                           absl::StrAppend(content, bytes);
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
  absl::Status (*write)(const std::string& path, const std::vector<Source>& sources,
                        const OpenSnapshot& open);
};
constexpr Format kSafetensors = {"model", "safetensors", WriteSafetensors};
constexpr Format kTorch = {"pytorch_model", "bin", WriteTorch};

absl::Status WriteSharded(const Format& format, const std::string& directory, uint64_t bytes_max,
                          const std::vector<Source>& sources, const OpenSnapshot& open) {
  RECON_RETURN_IF_ERROR(FileSystem::Local()->CreateDirectories(directory));
  std::vector<std::vector<Source>> files(1);
  uint64_t bytes = 0, total = 0;
  for (const Source& source : sources) {
    if (!files.back().empty() && bytes + source.bytes > bytes_max) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += source.bytes;
    total += source.bytes;
    files.back().push_back(source);
  }
  Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}};
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name =
        absl::StrFormat("%s-%05d-of-%05d.%s", format.stem, i + 1, files.size(), format.suffix);
    RECON_RETURN_IF_ERROR(format.write(absl::StrCat(directory, "/", name), files[i], open));
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
  const std::vector<Source> sources = SourcesOf(open, target.with_state);
  const Format& format = target.torch ? kTorch : kSafetensors;
  RECON_RETURN_IF_ERROR(target.file_bytes > 0
                            ? WriteSharded(format, target.output, target.file_bytes, sources, open)
                            : format.write(target.output, sources, open));
  std::cout << "snapshot " << open.tensors->manifest().generation() << ": " << sources.size()
            << " tensors to " << EscapeControls(target.output) << "\n";
  return absl::OkStatus();
}

}  // namespace recon
