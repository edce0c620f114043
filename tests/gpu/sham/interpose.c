// Libraries that stand in front of the real driver, NVML and NCCL and plant faults on real GPUs. For tests only;
// the programs recognise them by gpuinfra_interposer. One source, built three times (build.py): each result carries
// the name of the real library, needs the real one by its absolute path, and leaves every other call to it.
#define _GNU_SOURCE
#define INTERPOSER
#include <dlfcn.h>
#include <stdint.h>

#include "faults.h"

int gpuinfra_interposer = 1;
typedef uint64_t u64;

static void *real(const char *name)
{
    static void *library;
    void *call;
    if (!library)
        library = dlopen(REAL, RTLD_NOW | RTLD_NOLOAD);
    call = library ? dlsym(library, name) : NULL;
    if (!call) {
        fprintf(stderr, "interposer: %s has no %s\n", REAL, name);
        abort();
    }
    return call;
}

#ifdef CUDA
#define POINTER_DEVICE_ORDINAL 9
static void *copy_kernel;

// The real driver says of an IPC mapping that it belongs to the device whose context opened it, so whose memory a
// handle stands for is written by the exporting process into the file GPUINFRA_IPC_TABLE, and read by the opening one.
typedef struct { unsigned char bytes[64]; } ipc_handle;
typedef struct { ipc_handle handle; int device; size_t size; } exported;
static struct { u64 base; size_t size; int device; } ipc_mappings[4096];
static int ipc_count;

static int mapping_of(u64 address)
{
    for (int i = 0; i < ipc_count; i++)
        if (address >= ipc_mappings[i].base && address < ipc_mappings[i].base + ipc_mappings[i].size)
            return i;
    return -1;
}

static int device_of(u64 address)
{
    static int (*ask)(void *, int, u64);
    int device = -1, mapping = mapping_of(address);
    if (mapping >= 0)
        return ipc_mappings[mapping].device;
    if (!ask)
        ask = real("cuPointerGetAttribute");
    return ask(&device, POINTER_DEVICE_ORDINAL, address) ? -1 : device;
}

static int current_device(void)
{
    int device = -1;
    ((int (*)(int *))real("cuCtxGetDevice"))(&device);
    return device;
}

int cuIpcGetMemHandle(ipc_handle *handle, u64 address)
{
    int code = ((int (*)(ipc_handle *, u64))real("cuIpcGetMemHandle"))(handle, address);
    const char *path = getenv("GPUINFRA_IPC_TABLE");
    FILE *table = path && !code ? fopen(path, "ab") : NULL;
    if (table) {
        exported one = {*handle, device_of(address), 0};
        u64 base;
        ((int (*)(u64 *, size_t *, u64))real("cuMemGetAddressRange_v2"))(&base, &one.size, address);
        fwrite(&one, sizeof one, 1, table);
        fclose(table);
    }
    return code;
}

int cuIpcOpenMemHandle_v2(u64 *address, ipc_handle handle, unsigned flags)
{
    int code = ((int (*)(u64 *, ipc_handle, unsigned))real("cuIpcOpenMemHandle_v2"))(address, handle, flags);
    const char *path = getenv("GPUINFRA_IPC_TABLE");
    FILE *table = path && !code ? fopen(path, "rb") : NULL;
    exported one;
    while (table && fread(&one, sizeof one, 1, table) == 1)
        if (!memcmp(&one.handle, &handle, sizeof handle) && ipc_count < 4096) {
            ipc_mappings[ipc_count].base = *address;
            ipc_mappings[ipc_count].size = one.size;
            ipc_mappings[ipc_count++].device = one.device;
            break;
        }
    if (table)
        fclose(table);
    return code;
}

// What to do about one copy: before it (whether to leave it out, how many bytes to let through), and after it.
static fault *find(u64 to, u64 from, size_t size, int by_kernel)
{
    int src, dst;
    char mechanism[32];
    read_faults();
    if (!fault_count)
        return NULL;
    src = device_of(from), dst = device_of(to);
    if (src < 0 || dst < 0 || src == dst)
        return NULL;
    snprintf(mechanism, sizeof mechanism, "%s%s", !by_kernel ? "copy_engine" : mapping_of(to) >= 0 ? "ipc_" : "kernel_",
             !by_kernel ? "" : current_device() == src ? "store" : "load");
    return copy_fault(src, dst, mechanism, size);
}

static size_t start_of(fault *one, size_t size)
{
    return one->last_bytes && one->last_bytes < size ? size - one->last_bytes : 0;
}

static int afterwards(fault *one, u64 to, size_t size, void *stream)
{
    int (*set)(u64, unsigned char, size_t, void *) = real("cuMemsetD8Async");
    size_t start = start_of(one, size);
    if (!strcmp(one->kind, "zeroed"))
        return set(to + start, 0, size - start, stream);
    if (!strcmp(one->kind, "scrambled"))
        return set(to + start, 0x5a, size - start, stream);
    if (!strcmp(one->kind, "outside"))
        return set(to + size, 0x5a, 16, stream);
    return 0;
}

int cuMemcpyPeerAsync(u64 to, void *to_context, u64 from, void *from_context, size_t size, void *stream)
{
    int (*copy)(u64, void *, u64, void *, size_t, void *) = real("cuMemcpyPeerAsync");
    fault *one = find(to, from, size, 0);
    size_t part = one && !strcmp(one->kind, "never_written") ? start_of(one, size) : size;
    int code = one && !strcmp(one->kind, "error") ? 700
             : part ? copy(to, to_context, from, from_context, part, stream) : 0;
    return code || !one ? code : afterwards(one, to, size, stream);
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    int code = ((int (*)(void **, void *, const char *))real("cuModuleGetFunction"))(function, module, name);
    static void *kernels[64];
    static int count;
    if (!code && !strcmp(name, "copy_bytes") && count < 64)
        kernels[count++] = *function;
    copy_kernel = kernels;
    return code;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra)
{
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **) = real("cuLaunchKernel");
    fault *one = NULL;
    u64 to = 0, size = 0, part;
    int code = 0;
    for (int i = 0; copy_kernel && i < 64; i++)
        if (function && ((void **)copy_kernel)[i] == function) {
            to = *(u64 *)arguments[0];
            size = *(u64 *)arguments[2];
            one = find(to, *(u64 *)arguments[1], size, 1);
            break;
        }
    if (!one)
        return launch(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
    if (!strcmp(one->kind, "error"))
        return 700;
    part = !strcmp(one->kind, "never_written") ? start_of(one, size) : size;
    if (part) {
        void *changed[3] = {arguments[0], arguments[1], &part};
        code = launch(function, gx, gy, gz, bx, by, bz, shared, stream, changed, extra);
    }
    return code ? code : afterwards(one, to, size, stream);
}
#endif

#ifdef NVML
typedef struct { unsigned long long total, free, used; } memory_info;

int nvmlDeviceGetMemoryInfo(void *handle, memory_info *info)
{
    int code = ((int (*)(void *, memory_info *))real("nvmlDeviceGetMemoryInfo"))(handle, info);
    unsigned index = 0;
    fault *little;
    ((int (*)(void *, unsigned *))real("nvmlDeviceGetIndex"))(handle, &index);
    little = device_fault("little_memory", (int)index);
    if (!code && little)
        info->free = little->free_bytes;
    return code;
}
#endif

#ifdef NCCL
typedef struct { char bytes[128]; } unique_id;
static int my_rank = -1;

int ncclCommInitRank(void **result, int ranks, unique_id id, int rank)
{
    my_rank = rank;
    if (rank_fault("rank_p2p", rank, 0))
        unsetenv("NCCL_P2P_DISABLE");
    if (rank_fault("rank_error", rank, 0))
        return 3;
    return ((int (*)(void **, int, unique_id, int))real("ncclCommInitRank"))(result, ranks, id, rank);
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *one, void *stream)
{
    size_t width = type == 9 ? 2 : 4;
    int code;
    if (rank_fault("rank_hang", my_rank, count * width))
        for (;;)
            pause();
    if (rank_fault("rank_die", my_rank, count * width)) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    code = ((int (*)(const void *, void *, size_t, int, int, void *, void *))real("ncclAllReduce"))(
        from, to, count, type, op, one, stream);
    if (!code && rank_fault("rank_wrong", my_rank, count * width)) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        int (*set)(u64, unsigned char, size_t, void *) = dlsym(driver, "cuMemsetD8Async");
        return set((u64)to, 0x5a, width, stream) ? 1 : 0;
    }
    return code;
}
#endif
