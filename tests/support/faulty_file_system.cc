#include "tests/support/faulty_file_system.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace recon {
namespace {

using Lock = std::lock_guard<std::mutex>;

absl::Status ErrorOf(FaultyFileSystem::Fault fault, const std::string& what) {
  if (fault == FaultyFileSystem::Fault::kIoError)
    return absl::UnavailableError(what + ": Input/output error");
  return absl::ResourceExhaustedError(what + ": No space left on device");
}

std::string ParentOf(const std::string& path) { return std::filesystem::path(path).parent_path(); }

}  // namespace

class FaultyFileSystem::OpenFile : public FileSystem::File {
 public:
  OpenFile(FaultyFileSystem* files, std::shared_ptr<Inode> inode, std::string path)
      : files_(files), inode_(std::move(inode)), path_(std::move(path)) {}

  absl::Status Append(absl::Span<const absl::string_view> pieces) override {
    const Lock lock(files_->mu_);
    std::string bytes;
    for (const absl::string_view piece : pieces) absl::StrAppend(&bytes, piece);
    const std::optional<Fault> fault = files_->NextFault();
    if (fault) bytes.resize(*fault == Fault::kShortWriteThenFull ? bytes.size() / 2 : 0);
    if (inode_->data.size() < offset_ + bytes.size()) inode_->data.resize(offset_ + bytes.size(), '\0');
    inode_->data.replace(offset_, bytes.size(), bytes);
    offset_ += bytes.size();
    return fault ? ErrorOf(*fault, "write " + path_) : absl::OkStatus();
  }
  absl::Status Allocate(uint64_t bytes) override {
    const Lock lock(files_->mu_);
    if (const auto fault = files_->NextFault()) return ErrorOf(*fault, "allocate " + path_);
    if (inode_->data.size() < bytes) inode_->data.resize(bytes, '\0');
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    const Lock lock(files_->mu_);
    // As the kernel does it: after an error the data counts as clean, and is not on the disk.
    if (const auto fault = files_->NextFault()) return ErrorOf(*fault, "fsync " + path_);
    inode_->durable = inode_->data;
    return absl::OkStatus();
  }

 private:
  FaultyFileSystem* const files_;
  const std::shared_ptr<Inode> inode_;
  const std::string path_;
  uint64_t offset_ = 0;
};

void FaultyFileSystem::FailCall(int call, Fault fault, bool for_good) {
  const Lock lock(mu_);
  fail_at_ = calls_ + call;
  fault_ = fault;
  for_good_ = for_good;
}

void FaultyFileSystem::FailNothing() {
  const Lock lock(mu_);
  fail_at_ = 0;
}

int FaultyFileSystem::calls() const {
  const Lock lock(mu_);
  return calls_;
}

std::optional<FaultyFileSystem::Fault> FaultyFileSystem::NextFault() {
  ++calls_;
  if (fail_at_ == 0 || calls_ < fail_at_ || (calls_ > fail_at_ && !for_good_)) return std::nullopt;
  return fault_;
}

absl::Status FaultyFileSystem::FailIfDue(const std::string& what) {
  const auto fault = NextFault();
  return fault ? ErrorOf(*fault, what) : absl::OkStatus();
}

std::unique_ptr<FaultyFileSystem> FaultyFileSystem::AfterPowerFailure(uint64_t seed, size_t sector) const {
  const Lock lock(mu_);
  std::mt19937_64 random(seed);
  const auto flip = [&] { return (random() & 1) != 0; };
  auto after = std::make_unique<FaultyFileSystem>();
  after->directories_ = directories_;
  std::map<const Inode*, std::shared_ptr<Inode>> copies;
  const auto copy_of = [&](const std::shared_ptr<Inode>& inode) {
    std::shared_ptr<Inode>& copy = copies[inode.get()];
    if (copy != nullptr) return copy;
    copy = std::make_shared<Inode>();
    std::string& data = copy->data;
    data = inode->durable;
    if (flip()) data.resize(std::max(data.size(), inode->data.size()), '\0');
    for (size_t at = 0; at < data.size(); at += sector) {
      if (at >= inode->data.size() || !flip()) continue;
      data.replace(at, std::min(sector, data.size() - at), inode->data, at,
                   std::min(sector, data.size() - at));
    }
    copy->durable = data;
    return copy;
  };
  std::set<std::string> paths;
  for (const auto& [path, inode] : names_) paths.insert(path);
  for (const auto& [path, inode] : durable_names_) paths.insert(path);
  for (const std::string& path : paths) {
    const auto durable = durable_names_.find(path);
    const auto now = names_.find(path);
    const bool as_now = flip();
    if (as_now && now != names_.end()) after->names_[path] = copy_of(now->second);
    if (!as_now && durable != durable_names_.end()) after->names_[path] = copy_of(durable->second);
    // Unchanged names are what they are.
    if (now != names_.end() && durable != durable_names_.end() && now->second == durable->second) {
      after->names_[path] = copy_of(now->second);
    }
  }
  after->durable_names_ = after->names_;
  return after;
}

std::unique_ptr<FaultyFileSystem> FaultyFileSystem::Copy() const {
  const Lock lock(mu_);
  auto copy = std::make_unique<FaultyFileSystem>();
  copy->directories_ = directories_;
  std::map<const Inode*, std::shared_ptr<Inode>> inodes;
  for (const Names* names : {&names_, &durable_names_}) {
    for (const auto& [path, inode] : *names) {
      if (inodes[inode.get()] == nullptr) inodes[inode.get()] = std::make_shared<Inode>(*inode);
    }
  }
  for (const auto& [path, inode] : names_) copy->names_[path] = inodes[inode.get()];
  for (const auto& [path, inode] : durable_names_) copy->durable_names_[path] = inodes[inode.get()];
  return copy;
}

std::string FaultyFileSystem::Content(const std::string& path) const {
  const Lock lock(mu_);
  return names_.at(path)->data;
}

void FaultyFileSystem::SetContent(const std::string& path, const std::string& content) {
  const Lock lock(mu_);
  names_[path] = std::make_shared<Inode>(Inode{content, content});
}

absl::StatusOr<std::unique_ptr<FileSystem::File>> FaultyFileSystem::Create(const std::string& path) {
  const Lock lock(mu_);
  if (const auto fault = NextFault()) return ErrorOf(*fault, "create " + path);
  if (directories_.count(ParentOf(path)) == 0) return absl::NotFoundError("create " + path);
  auto inode = std::make_shared<Inode>();
  inode->written = clock_;
  names_[path] = inode;
  return std::unique_ptr<File>(std::make_unique<OpenFile>(this, std::move(inode), path));
}

absl::StatusOr<uint64_t> FaultyFileSystem::Size(const std::string& path) {
  const Lock lock(mu_);
  if (const auto fault = NextFault()) return ErrorOf(*fault, "stat " + path);
  const auto found = names_.find(path);
  if (found == names_.end()) return absl::NotFoundError(path);
  return found->second->data.size();
}

absl::StatusOr<absl::Duration> FaultyFileSystem::Age(const std::string& path) {
  const Lock lock(mu_);
  const auto found = names_.find(path);
  if (found == names_.end()) return absl::NotFoundError(path);
  return clock_ - found->second->written;
}

void FaultyFileSystem::Advance(absl::Duration duration) {
  const Lock lock(mu_);
  clock_ += duration;
}

absl::Status FaultyFileSystem::ReadInto(const std::string& path, uint64_t offset, uint64_t size, char* out) {
  const Lock lock(mu_);
  if (const auto fault = NextFault()) return ErrorOf(*fault, "read " + path);
  const auto found = names_.find(path);
  if (found == names_.end()) return absl::NotFoundError(path);
  const std::string& data = found->second->data;
  if (offset > data.size() || size > data.size() - offset) {
    return absl::DataLossError(absl::StrCat(path, " has ", data.size(), " bytes"));
  }
  data.copy(out, size, offset);
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  const Lock lock(mu_);
  if (const absl::Status status = FailIfDue("rename " + from); !status.ok()) return status;
  const auto found = names_.find(from);
  if (found == names_.end()) return absl::NotFoundError("rename " + from);
  const std::shared_ptr<Inode> inode = found->second;
  names_.erase(found);
  names_[to] = inode;
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::Link(const std::string& from, const std::string& to) {
  const Lock lock(mu_);
  if (const absl::Status status = FailIfDue("link " + to); !status.ok()) return status;
  const auto found = names_.find(from);
  if (found == names_.end()) return absl::NotFoundError("link " + from);
  if (names_.count(to) > 0) return absl::AlreadyExistsError("link " + to);
  names_[to] = found->second;
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::Remove(const std::string& path) {
  const Lock lock(mu_);
  if (const absl::Status status = FailIfDue("delete " + path); !status.ok()) return status;
  names_.erase(path);
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::SyncDirectory(const std::string& path) {
  const Lock lock(mu_);
  if (const absl::Status status = FailIfDue("fsync " + path); !status.ok()) return status;
  for (auto it = durable_names_.begin(); it != durable_names_.end();) {
    it = ParentOf(it->first) == path && names_.count(it->first) == 0 ? durable_names_.erase(it)
                                                                     : std::next(it);
  }
  for (const auto& [name, inode] : names_) {
    if (ParentOf(name) == path) durable_names_[name] = inode;
  }
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::CreateDirectories(const std::string& path) {
  const Lock lock(mu_);
  for (std::string at = path; !at.empty() && at != "/"; at = ParentOf(at)) directories_.insert(at);
  return absl::OkStatus();
}

absl::StatusOr<bool> FaultyFileSystem::IsDirectory(const std::string& path) {
  const Lock lock(mu_);
  return directories_.count(path) > 0;
}

absl::StatusOr<uint64_t> FaultyFileSystem::FreeBytes(const std::string&) {
  const Lock lock(mu_);
  return free_bytes_;
}

void FaultyFileSystem::SetFreeBytes(uint64_t bytes) {
  const Lock lock(mu_);
  free_bytes_ = bytes;
}

absl::StatusOr<std::vector<std::string>> FaultyFileSystem::List(const std::string& directory) {
  const Lock lock(mu_);
  if (const auto fault = NextFault()) return ErrorOf(*fault, "list " + directory);
  std::vector<std::string> names;
  for (const auto& [path, inode] : names_) {
    if (absl::StartsWith(path, directory + "/")) names.push_back(path.substr(directory.size() + 1));
  }
  return names;
}

}  // namespace recon
