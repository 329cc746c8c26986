/* Shifts CLOCK_REALTIME of the processes that preload this library, by the number of seconds in a file of the shared
 * folder. Linux's time namespaces cannot shift this clock. The file is mapped, so a shift takes effect at once. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift_s;

__attribute__((constructor)) static void map_shift(void) {
    char host[65] = "", path[128];
    int64_t none = 0;
    gethostname(host, sizeof host - 1);
    snprintf(path, sizeof path, "/checkpoints/clock-%s", host);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return;
    /* A page without storage behind it would end the process at its first use while the volume is full. */
    if (lseek(file, 0, SEEK_END) == sizeof none || pwrite(file, &none, sizeof none, 0) == sizeof none) {
        void *page = mmap(0, sizeof none, PROT_READ, MAP_SHARED, file, 0);
        if (page != MAP_FAILED) shift_s = page;
    }
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long code = syscall(SYS_clock_gettime, clock, now);
    if (code == 0 && clock == CLOCK_REALTIME && shift_s) now->tv_sec += *shift_s;
    return (int)code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
