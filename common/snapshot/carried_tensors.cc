#include "common/snapshot/carried_tensors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace recon {

absl::StatusOr<CarriedTensors> CarriedTensors::Make(
    std::vector<std::pair<SafetensorsEntry, std::string>> tensors, TensorAliases aliases) {
  // In the order of their names: equal tensors make equal files.
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
  std::vector<SafetensorsEntry> entries;
  uint64_t bytes = 0;
  for (auto& [entry, content] : tensors) {
    entry.begin = bytes;
    bytes += content.size();
    entry.end = bytes;
    entries.push_back(entry);
  }
  std::string file = EncodeSafetensorsHeader(entries, {});
  if (file.size() + bytes > limits::kCarriedBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(tensors.size(), " tensors that are not trained have ",
                                                     bytes, " bytes, allowed are ",
                                                     limits::kCarriedBytesMax));
  }
  for (const auto& [entry, content] : tensors) file += content;
  return Parse(std::move(file), std::move(aliases));
}

absl::StatusOr<CarriedTensors> CarriedTensors::Parse(std::string file, TensorAliases aliases) {
  CarriedTensors carried;
  RECON_ASSIGN_OR_RETURN(const uint64_t length, SafetensorsHeaderLength(file, file.size()));
  const absl::string_view json = absl::string_view(file).substr(sizeof(length), length);
  RECON_ASSIGN_OR_RETURN(carried.header_,
                         ParseSafetensorsHeader(json, file.size() - sizeof(length) - length));
  carried.hash_ = Hash128(file.data(), file.size());
  carried.file_ = std::move(file);
  carried.aliases_ = std::move(aliases);
  return carried;
}

absl::string_view CarriedTensors::BytesOf(const SafetensorsEntry& tensor) const {
  return absl::string_view(file_).substr(header_.header_bytes + tensor.begin, tensor.end - tensor.begin);
}

absl::StatusOr<std::shared_ptr<const CarriedTensors>> ReadCarried(ObjectStore* store,
                                                                  const Manifest& manifest) {
  if (!manifest.has_carried()) return nullptr;
  const CarriedEntry& entry = manifest.carried();
  const std::string& pack = manifest.packs(static_cast<int>(entry.pack())).name();
  absl::StatusOr<std::string> file = store->Read(pack, entry.offset(), entry.bytes());
  if (!file.ok()) {
    // The manifest promises the pack: that it is absent is damage, not an answer.
    return absl::IsNotFound(file.status()) ? absl::DataLossError(file.status().message()) : file.status();
  }
  const std::string hash = Hash128(file->data(), file->size());
  if (hash != entry.hash()) {
    return absl::DataLossError(absl::StrCat(pack, " at byte ", entry.offset(),
                                            ": the tensors that are not trained have hash ", ToHex(hash),
                                            ", expected ", ToHex(entry.hash())));
  }
  TensorAliases aliases;
  for (const AliasEntry& alias : entry.aliases()) aliases[alias.name()] = alias.tensor();
  RECON_ASSIGN_OR_RETURN(CarriedTensors carried, CarriedTensors::Parse(*std::move(file), std::move(aliases)));
  return std::make_shared<const CarriedTensors>(std::move(carried));
}

}  // namespace recon
