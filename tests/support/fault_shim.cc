// A library for LD_PRELOAD that makes one system call on a file fail, whoever makes it: our code, RocksDB's,
// the C++ library's. It counts calls on paths below a directory.
//
// RECON_FAULT_BELOW  counts only calls on paths that begin with this,
// RECON_FAULT_MATCH  and have this in them, if it is given;
// RECON_FAULT_CALL   only calls of this function, if it is given.
// RECON_FAULT_STATE  a file of sizeof(State) bytes, shared with the test: see fault_shim.h.
//
// Threads: any; counting is atomic.
#include "tests/support/fault_shim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using recon::FaultState;

constexpr int kFdsMax = 4096;
bool watched[kFdsMax];  // Of these descriptors calls are counted.

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

FaultState* OpenState() {
  const char* path = std::getenv("RECON_FAULT_STATE");
  if (path == nullptr) return nullptr;
  const int fd = Real<int (*)(const char*, int, ...)>("open")(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const mapped = mmap(nullptr, sizeof(FaultState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return mapped == MAP_FAILED ? nullptr : static_cast<FaultState*>(mapped);
}

FaultState* TheState() {
  static FaultState* const state = OpenState();
  return state;
}

bool Below(const char* path) {
  static const char* const prefix = std::getenv("RECON_FAULT_BELOW");
  static const char* const part = std::getenv("RECON_FAULT_MATCH");
  return prefix != nullptr && path != nullptr && std::strncmp(path, prefix, std::strlen(prefix)) == 0 &&
         (part == nullptr || std::strstr(path, part) != nullptr);
}

bool Watched(int fd) { return fd >= 0 && fd < kFdsMax && watched[fd]; }

// Counts a call; the error it is to fail with, 0 for none. kFaultShort asks for half of the bytes.
int Count(const char* name) {
  FaultState* const state = TheState();
  static const char* const only = std::getenv("RECON_FAULT_CALL");
  if (state == nullptr || (only != nullptr && std::strcmp(name, only) != 0)) return 0;
  const uint64_t call = state->calls.fetch_add(1) + 1;
  const uint64_t first = state->fail_from.load();
  if (first == 0 || call < first || call >= first + state->fail_calls.load()) return 0;
  if (call == first) std::snprintf(state->failed, sizeof(state->failed), "%s", name);
  return state->error.load();
}

// Whether the call fails; sets errno.
bool Fails(const char* name) {
  const int error = Count(name);
  if (error <= 0) return false;
  errno = error;
  return true;
}

int Watch(int fd) {
  if (fd >= 0 && fd < kFdsMax) watched[fd] = true;
  return fd;
}

mode_t ModeOf(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

template <typename Bytes>
Bytes Shortened(int error, Bytes bytes) {
  return error == recon::kFaultShort && bytes > 1 ? bytes / 2 : bytes;
}

}  // namespace

// The names are the C library's.
extern "C" {

#define RECON_SHIM_OPEN(name)                                             \
  int name(const char* path, int flags, ...) {                            \
    va_list arguments;                                                    \
    va_start(arguments, flags);                                           \
    const mode_t mode = ModeOf(flags, arguments);                         \
    va_end(arguments);                                                    \
    static const auto real = Real<int (*)(const char*, int, ...)>(#name); \
    if (!Below(path)) return real(path, flags, mode);                     \
    if (Fails(#name)) return -1;                                          \
    return Watch(real(path, flags, mode));                                \
  }
RECON_SHIM_OPEN(open)
RECON_SHIM_OPEN(open64)

int close(int fd) {
  static const auto real = Real<int (*)(int)>("close");
  if (fd >= 0 && fd < kFdsMax) watched[fd] = false;
  return real(fd);
}

#define RECON_SHIM_BYTES(name, buffer, offset_type)                                      \
  ssize_t name(int fd, buffer bytes, size_t size, offset_type offset) {                  \
    static const auto real = Real<ssize_t (*)(int, buffer, size_t, offset_type)>(#name); \
    const int error = Watched(fd) ? Count(#name) : 0;                                    \
    if (error > 0) {                                                                     \
      errno = error;                                                                     \
      return -1;                                                                         \
    }                                                                                    \
    return real(fd, bytes, Shortened(error, size), offset);                              \
  }
RECON_SHIM_BYTES(pread, void*, off_t)
RECON_SHIM_BYTES(pread64, void*, off64_t)
RECON_SHIM_BYTES(pwrite, const void*, off_t)
RECON_SHIM_BYTES(pwrite64, const void*, off64_t)

ssize_t read(int fd, void* bytes, size_t size) {
  static const auto real = Real<ssize_t (*)(int, void*, size_t)>("read");
  const int error = Watched(fd) ? Count("read") : 0;
  if (error > 0) {
    errno = error;
    return -1;
  }
  return real(fd, bytes, Shortened(error, size));
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto real = Real<ssize_t (*)(int, const void*, size_t)>("write");
  const int error = Watched(fd) ? Count("write") : 0;
  if (error > 0) {
    errno = error;
    return -1;
  }
  return real(fd, bytes, Shortened(error, size));
}

ssize_t pwritev(int fd, const iovec* pieces, int count, off_t offset) {
  static const auto real = Real<ssize_t (*)(int, const iovec*, int, off_t)>("pwritev");
  const int error = Watched(fd) ? Count("pwritev") : 0;
  if (error > 0) {
    errno = error;
    return -1;
  }
  return real(fd, pieces, Shortened(error, count), offset);
}

#define RECON_SHIM_FD(name)                             \
  int name(int fd) {                                    \
    static const auto real = Real<int (*)(int)>(#name); \
    return Watched(fd) && Fails(#name) ? -1 : real(fd); \
  }
RECON_SHIM_FD(fsync)
RECON_SHIM_FD(fdatasync)

int ftruncate(int fd, off_t size) {
  static const auto real = Real<int (*)(int, off_t)>("ftruncate");
  return Watched(fd) && Fails("ftruncate") ? -1 : real(fd, size);
}

// Returns the error instead of setting errno.
int posix_fallocate(int fd, off_t offset, off_t size) {
  static const auto real = Real<int (*)(int, off_t, off_t)>("posix_fallocate");
  const int error = Watched(fd) ? Count("posix_fallocate") : 0;
  return error > 0 ? error : real(fd, offset, size);
}

int rename(const char* from, const char* to) {
  static const auto real = Real<int (*)(const char*, const char*)>("rename");
  return Below(from) && Fails("rename") ? -1 : real(from, to);
}

int link(const char* from, const char* to) {
  static const auto real = Real<int (*)(const char*, const char*)>("link");
  return Below(from) && Fails("link") ? -1 : real(from, to);
}

int unlink(const char* path) {
  static const auto real = Real<int (*)(const char*)>("unlink");
  return Below(path) && Fails("unlink") ? -1 : real(path);
}

int mkdir(const char* path, mode_t mode) {
  static const auto real = Real<int (*)(const char*, mode_t)>("mkdir");
  return Below(path) && Fails("mkdir") ? -1 : real(path, mode);
}

int stat(const char* path, struct stat* out) {
  static const auto real = Real<int (*)(const char*, struct stat*)>("stat");
  return Below(path) && Fails("stat") ? -1 : real(path, out);
}
}  // extern "C"
