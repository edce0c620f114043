// Faults that the tests plant, from the environment variable GPUINFRA_FAULTS. For tests only.
//
//   KIND[,name=value...][;KIND...]
//
// Of copies: never_written, zeroed, scrambled, mirror (sham only), outside, stall, die, error,
//   kmsg (writes GPUINFRA_KMSG into the kernel's log, once, in the middle of a copy that is right)
//   pair=0-1          device indices, directed; all pairs if left out
//   mechanism=NAME    copy_engine, kernel_store, kernel_load, ipc_store, ipc_load; all of these if left out;
//                     on one device alone (sham only): host_memory (zeroed, error), kernel_copy (never_written, error)
//   from_repeat=N     from the Nth copy of this pair, mechanism and size on
//   min_bytes=N       only copies of at least N bytes
//   last_bytes=N      only the last N bytes
//   after=0-1         only a copy that comes directly after one of this pair: a chain whose pairs are right
// Of all-reduces: rank_hang, rank_die, rank_wrong, rank_error, rank_p2p (forgets NCCL_P2P_DISABLE)
//   rank=N, min_bytes=N
// Of devices: little_memory (device=N, free_bytes=N), no_access (pair=0-1)
#ifndef FAULTS_H
#define FAULTS_H

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char kind[32], mechanism[32];
    int src, dst, after_src, after_dst, rank, device;
    long from_repeat;
    unsigned long long min_bytes, last_bytes, free_bytes;
} fault;

static fault faults[32];
static int fault_count = -1;

static void read_faults(void)
{
    const char *given = getenv("GPUINFRA_FAULTS");
    char text[4096], *entry, *rest_entries, *word, *rest_words;
    if (fault_count >= 0)
        return;
    fault_count = 0;
#ifdef FAULTS_OF_HOST
    given = given ? given : FAULTS_OF_HOST;
#endif
    if (!given)
        return;
#ifndef INTERPOSER
    if (getenv("GPUINFRA_SHAM_IS_CLEAN"))  // the interposer's own tests stand in front of the sham
        return;
#endif
    snprintf(text, sizeof text, "%s", given);
    for (entry = strtok_r(text, ";", &rest_entries); entry && fault_count < 32;
         entry = strtok_r(NULL, ";", &rest_entries)) {
        fault *one = &faults[fault_count++];
        memset(one, 0, sizeof *one);
        one->src = one->dst = one->after_src = one->after_dst = one->rank = one->device = -1;
        one->from_repeat = 1;
        for (word = strtok_r(entry, ",", &rest_words); word; word = strtok_r(NULL, ",", &rest_words)) {
            if (!strchr(word, '='))
                snprintf(one->kind, sizeof one->kind, "%s", word);
            else if (sscanf(word, "pair=%d-%d", &one->src, &one->dst) == 2 ||
                     sscanf(word, "after=%d-%d", &one->after_src, &one->after_dst) == 2)
                ;
            else if (!strncmp(word, "mechanism=", 10))
                snprintf(one->mechanism, sizeof one->mechanism, "%s", word + 10);
            else if (!sscanf(word, "from_repeat=%ld", &one->from_repeat) &&
                     !sscanf(word, "min_bytes=%llu", &one->min_bytes) &&
                     !sscanf(word, "last_bytes=%llu", &one->last_bytes) &&
                     !sscanf(word, "free_bytes=%llu", &one->free_bytes) &&
                     !sscanf(word, "device=%d", &one->device) && !sscanf(word, "rank=%d", &one->rank)) {
                fprintf(stderr, "GPUINFRA_FAULTS: what is %s?\n", word);
                abort();
            }
        }
    }
}

// How many copies of this pair, mechanism and size there were, this one included.
static long count_copy(int src, int dst, const char *mechanism, unsigned long long size)
{
    static struct { int src, dst; char mechanism[32]; unsigned long long size; long count; } seen[65536];
    static int used;
    for (int i = 0; i < used; i++)
        if (seen[i].src == src && seen[i].dst == dst && seen[i].size == size &&
            !strcmp(seen[i].mechanism, mechanism))
            return ++seen[i].count;
    if (used == 65536)
        abort();
    seen[used].src = src;
    seen[used].dst = dst;
    seen[used].size = size;
    seen[used].count = 1;
    snprintf(seen[used].mechanism, 32, "%s", mechanism);
    return seen[used++].count;
}

static void log_once(void)
{
    static int told;
    const char *text = getenv("GPUINFRA_KMSG");
    int fd = told || !text ? -1 : open("/dev/kmsg", O_WRONLY);
    told = 1;
    if (fd >= 0 && write(fd, text, strlen(text)) < 0)
        abort();
    if (fd >= 0)
        close(fd);
}

static fault *copy_fault(int src, int dst, const char *mechanism, unsigned long long size)
{
    static const char *kinds = " never_written zeroed scrambled mirror outside stall die error kmsg ";
    static int last_src = -1, last_dst = -1;
    int before_src = last_src, before_dst = last_dst;
    long count;
    char word[40];
    read_faults();
    if (!fault_count)
        return NULL;
    count = count_copy(src, dst, mechanism, size);
    last_src = src;
    last_dst = dst;
    for (int i = 0; i < fault_count; i++) {
        fault *one = &faults[i];
        snprintf(word, sizeof word, " %s ", one->kind);
        if (strstr(kinds, word) && (one->src < 0 || (one->src == src && one->dst == dst)) &&
            (!one->mechanism[0] || !strcmp(one->mechanism, mechanism)) && count >= one->from_repeat &&
            size >= one->min_bytes &&
            (one->after_src < 0 || (one->after_src == before_src && one->after_dst == before_dst))) {
            if (!strcmp(one->kind, "stall"))
                for (;;)
                    pause();
            if (!strcmp(one->kind, "die")) {
                signal(SIGSEGV, SIG_DFL);
                raise(SIGSEGV);
            }
            if (!strcmp(one->kind, "kmsg")) {
                log_once();
                return NULL;
            }
            return one;
        }
    }
    return NULL;
}

// A fault of copies on one device: only one that names the mechanism.
static fault *fault_alone(int device, const char *mechanism, unsigned long long size)
{
    int named = 0;
    read_faults();
    for (int i = 0; i < fault_count; i++)
        named |= !strcmp(faults[i].mechanism, mechanism);
    return named ? copy_fault(device, device, mechanism, size) : NULL;
}

static int rank_fault(const char *kind, int rank, unsigned long long size)
{
    read_faults();
    for (int i = 0; i < fault_count; i++)
        if (!strcmp(faults[i].kind, kind) && (faults[i].rank < 0 || faults[i].rank == rank) &&
            size >= faults[i].min_bytes)
            return 1;
    return 0;
}

static fault *device_fault(const char *kind, int device)
{
    read_faults();
    for (int i = 0; i < fault_count; i++)
        if (!strcmp(faults[i].kind, kind) && (faults[i].device < 0 || faults[i].device == device))
            return &faults[i];
    return NULL;
}
#endif
