// A sham libnccl.so.2: all-reduces of host memory through one file in /dev/shm, named and held open as NCCL's are,
// with NCCL's log lines. For tests only; the programs recognise it by gpuinfra_sham.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "faults.h"

#define CHUNK (1 << 20)
#define MOST 16
int gpuinfra_sham = 1;

typedef struct { char bytes[128]; } unique_id;
typedef struct { int arrived, generation, left; } meeting;
typedef struct { meeting *at; unsigned char *slots; int rank, ranks, fd, connected; char path[128]; } communicator;

static FILE *log_file;

static void say(int rank, const char *format, ...)
{
    va_list arguments;
    if (!log_file) {
        log_file = getenv("NCCL_DEBUG_FILE") ? fopen(getenv("NCCL_DEBUG_FILE"), "w") : stdout;
        setlinebuf(log_file);
    }
    fprintf(log_file, "node-a:%d:%d [%d] NCCL INFO ", getpid(), getpid(), rank);
    va_start(arguments, format);
    vfprintf(log_file, format, arguments);
    va_end(arguments);
    fputc('\n', log_file);
}

int ncclGetVersion(int *version)
{
    *version = getenv("GPUINFRA_SHAM_NCCL") ? atoi(getenv("GPUINFRA_SHAM_NCCL")) : 22809;
    return 0;
}

const char *ncclGetErrorString(int code)
{
    return code == 2 ? "unhandled system error" : code == 3 ? "internal error" : "unknown error";
}

int ncclGetUniqueId(unique_id *id)
{
    int fd;
    snprintf(id->bytes, sizeof id->bytes, "/dev/shm/nccl-XXXXXX");
    fd = mkstemp(id->bytes);
    if (fd < 0 || ftruncate(fd, 4096 + (long)CHUNK * MOST))
        return 2;
    close(fd);
    return 0;
}

static void meet(communicator *one)
{
    int generation = __atomic_load_n(&one->at->generation, __ATOMIC_SEQ_CST);
    if (__atomic_add_fetch(&one->at->arrived, 1, __ATOMIC_SEQ_CST) == one->ranks) {
        __atomic_store_n(&one->at->arrived, 0, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&one->at->generation, 1, __ATOMIC_SEQ_CST);
        return;
    }
    while (__atomic_load_n(&one->at->generation, __ATOMIC_SEQ_CST) == generation)
        usleep(20);
}

int ncclCommInitRank(communicator **result, int ranks, unique_id id, int rank)
{
    communicator *one = calloc(1, sizeof *one);
    void *at;
    say(rank, "NCCL version 2.28.9+sham");
    if (rank_fault("rank_p2p", rank, 0))
        unsetenv("NCCL_P2P_DISABLE");
    if (getenv("NCCL_P2P_DISABLE"))
        say(rank, "NCCL_P2P_DISABLE set by environment to %s", getenv("NCCL_P2P_DISABLE"));
    if (rank_fault("rank_error", rank, 0)) {
        say(rank, "sham.c:1 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'");
        return 3;
    }
    one->fd = open(id.bytes, O_RDWR);
    at = mmap(NULL, 4096 + (size_t)CHUNK * MOST, PROT_READ | PROT_WRITE, MAP_SHARED, one->fd, 0);
    if (one->fd < 0 || at == MAP_FAILED)
        return 2;
    snprintf(one->path, sizeof one->path, "%s", id.bytes);
    one->at = at;
    one->slots = (unsigned char *)at + 4096;
    one->rank = rank;
    one->ranks = ranks;
    meet(one);
    say(rank, "ncclCommInitRank comm %p rank %d nranks %d cudaDev %d - Init COMPLETE", (void *)one, rank, ranks, rank);
    *result = one;
    return 0;
}

static float wide(unsigned short bits)
{
    union { unsigned u; float f; } value = {(unsigned)bits << 16};
    return value.f;
}

static unsigned short narrow(float number)
{
    union { float f; unsigned u; } value = {number};
    return (unsigned short)(value.u >> 16);
}

// A sum goes on in a thread of its own, as on a GPU; the sham driver's cuStreamSynchronize waits for it.
typedef struct { const void *from; void *to; size_t count; int type; communicator *one; } request;
static pthread_t running;
static int is_running;

void gpuinfra_wait(void)
{
    if (is_running)
        pthread_join(running, NULL);
    is_running = 0;
}

static void *reduce(void *argument);

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, communicator *one, void *stream)
{
    size_t size = count * (type == 9 ? 2 : 4);
    request *made = malloc(sizeof *made);
    (void)op, (void)stream;
    gpuinfra_wait();
    if (!one->connected) {
        const char *off = getenv("NCCL_P2P_DISABLE");
        for (int channel = 0; channel < 2; channel++)
            say(one->rank, "Channel %02d%s : %d[%d] -> %d[%d] via %s", channel, off && *off == '1' ? "" : "/0",
                one->rank, one->rank, (one->rank + 1) % one->ranks, (one->rank + 1) % one->ranks,
                off && *off == '1' ? "SHM/direct/direct" : "P2P/CUMEM");
        one->connected = 1;
    }
    if (rank_fault("rank_hang", one->rank, size))
        for (;;)
            pause();
    if (rank_fault("rank_die", one->rank, size)) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    *made = (request){from, to, count, type, one};
    is_running = !pthread_create(&running, NULL, reduce, made);
    return !is_running;
}

static void *reduce(void *argument)
{
    request made = *(request *)argument;
    const void *from = made.from;
    void *to = made.to;
    int type = made.type;
    communicator *one = made.one;
    size_t width = type == 9 ? 2 : 4, size = made.count * width;
    free(argument);
    for (size_t done = 0; done < size; done += CHUNK) {
        size_t part = size - done < CHUNK ? size - done : CHUNK;
        memcpy(one->slots + (size_t)one->rank * CHUNK, (const char *)from + done, part);
        meet(one);
        for (size_t i = 0; i < part / width; i++) {
            unsigned whole = 0;
            float number = 0;
            for (int rank = 0; rank < one->ranks; rank++) {
                unsigned char *slot = one->slots + (size_t)rank * CHUNK;
                if (type == 2)
                    whole += ((unsigned *)slot)[i];
                else
                    number += type == 7 ? ((float *)slot)[i] : wide(((unsigned short *)slot)[i]);
            }
            if (type == 2)
                ((unsigned *)((char *)to + done))[i] = whole;
            else if (type == 7)
                ((float *)((char *)to + done))[i] = number;
            else
                ((unsigned short *)((char *)to + done))[i] = narrow(number);
        }
        meet(one);
    }
    if (rank_fault("rank_wrong", one->rank, size))
        memset(to, 0x5a, width);
    return NULL;
}

int ncclCommDestroy(communicator *one)
{
    if (__atomic_add_fetch(&one->at->left, 1, __ATOMIC_SEQ_CST) == one->ranks)
        unlink(one->path);
    return 0;
}
