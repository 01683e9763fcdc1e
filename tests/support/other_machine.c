// Preloaded into a program (LD_PRELOAD), makes the machine another one for it, as the environment says:
//   MACHINE_CLOCK=FILE   the time of day is off by as many seconds as the file says, looked at each time
//   MACHINE_LACKS=WORDS  of "links" (no hard links), "noreplace" (renaming always replaces), "flock", "locks"
//   (neither
//                        flock nor those of fcntl)
//   MACHINE_STALLS=WORD  opening a path that has the word in it never returns
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int Lacks(const char* what) {
  const char* lacks = getenv("MACHINE_LACKS");
  return lacks != NULL && strstr(lacks, what) != NULL;
}

static int Fail(int error) {
  errno = error;
  return -1;
}

static time_t ClockIsOffBy(void) {
  const char* path = getenv("MACHINE_CLOCK");
  if (path == NULL) return 0;
  const int before = errno;
  char text[32] = "";
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    if (read(fd, text, sizeof(text) - 1) < 0) text[0] = '\0';
    close(fd);
  }
  errno = before;
  return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (failed == 0 && clock == CLOCK_REALTIME) now->tv_sec += ClockIsOffBy();
  return failed;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (out != NULL) *out = exact.tv_sec;
  return exact.tv_sec;
}

// Of a disk that hangs.
static void StallAt(const char* path) {
  const char* word = getenv("MACHINE_STALLS");
  while (word != NULL && strstr(path, word) != NULL) pause();
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  StallAt(path);
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return open(path, flags, mode);
}

int link(const char* from, const char* to) {
  if (Lacks("links")) return Fail(EPERM);
  return (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_directory, const char* from, int to_directory, const char* to, unsigned flags) {
  if (flags != 0 && Lacks("noreplace")) return Fail(EINVAL);
  return (int)syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
}

int flock(int fd, int operation) {
  if (Lacks("flock") || Lacks("locks")) return Fail(ENOLCK);
  return (int)syscall(SYS_flock, fd, operation);
}

int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  if (command == F_OFD_SETLK && Lacks("locks")) return Fail(ENOLCK);
  return (int)syscall(SYS_fcntl, fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl(fd, command, argument);
}
