// A library that writes down as whom and where it was loaded, before anything else of its process runs. For tests only.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef NAME
#define NAME "preload"
#endif

__attribute__((constructor)) static void witness(void)
{
    static const char *spaces[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"};
    const char *given = getenv("GPUINFRA_MARKS");
    char path[512], text[8192], link[128];
    struct stat root;
    ssize_t size;
    int from, to;
    snprintf(path, sizeof path, "%s/%s-%d", given ? given : "/marks/unknown", NAME, getpid());
    to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    from = open("/proc/self/status", O_RDONLY);
    while (from >= 0 && to >= 0 && (size = read(from, text, sizeof text)) > 0)
        if (write(to, text, size) < 0)
            break;
    for (unsigned number = 0; to >= 0 && number < sizeof spaces / sizeof *spaces; number++) {
        snprintf(path, sizeof path, "/proc/self/ns/%s", spaces[number]);
        size = readlink(path, link, sizeof link - 1);
        dprintf(to, "ns/%s:\t%.*s\n", spaces[number], size > 0 ? (int)size : 0, link);
    }
    if (to >= 0 && !stat("/", &root))
        dprintf(to, "root:\t%lu\n", (unsigned long)root.st_ino);
    close(from);
    close(to);
}
