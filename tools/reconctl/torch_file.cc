#include "tools/reconctl/torch_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "common/storage/file_system.h"

namespace recon {
namespace {

uint64_t Size(const TorchTensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), uint64_t{1}, std::multiplies<>());
}

// The class of a type's storage, and bytes of a value; null for types without one.
struct Storage {
  const char* dtype;
  const char* name;
  uint64_t width;
};
constexpr Storage kStorages[] = {
    {"F64", "DoubleStorage", 8},    {"F32", "FloatStorage", 4}, {"F16", "HalfStorage", 2},
    {"BF16", "BFloat16Storage", 2}, {"I64", "LongStorage", 8},  {"I32", "IntStorage", 4},
    {"I16", "ShortStorage", 2},     {"I8", "CharStorage", 1},   {"U8", "ByteStorage", 1},
    {"BOOL", "BoolStorage", 1},
};

const Storage* StorageOf(const TorchTensor& tensor) {
  const auto found = std::find_if(std::begin(kStorages), std::end(kStorages),
                                  [&](const Storage& known) { return tensor.dtype == known.dtype; });
  return found == std::end(kStorages) ? nullptr : found;
}

// Opcodes of pickle's protocol 2, as Python's module pickletools describes them.
class Pickle {
 public:
  Pickle() { bytes_ = "\x80\x02"; }

  Pickle& Op(char op) {
    bytes_ += op;
    return *this;
  }
  Pickle& Mark() { return Op('('); }
  Pickle& Tuple() { return Op('t'); }
  Pickle& Global(absl::string_view module, absl::string_view name) {
    absl::StrAppend(&bytes_, "c", module, "\n", name, "\n");
    return *this;
  }
  Pickle& String(absl::string_view text) { return Op('X').Number(text.size(), 4).Raw(text); }
  // Eight bytes and one for the sign: any size.
  Pickle& Int(uint64_t value) { return Op('\x8a').Number(9, 1).Number(value, 8).Number(0, 1); }
  Pickle& EmptyOrderedDict() { return Global("collections", "OrderedDict").Op(')').Op('R'); }

  const std::string& bytes() const { return bytes_; }

 private:
  Pickle& Number(uint64_t value, int width) {
    for (int byte = 0; byte < width; ++byte) bytes_ += static_cast<char>(value >> (8 * byte));
    return *this;
  }
  Pickle& Raw(absl::string_view text) {
    bytes_.append(text.data(), text.size());
    return *this;
  }

  std::string bytes_;
};

std::string StateDict(const std::vector<TorchTensor>& tensors) {
  Pickle pickle;
  pickle.EmptyOrderedDict().Mark();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<uint64_t>& shape = tensors[i].shape;
    pickle.String(tensors[i].name);
    // _rebuild_tensor_v2(storage, offset, shape, stride, requires_grad, hooks); the storage is a persistent
    // id.
    pickle.Global("torch._utils", "_rebuild_tensor_v2").Mark();
    pickle.Mark()
        .String("storage")
        .Global("torch", StorageOf(tensors[i])->name)
        .String(absl::StrCat(i))
        .String("cpu");
    pickle.Int(Size(tensors[i])).Tuple().Op('Q').Int(0);
    pickle.Mark();
    for (const uint64_t dimension : shape) pickle.Int(dimension);
    pickle.Tuple().Mark();
    uint64_t stride = Size(tensors[i]);
    for (const uint64_t dimension : shape) {
      stride /= std::max<uint64_t>(dimension, 1);
      pickle.Int(stride);
    }
    pickle.Tuple().Op('\x89').EmptyOrderedDict().Tuple().Op('R');
  }
  return pickle.Op('u').Op('.').bytes();
}

// One tensor's bytes, read when libzip comes to them.
struct Entry {
  const TorchTensor* tensor = nullptr;
  absl::Status* status = nullptr;
  std::string content;
  uint64_t at = 0;
  zip_error_t error{};
};

zip_int64_t Serve(void* state, void* data, zip_uint64_t length, zip_source_cmd_t command) {
  auto* entry = static_cast<Entry*>(state);
  const uint64_t bytes = entry->tensor->bytes;
  switch (command) {
    case ZIP_SOURCE_SUPPORTS:
      return zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE,
                                            ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, -1);
    case ZIP_SOURCE_STAT: {
      auto* stat = static_cast<zip_stat_t*>(data);
      zip_stat_init(stat);
      stat->size = stat->comp_size = bytes;
      stat->comp_method = ZIP_CM_STORE;
      stat->valid = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
      return sizeof(*stat);
    }
    case ZIP_SOURCE_OPEN:
      entry->content.reserve(bytes);
      entry->at = 0;
      entry->status->Update(entry->tensor->read(&entry->content));
      if (entry->status->ok() && entry->content.size() == bytes) return 0;
      zip_error_set(&entry->error, ZIP_ER_READ, 0);
      return -1;
    case ZIP_SOURCE_READ: {
      const uint64_t size = std::min<uint64_t>(length, bytes - entry->at);
      std::memcpy(data, entry->content.data() + entry->at, size);
      entry->at += size;
      return static_cast<zip_int64_t>(size);
    }
    case ZIP_SOURCE_CLOSE:
      entry->content = std::string();
      return 0;
    case ZIP_SOURCE_ERROR:
      return zip_error_to_data(&entry->error, data, length);
    case ZIP_SOURCE_FREE:
      return 0;
    default:
      zip_error_set(&entry->error, ZIP_ER_OPNOTSUPP, 0);
      return -1;
  }
}

absl::Status Sync(const std::string& path) {
  const OpenedFile file = OpenRegularFile(path, O_RDONLY);
  if (!file.ok()) return file.status(path);
  return fsync(file.fd.get()) == 0 ? absl::OkStatus()
                                   : absl::ErrnoToStatus(errno, absl::StrCat("fsync ", path));
}

// Puts files into an archive one after the other, stored as they are, each at a multiple of kAlign: as
// torch.save() does it, so that they can be mapped.
class StoredFiles {
 public:
  explicit StoredFiles(zip_t* archive) : archive_(archive) {}

  // `source` is of so many bytes, and the archive's from here on; null where it could not be made.
  absl::Status Add(const std::string& name, zip_source_t* source, uint64_t bytes) {
    const zip_int64_t index =
        source == nullptr ? -1 : zip_file_add(archive_, name.c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      if (source != nullptr) zip_source_free(source);
      return Failure(name);
    }
    const auto at = static_cast<zip_uint64_t>(index);
    zip_set_file_compression(archive_, at, ZIP_CM_STORE, 0);
    const uint64_t header =
        kHeaderBytes + name.size() + (bytes >= UINT32_MAX ? kLargeSizesBytes : 0) + kFieldBytes;
    const std::string padding((kAlign - (end_ + header) % kAlign) % kAlign, 'Z');
    end_ += header + padding.size() + bytes;
    const int padded = zip_file_extra_field_set(archive_, at, kPaddingField, ZIP_EXTRA_FIELD_NEW,
                                                reinterpret_cast<const zip_uint8_t*>(padding.data()),
                                                static_cast<zip_uint16_t>(padding.size()), ZIP_FL_LOCAL);
    return padded == 0 ? absl::OkStatus() : Failure(name);
  }

 private:
  static constexpr uint64_t kAlign = 64;
  // Of the format (APPNOTE.TXT 4.3.7, 4.5): what precedes a file's name, both sizes where one needs more than
  // four bytes, and what precedes a field's content. libzip writes no other fields.
  static constexpr uint64_t kHeaderBytes = 30;
  static constexpr uint64_t kLargeSizesBytes = 20;
  static constexpr uint64_t kFieldBytes = 4;
  static constexpr zip_uint16_t kPaddingField = 0x4246;  // "FB", PyTorch's.

  absl::Status Failure(const std::string& name) const {
    return absl::InternalError(absl::StrCat(name, ": ", zip_strerror(archive_)));
  }

  zip_t* const archive_;
  uint64_t end_ = 0;  // Of what has been added.
};

}  // namespace

absl::Status WriteTorchFile(const std::string& path, const std::vector<TorchTensor>& tensors) {
  for (const TorchTensor& tensor : tensors) {
    if (StorageOf(tensor) != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, " is ", tensor.dtype,
                     ", for which torch's files have no storage: export as safetensors"));
  }
  RECON_RETURN_IF_ERROR(CheckReplaceable(path));
  const std::string temporary = path + ".tmp";
  // libzip cannot say where it failed to create a file; we can.
  RECON_RETURN_IF_ERROR(FileSystem::Local()->Create(temporary).status());
  int error = 0;
  zip_t* archive = zip_open(temporary.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error);
  if (archive == nullptr) return absl::InternalError(absl::StrCat(temporary, ": libzip error ", error));
  absl::Status status;
  const std::string state_dict = StateDict(tensors);
  const std::string version = "3\n";
  const auto text = [&](const std::string& content) {
    return zip_source_buffer(archive, content.data(), content.size(), 0);
  };
  std::vector<Entry> entries(tensors.size());
  StoredFiles stored(archive);
  status.Update(stored.Add("archive/data.pkl", text(state_dict), state_dict.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    entries[i].tensor = &tensors[i];
    entries[i].status = &status;
    zip_source_t* source = zip_source_function(archive, Serve, &entries[i]);
    status.Update(stored.Add(absl::StrCat("archive/data/", i), source, tensors[i].bytes));
  }
  status.Update(stored.Add("archive/version", text(version), version.size()));
  if (status.ok() && zip_close(archive) == 0) {
    FileSystem* files = FileSystem::Local();
    status = Sync(temporary);
    if (status.ok()) status = files->Rename(temporary, path);
    const std::string parent = std::filesystem::path(path).parent_path();
    if (status.ok()) return files->SyncDirectory(parent.empty() ? "." : parent);
  } else {
    if (status.ok()) status = absl::ResourceExhaustedError(absl::StrCat(path, ": ", zip_strerror(archive)));
    zip_discard(archive);
  }
  FileSystem::Local()->Remove(temporary).IgnoreError();
  return status;
}

}  // namespace recon
