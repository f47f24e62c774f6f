/* A disk that is watched, and fails on order: preloaded into a process, it stands between it and the C library.

   Every change below FAULTY_DISK_ROOT is appended to FAULTY_DISK_LOG, in the order in which it was made, as
       kind (1 byte), length of path (4), offset (8), length of data (4), path, data          (little-endian)
   with W write, T truncate to offset, C create, M make directory, R rename to data, U remove, F sync of a file,
   D sync of a directory, K a mark that the process sets with faulty_disk_mark(). See faulty_disk.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 65536
#define PATH 4096
#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *paths[FDS];
static const char *root;
static int log_fd = -1;
static long calls, fail_at = -1, fail_until = -1;
static int fail_errno, fail_torn;

__attribute__((constructor)) static void begin(void) {
  const char *log = getenv("FAULTY_DISK_LOG");
  root = getenv("FAULTY_DISK_ROOT");
  if (root && log) log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int below(const char *path) {
  size_t length;
  return root && path && strncmp(path, root, length = strlen(root)) == 0 && (path[length] == '/' || !path[length]);
}

static char *whole(int folder, const char *path, char *found) {
  char link[64];
  ssize_t length;
  if (!path) return NULL;
  if (path[0] == '/') return strncpy(found, path, PATH - 1), found[PATH - 1] = 0, found;
  snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
  if ((length = readlink(link, found, PATH / 2)) < 0) return NULL;
  snprintf(found + length, PATH - length, "/%s", path);
  return found;
}

static void tell(char kind, const char *path, uint64_t offset, const void *data, uint32_t size) {
  unsigned char head[17];
  uint32_t length = strlen(path);
  int kept = errno;
  if (log_fd < 0) return;
  head[0] = kind;
  memcpy(head + 1, &length, 4), memcpy(head + 5, &offset, 8), memcpy(head + 13, &size, 4);
  struct iovec parts[] = {{head, 17}, {(void *)path, length}, {(void *)data, size}};
  if (syscall(SYS_writev, log_fd, parts, 3) != 17 + length + size) abort();
  errno = kept;
}

/* Counts a change that is about to be made, and says whether it is to fail. */
static int fails(void) {
  long call = ++calls;
  if (fail_at < 0 || call < fail_at || (fail_until >= 0 && call >= fail_until)) return 0;
  errno = fail_errno;
  return 1;
}

void faulty_disk_mark(const char *text) {
  pthread_mutex_lock(&lock);
  tell('K', "", 0, text, strlen(text));
  pthread_mutex_unlock(&lock);
}

/* The change number `after` from now on and `times` - 1 more fail (all, where `times` is below 0); a torn write
   stores half of what it should first. */
void faulty_disk_fail(long after, long times, int error, int torn) {
  pthread_mutex_lock(&lock);
  fail_at = after < 0 ? -1 : calls + after;
  fail_until = times < 0 ? -1 : calls + after + times;
  fail_errno = error, fail_torn = torn;
  pthread_mutex_unlock(&lock);
}

long faulty_disk_calls(void) { return calls; }

static const char *known(int fd) { return fd >= 0 && fd < FDS ? paths[fd] : NULL; }

static int opened(int folder, const char *path, int flags, mode_t mode) {
  char buffer[PATH], *full = whole(folder, path, buffer);
  struct stat before;
  int there, fd;
  if (!below(full)) return syscall(SYS_openat, folder, path, flags, mode);
  pthread_mutex_lock(&lock);
  there = stat(full, &before) == 0;
  if ((flags & O_CREAT) && !there && fails()) {
    pthread_mutex_unlock(&lock);
    return -1;
  }
  fd = syscall(SYS_openat, folder, path, flags, mode);
  if (fd >= 0 && fd < FDS) {
    free(paths[fd]);
    paths[fd] = strdup(full);
    if ((flags & O_CREAT) && !there) tell('C', full, 0, "", 0);
    if ((flags & O_TRUNC) && there) tell('T', full, 0, "", 0);
  }
  pthread_mutex_unlock(&lock);
  return fd;
}

#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list more; \
    va_start(more, flags); \
    mode = va_arg(more, int); \
    va_end(more); \
  }
int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) {
  MODE(flags) return opened(folder, path, flags | O_LARGEFILE, mode);
}

int close(int fd) {
  pthread_mutex_lock(&lock);
  if (known(fd)) free(paths[fd]), paths[fd] = NULL;
  pthread_mutex_unlock(&lock);
  return syscall(SYS_close, fd);
}

static ssize_t written(int fd, const void *data, size_t size, off_t offset, int placed) {
  const char *path = known(fd);
  struct stat now;
  ssize_t done;
  if (!path) return placed ? syscall(SYS_pwrite64, fd, data, size, offset) : syscall(SYS_write, fd, data, size);
  pthread_mutex_lock(&lock);
  if (fails()) {
    if (!fail_torn || size < 2) {
      pthread_mutex_unlock(&lock);
      return -1;
    }
    size /= 2;
  }
  if (!placed) offset = fcntl(fd, F_GETFL) & O_APPEND && fstat(fd, &now) == 0 ? now.st_size : lseek(fd, 0, SEEK_CUR);
  done = placed ? syscall(SYS_pwrite64, fd, data, size, offset) : syscall(SYS_write, fd, data, size);
  if (done > 0) tell('W', path, offset, data, done);
  pthread_mutex_unlock(&lock);
  return done;
}
ssize_t write(int fd, const void *data, size_t size) { return written(fd, data, size, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return written(fd, data, size, offset, 1); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return written(fd, data, size, offset, 1); }

/* Makes one change under the lock, and tells of it where it succeeded. */
#define CHANGE(path, act, telling) \
  int done; \
  if (!below(path)) return act; \
  pthread_mutex_lock(&lock); \
  done = fails() ? -1 : (int)(act); \
  if (done == 0) telling; \
  pthread_mutex_unlock(&lock); \
  return done;

static int synced(int fd, int number) {
  struct stat what;
  const char *path = known(fd);
  CHANGE(path, syscall(number, fd), tell(fstat(fd, &what) == 0 && S_ISDIR(what.st_mode) ? 'D' : 'F', path, 0, "", 0))
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

static int shortened(int fd, off_t size) {
  const char *path = known(fd);
  CHANGE(path, syscall(SYS_ftruncate, fd, size), tell('T', path, size, "", 0))
}
int ftruncate(int fd, off_t size) { return shortened(fd, size); }
int ftruncate64(int fd, off_t size) { return shortened(fd, size); }

static void move_known(const char *from, const char *to) {
  for (int fd = 0; fd < FDS; fd++)
    if (paths[fd] && strcmp(paths[fd], from) == 0) free(paths[fd]), paths[fd] = to ? strdup(to) : NULL;
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  char first[PATH], second[PATH], *old = whole(from_folder, from, first), *new = whole(to_folder, to, second);
  CHANGE(old, syscall(SYS_renameat2, from_folder, from, to_folder, to, 0),
         (tell('R', old, 0, new, strlen(new)), move_known(new, NULL), move_known(old, new)))
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int folder, const char *path, int flags) {
  char buffer[PATH], *full = whole(folder, path, buffer);
  CHANGE(full, syscall(SYS_unlinkat, folder, path, flags), (tell('U', full, 0, "", 0), move_known(full, NULL)))
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
  char buffer[PATH], *full = whole(folder, path, buffer);
  CHANGE(full, syscall(SYS_mkdirat, folder, path, mode), tell('M', full, 0, "", 0))
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Shortcuts that would go past the log: whoever is refused them reads and writes instead. */
ssize_t sendfile(int out, int in, off_t *offset, size_t size) { return errno = EINVAL, -1; }
ssize_t sendfile64(int out, int in, off_t *offset, size_t size) { return errno = EINVAL, -1; }
