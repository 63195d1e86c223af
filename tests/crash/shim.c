/* Ends or fails a process at its n-th call that changes a file. Preloaded; told what to do by shim.py.
 *
 * Counted are the calls below, of all threads of the process that armed it, on files and folders: pipes, sockets,
 * terminals, devices, memory files, /proc, stdout and stderr are not. Not seen is what a program does without libc's
 * names: raw system calls, libc's own stdio (fopen), writes through a memory map (SQLite's -shm).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

/* The bits of a mode, as in shim.py; and how many calls are kept by name, and how much of each. */
enum { KILL_BEFORE = 1, KILL_AFTER = 2, HALF = 4, FAIL = 8, FROM_THEN_ON = 16 };
enum { NAMED = 1 << 14, WIDTH = 128 };

/* What happened, in memory that a process shares with the one that forked it: it outlives a SIGKILL. */
static struct {
    atomic_long count, hit;
    char calls[NAMED][WIDTH];
} *record;

static atomic_int armed; /* the process that counts: its children, which have this variable too, do not */
static long at;
static int mode, error;

__attribute__((constructor)) static void share(void) {
    record = mmap(NULL, sizeof *record, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (record == MAP_FAILED)
        abort();
}

/* What shim.py calls. */

void shim_clear(void) { record->count = record->hit = 0; }

void shim_arm(long new_at, int new_mode, int new_error) {
    shim_clear();
    at = new_at, mode = new_mode, error = new_error;
    armed = getpid();
}

void shim_disarm(void) { armed = 0; }
long shim_count(void) { return record->count; }
long shim_hit(void) { return record->hit; } /* the turn of the first call that was killed at or failed, or 0 */
const char *shim_call(long turn) { return turn <= NAMED ? record->calls[turn - 1] : "(not kept)"; }

/* Which calls count: each of these gives the name of what is changed, or NULL. */

static const char *file_of(int fd, char *name) {
    struct stat status;
    char link[32];
    if (fd == STDOUT_FILENO || fd == STDERR_FILENO || fstat(fd, &status))
        return NULL;
    if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, 4095);
    name[length > 0 ? length : 0] = 0;
    return strncmp(name, "/memfd:", 7) && strncmp(name, "/proc/", 6) ? name : NULL;
}

static const char *opened(int directory, const char *path, long flags, int *creates) {
    struct stat status;
    int unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    if (!unnamed && !(flags & (O_CREAT | O_TRUNC)))
        return NULL;
    int exists = !fstatat(directory, path, &status, 0);
    *creates = unnamed || !exists;
    return !exists || S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) ? path : NULL;
}

/* What happens at a call. */

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static int counting(void) { return armed && armed == getpid(); }

/* `grows`: whether a disk that is full or broken refuses the call from then on. Returns what is left to do. */
static int enter(const char *call, const char *subject, int grows) {
    long none = 0;
    if (!subject)
        return 0;
    long turn = ++record->count;
    const char *slash = strrchr(subject, '/');
    if (turn <= NAMED)
        snprintf(record->calls[turn - 1], WIDTH, "%s %s", call, slash && slash[1] ? slash + 1 : subject);
    if (mode & FROM_THEN_ON ? !at || turn < at || !grows : turn != at)
        return 0;
    atomic_compare_exchange_strong(&record->hit, &none, turn);
    if (mode & KILL_BEFORE)
        die();
    if (mode & FAIL)
        errno = error;
    return mode;
}

#define WRAPPED(TYPE, NAME, PARAMETERS, ARGUMENTS, SUBJECT, GROWS, FAILURE)        \
    TYPE NAME PARAMETERS {                                                         \
        static TYPE(*real) PARAMETERS;                                             \
        if (!real)                                                                 \
            real = (TYPE(*) PARAMETERS)dlsym(RTLD_NEXT, #NAME);                    \
        int action = counting() ? enter(#NAME, SUBJECT, GROWS) : 0;                \
        if (action & FAIL)                                                         \
            return FAILURE;                                                        \
        TYPE result = real ARGUMENTS;                                              \
        if (action & KILL_AFTER)                                                   \
            die();                                                                 \
        return result;                                                             \
    }
#define CALL(TYPE, NAME, PARAMETERS, ARGUMENTS, SUBJECT, GROWS) \
    WRAPPED(TYPE, NAME, PARAMETERS, ARGUMENTS, SUBJECT, GROWS, -1)
#define FILE_OF(FD) file_of(FD, (char[4096]){0})
#define HALVED(SIZE) ((action & HALF) && (SIZE) > 1 ? (SIZE) / 2 : (SIZE))

/* Content. */

CALL(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, HALVED(size)), FILE_OF(fd), 1)
CALL(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t where),
     (fd, data, HALVED(size), where), FILE_OF(fd), 1)
CALL(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t where),
     (fd, data, HALVED(size), where), FILE_OF(fd), 1)
CALL(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, HALVED(count)), FILE_OF(fd), 1)
CALL(ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t where),
     (fd, parts, HALVED(count), where), FILE_OF(fd), 1)
CALL(ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t where),
     (fd, parts, HALVED(count), where), FILE_OF(fd), 1)
CALL(ssize_t, pwritev2, (int fd, const struct iovec *parts, int count, off_t where, int flags),
     (fd, parts, HALVED(count), where, flags), FILE_OF(fd), 1)
CALL(ssize_t, pwritev64v2, (int fd, const struct iovec *parts, int count, off64_t where, int flags),
     (fd, parts, HALVED(count), where, flags), FILE_OF(fd), 1)
CALL(ssize_t, sendfile, (int to, int from, off_t *where, size_t size),
     (to, from, where, HALVED(size)), FILE_OF(to), 1)
CALL(ssize_t, sendfile64, (int to, int from, off64_t *where, size_t size),
     (to, from, where, HALVED(size)), FILE_OF(to), 1)
CALL(ssize_t, copy_file_range, (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags),
     (from, a, to, b, HALVED(size), flags), FILE_OF(to), 1)
CALL(ssize_t, splice, (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags),
     (from, a, to, b, HALVED(size), flags), FILE_OF(to), 1)
CALL(int, fsync, (int fd), (fd), FILE_OF(fd), 1)
CALL(int, fdatasync, (int fd), (fd), FILE_OF(fd), 1)
CALL(int, ftruncate, (int fd, off_t size), (fd, size), FILE_OF(fd), 1)
CALL(int, ftruncate64, (int fd, off64_t size), (fd, size), FILE_OF(fd), 1)
CALL(int, truncate, (const char *path, off_t size), (path, size), path, 1)
CALL(int, truncate64, (const char *path, off64_t size), (path, size), path, 1)
CALL(int, fallocate, (int fd, int how, off_t where, off_t size), (fd, how, where, size), FILE_OF(fd), 1)
CALL(int, fallocate64, (int fd, int how, off64_t where, off64_t size), (fd, how, where, size), FILE_OF(fd), 1)
WRAPPED(int, posix_fallocate, (int fd, off_t where, off_t size), (fd, where, size), FILE_OF(fd), 1, error)
WRAPPED(int, posix_fallocate64, (int fd, off64_t where, off64_t size), (fd, where, size), FILE_OF(fd), 1, error)

/* Names. */

CALL(int, rename, (const char *from, const char *to), (from, to), to, 0)
CALL(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), to, 0)
CALL(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags), to, 0)
CALL(int, unlink, (const char *path), (path), path, 0)
CALL(int, unlinkat, (int directory, const char *path, int flags), (directory, path, flags), path, 0)
CALL(int, remove, (const char *path), (path), path, 0)
CALL(int, rmdir, (const char *path), (path), path, 0)
CALL(int, link, (const char *from, const char *to), (from, to), to, 1)
CALL(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), to, 1)
CALL(int, symlink, (const char *target, const char *path), (target, path), path, 1)
CALL(int, symlinkat, (const char *target, int directory, const char *path), (target, directory, path), path, 1)
CALL(int, mkdir, (const char *path, mode_t bits), (path, bits), path, 1)
CALL(int, mkdirat, (int directory, const char *path, mode_t bits), (directory, path, bits), path, 1)

/* What is known of a file. */

CALL(int, chmod, (const char *path, mode_t bits), (path, bits), path, 0)
CALL(int, fchmod, (int fd, mode_t bits), (fd, bits), FILE_OF(fd), 0)
CALL(int, fchmodat, (int directory, const char *path, mode_t bits, int flags),
     (directory, path, bits, flags), path, 0)
CALL(int, chown, (const char *path, uid_t user, gid_t group), (path, user, group), path, 0)
CALL(int, lchown, (const char *path, uid_t user, gid_t group), (path, user, group), path, 0)
CALL(int, fchown, (int fd, uid_t user, gid_t group), (fd, user, group), FILE_OF(fd), 0)
CALL(int, fchownat, (int directory, const char *path, uid_t user, gid_t group, int flags),
     (directory, path, user, group, flags), path, 0)
CALL(int, utimensat, (int directory, const char *path, const struct timespec times[2], int flags),
     (directory, path, times, flags), path, 0)
CALL(int, futimens, (int fd, const struct timespec times[2]), (fd, times), FILE_OF(fd), 0)
CALL(int, setxattr, (const char *path, const char *name, const void *data, size_t size, int flags),
     (path, name, data, size, flags), path, 1)
CALL(int, lsetxattr, (const char *path, const char *name, const void *data, size_t size, int flags),
     (path, name, data, size, flags), path, 1)
CALL(int, fsetxattr, (int fd, const char *name, const void *data, size_t size, int flags),
     (fd, name, data, size, flags), FILE_OF(fd), 1)
CALL(int, removexattr, (const char *path, const char *name), (path, name), path, 0)
CALL(int, lremovexattr, (const char *path, const char *name), (path, name), path, 0)
CALL(int, fremovexattr, (int fd, const char *name), (fd, name), FILE_OF(fd), 0)

/* What opens: only where it may create or empty a file. */

static mode_t bits_of(long flags, va_list more) {
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
}

#define OPEN(NAME, DIRECTORY, PARAMETERS, ...)                                                    \
    int NAME PARAMETERS {                                                                         \
        static int(*real) PARAMETERS;                                                             \
        if (!real)                                                                                \
            real = (int(*) PARAMETERS)dlsym(RTLD_NEXT, #NAME);                                    \
        va_list more;                                                                             \
        va_start(more, flags);                                                                    \
        mode_t bits = bits_of(flags, more);                                                       \
        va_end(more);                                                                             \
        int creates = 0;                                                                          \
        const char *subject = counting() ? opened(DIRECTORY, path, flags, &creates) : NULL;       \
        int action = enter(#NAME, subject, creates);                                              \
        if (action & FAIL)                                                                        \
            return -1;                                                                            \
        int result = real(__VA_ARGS__, flags, bits);                                              \
        if (action & KILL_AFTER)                                                                  \
            die();                                                                                \
        return result;                                                                            \
    }
OPEN(open, AT_FDCWD, (const char *path, int flags, ...), path)
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), path)
OPEN(openat, directory, (int directory, const char *path, int flags, ...), directory, path)
OPEN(openat64, directory, (int directory, const char *path, int flags, ...), directory, path)

long syscall(long number, ...) {
    static long (*real)(long, ...);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long more[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        more[i] = va_arg(list, long);
    va_end(list);
    int action = 0;
    if (number == SYS_renameat2 && counting())
        action = enter("renameat2", (const char *)more[3], 0);
    if (action & FAIL)
        return -1;
    long result = real(number, more[0], more[1], more[2], more[3], more[4], more[5]);
    if (action & KILL_AFTER)
        die();
    return result;
}
