#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/limits.h"

namespace recon {

// Named immutable objects: files of a directory, or objects of a store on other machines.
//
// Threads: all methods are thread-safe. Nothing is ever rewritten under a name.
// Names are relative paths of [A-Za-z0-9._-] parts separated by '/'.
// Errors: NotFound; ResourceExhausted when the store is full; Unavailable or DataLoss for I/O errors.
class ObjectStore {
 public:
  // Writes one object front to back. The object exists, durably and whole, when Close() returns OK;
  // a writer that is destroyed before leaves nothing behind.
  class Writer {
   public:
    virtual ~Writer() = default;
    virtual absl::Status Append(absl::string_view bytes) = 0;
    virtual absl::Status Close() = 0;
  };

  virtual ~ObjectStore() = default;

  virtual absl::StatusOr<std::unique_ptr<Writer>> Create(const std::string& name) = 0;
  // Durable when it returns. AlreadyExists if there is an object of that name: the commit point of a
  // snapshot, so that two writers can never both publish one generation.
  virtual absl::Status PutIfAbsent(const std::string& name, absl::string_view bytes) = 0;

  virtual absl::StatusOr<uint64_t> Size(const std::string& name) = 0;
  // Exactly `size` bytes from `offset` to `out`; DataLoss if the object is shorter.
  virtual absl::Status ReadInto(const std::string& name, uint64_t offset, uint64_t size, char* out) = 0;
  // How long ago the object was written, by the store's own clock: this machine's, or whoever's wrote it, may
  // be off. To a second or two.
  virtual absl::StatusOr<absl::Duration> Age(const std::string& name) = 0;
  // As ReadInto(), in a string.
  absl::StatusOr<std::string> Read(const std::string& name, uint64_t offset, uint64_t size);
  // Whoever reads much does so quickest in pieces of about so many bytes.
  virtual uint64_t read_bytes() const { return limits::kStoreReadBytes; }

  // Names that start with `prefix`, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& prefix) = 0;
  // OK if the object is gone for good, whether or not it was there: what is deleted afterwards is not missed
  // by what was deleted before.
  virtual absl::Status Delete(const std::string& name) = 0;

  // Removes what writers that died have left and nobody can see, of objects with names below these prefixes.
  // Only the owner of the store may do so: it ends what others are writing.
  virtual absl::Status RemoveLeftovers(const std::vector<std::string>& prefixes) = 0;
  // From now on, requests to a store on another machine are tried again for so long at most.
  virtual void CapPatience(absl::Duration) {}

  // Where this is, for messages.
  virtual std::string Describe() const = 0;
};

}  // namespace recon
