/* Faults in system calls, for LD_PRELOAD.
 *
 * A process arms the shim with `torture_arm`. From then on it counts the calls of the chosen kinds on files below one
 * folder. The call number `at` gets the fault: it fails with an error number, it reads or writes less than it was asked
 * to, or the process gets a signal before it. A lasting fault also hits all later calls of the chosen kinds. Until it is
 * armed the shim does nothing. It sees what goes through the C library: Python, HDF5, SQLite and Rust do.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* The kinds of calls. tests/torture/machine.py has the same list. */
enum { OPEN, CREATE, READ, WRITE, SYNC, RENAME, LINK, UNLINK, TRUNCATE, CLOSE, MKDIR, MMAP, STAT, LIST, LOCK };
/* What is no error number: a fault is positive where it is one. A signal n is SIGNALS - n. */
enum { NONE = 0, SHORT = -1, END = -2, TORN = -3, SIGNALS = -100 };

static char folder[PATH_MAX];
static size_t length;
static unsigned kinds;
static long at;
static int fault, lasting, log_to = -1;
static atomic_long seen;
static volatile int armed;

void torture_arm(const char *below, unsigned which, long number, int what, int lasts, int log_descriptor) {
  strncpy(folder, below, sizeof folder - 1);
  length = strlen(folder);
  kinds = which, at = number, fault = what, lasting = lasts, log_to = log_descriptor;
  atomic_store(&seen, 0);
  armed = 1;
}

static int below(const char *path) {
  return !strncmp(path, folder, length) && (path[length] == '/' || path[length] == 0);
}

static int named(int descriptor, char *path) {
  char link[40];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  long n = syscall(SYS_readlink, link, path, PATH_MAX - 1);
  path[n < 0 ? 0 : n] = 0;
  return n > 0;
}

/* Count a call on an absolute path, and say which fault it gets. */
static int counted(int kind, const char *path) {
  if (!(kinds >> kind & 1) || !below(path)) return NONE;
  long number = atomic_fetch_add(&seen, 1) + 1;
  if (log_to >= 0) {
    char line[PATH_MAX + 20];
    int n = snprintf(line, sizeof line, "%d %s\n", kind, path + length);
    syscall(SYS_write, log_to, line, (size_t)n);
  }
  if (number != at && !(lasting && at && number > at)) return NONE;
  if (fault > SIGNALS) return fault;
  syscall(SYS_kill, syscall(SYS_getpid), SIGNALS - fault);
  return NONE;
}

static int of_descriptor(int kind, int descriptor) {
  char path[PATH_MAX];
  if (!armed || descriptor < 0) return NONE;
  int before = errno, found = named(descriptor, path) ? counted(kind, path) : NONE;
  errno = before;
  return found;
}

static int of_path(int kind, int base, const char *path) {
  char whole[2 * PATH_MAX];
  if (!armed || !path) return NONE;
  int before = errno;
  if (path[0] == '/') {
    snprintf(whole, sizeof whole, "%s", path);
  } else {
    char root[PATH_MAX];
    if (base != AT_FDCWD) {
      if (!named(base, root)) root[0] = 0;
    } else if (syscall(SYS_getcwd, root, sizeof root) < 0) {
      root[0] = 0;
    }
    snprintf(whole, sizeof whole, "%s%s%s", root, *path ? "/" : "", path);
  }
  int found = counted(kind, whole);
  errno = before;
  return found;
}

#define REAL(name) __extension__({ \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
  real; })

#define FAIL_IF(found) \
  if ((found) > 0) { \
    errno = (found); \
    return -1; \
  }

static int opening(int flags) { return (flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC)) ? CREATE : OPEN; }

#define OPENS(name) \
  int name(const char *path, int flags, ...) { \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    int found = of_path(opening(flags), AT_FDCWD, path); \
    FAIL_IF(found) \
    return REAL(name)(path, flags, mode); \
  }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
  int name(int base, const char *path, int flags, ...) { \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    int found = of_path(opening(flags), base, path); \
    FAIL_IF(found) \
    return REAL(name)(base, path, flags, mode); \
  }
OPENS_AT(openat)
OPENS_AT(openat64)

/* Reads: a short one gives half, and END says that the file ends here. */
#define READS(name, parameters, arguments, half) \
  ssize_t name parameters { \
    int found = of_descriptor(READ, descriptor); \
    FAIL_IF(found) \
    if (found == END) return 0; \
    if (found == SHORT && size > 1) return REAL(name) half; \
    return REAL(name) arguments; \
  }
READS(read, (int descriptor, void *to, size_t size), (descriptor, to, size), (descriptor, to, size / 2))
READS(pread, (int descriptor, void *to, size_t size, off_t from), (descriptor, to, size, from),
      (descriptor, to, size / 2, from))
READS(pread64, (int descriptor, void *to, size_t size, off64_t from), (descriptor, to, size, from),
      (descriptor, to, size / 2, from))
/* Python asks for one buffer at a time, so a short one gives all of it. */
READS(preadv, (int descriptor, const struct iovec *to, int size, off_t from), (descriptor, to, size, from),
      (descriptor, to, size / 2, from))
READS(preadv64, (int descriptor, const struct iovec *to, int size, off64_t from), (descriptor, to, size, from),
      (descriptor, to, size / 2, from))

/* Writes: a short one takes half, and a torn one takes half before the process is killed. */
#define WRITES(name, parameters, arguments, half) \
  ssize_t name parameters { \
    int found = of_descriptor(WRITE, descriptor); \
    FAIL_IF(found) \
    if ((found == SHORT || found == TORN) && size > 1) { \
      ssize_t taken = REAL(name) half; \
      if (found == TORN) syscall(SYS_kill, syscall(SYS_getpid), SIGKILL); \
      return taken; \
    } \
    return REAL(name) arguments; \
  }
WRITES(write, (int descriptor, const void *from, size_t size), (descriptor, from, size), (descriptor, from, size / 2))
WRITES(pwrite, (int descriptor, const void *from, size_t size, off_t to), (descriptor, from, size, to),
       (descriptor, from, size / 2, to))
WRITES(pwrite64, (int descriptor, const void *from, size_t size, off64_t to), (descriptor, from, size, to),
       (descriptor, from, size / 2, to))
WRITES(writev, (int descriptor, const struct iovec *from, int size), (descriptor, from, size),
       (descriptor, from, size / 2))

#define ON_DESCRIPTOR(name, kind, parameters, arguments) \
  int name parameters { \
    int found = of_descriptor(kind, descriptor); \
    FAIL_IF(found) \
    return REAL(name) arguments; \
  }
ON_DESCRIPTOR(fsync, SYNC, (int descriptor), (descriptor))
ON_DESCRIPTOR(fdatasync, SYNC, (int descriptor), (descriptor))
ON_DESCRIPTOR(ftruncate, TRUNCATE, (int descriptor, off_t size), (descriptor, size))
ON_DESCRIPTOR(ftruncate64, TRUNCATE, (int descriptor, off64_t size), (descriptor, size))
ON_DESCRIPTOR(fstat, STAT, (int descriptor, struct stat *to), (descriptor, to))
ON_DESCRIPTOR(fstat64, STAT, (int descriptor, struct stat64 *to), (descriptor, to))
ON_DESCRIPTOR(flock, LOCK, (int descriptor, int operation), (descriptor, operation))

/* The descriptor is closed whatever `close` says, as Linux does it. */
int close(int descriptor) {
  int found = of_descriptor(CLOSE, descriptor), result = REAL(close)(descriptor);
  FAIL_IF(found)
  return result;
}

#define ON_PATH(name, kind, base, path, parameters, arguments) \
  int name parameters { \
    int found = of_path(kind, base, path); \
    FAIL_IF(found) \
    return REAL(name) arguments; \
  }
ON_PATH(rename, RENAME, AT_FDCWD, from, (const char *from, const char *to), (from, to))
ON_PATH(renameat, RENAME, a, from, (int a, const char *from, int b, const char *to), (a, from, b, to))
ON_PATH(link, LINK, AT_FDCWD, from, (const char *from, const char *to), (from, to))
ON_PATH(linkat, LINK, a, from, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
ON_PATH(unlink, UNLINK, AT_FDCWD, path, (const char *path), (path))
ON_PATH(unlinkat, UNLINK, base, path, (int base, const char *path, int flags), (base, path, flags))
ON_PATH(rmdir, UNLINK, AT_FDCWD, path, (const char *path), (path))
ON_PATH(mkdir, MKDIR, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
ON_PATH(mkdirat, MKDIR, base, path, (int base, const char *path, mode_t mode), (base, path, mode))
ON_PATH(stat, STAT, AT_FDCWD, path, (const char *path, struct stat *to), (path, to))
ON_PATH(stat64, STAT, AT_FDCWD, path, (const char *path, struct stat64 *to), (path, to))
ON_PATH(lstat, STAT, AT_FDCWD, path, (const char *path, struct stat *to), (path, to))
ON_PATH(lstat64, STAT, AT_FDCWD, path, (const char *path, struct stat64 *to), (path, to))
ON_PATH(fstatat, STAT, base, path, (int base, const char *path, struct stat *to, int flags), (base, path, to, flags))
ON_PATH(fstatat64, STAT, base, path, (int base, const char *path, struct stat64 *to, int flags),
        (base, path, to, flags))

DIR *opendir(const char *path) {
  int found = of_path(LIST, AT_FDCWD, path);
  if (found > 0) {
    errno = found;
    return NULL;
  }
  return REAL(opendir)(path);
}

#define MAPS(name, offset_type) \
  void *name(void *where, size_t size, int protection, int flags, int descriptor, offset_type from) { \
    int found = flags & MAP_ANONYMOUS ? NONE : of_descriptor(MMAP, descriptor); \
    if (found > 0) { \
      errno = found; \
      return MAP_FAILED; \
    } \
    return REAL(name)(where, size, protection, flags, descriptor, from); \
  }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)
