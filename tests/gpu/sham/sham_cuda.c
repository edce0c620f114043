// A sham libcuda.so.1 over host memory: GPUINFRA_SHAM_GPUS devices (1 to 16), each an address range of its own.
// For tests only; the programs recognise it by gpuinfra_sham. Everything is done at once, in the calling thread.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <pthread.h>

#include "../../../pytest_gpuinfra/on_target/kernels/kernels.cu"
#include "faults.h"

#define MOST_GPUS 16
int gpuinfra_sham = 1;

typedef struct { u64 base, size; int device, ipc, fd; u8 *shadow; } range;
static range ranges[4096];
static int range_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int peers[MOST_GPUS][MOST_GPUS];
static __thread int current = -1;

static int device_count(void)
{
    const char *text = getenv("GPUINFRA_SHAM_GPUS");
    int count = text ? atoi(text) : 2;
    return count < 0 ? 0 : count > MOST_GPUS ? MOST_GPUS : count;
}

// CUDA_VISIBLE_DEVICES of indices ("0,2"); the sham's nth visible device.
static int visible(int index)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    char copy[256], *word, *rest;
    int at = 0;
    if (!text)
        return index < device_count() ? index : -1;
    snprintf(copy, sizeof copy, "%s", text);
    for (word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest), at++)
        if (at == index)
            return atoi(word) < device_count() ? atoi(word) : -1;
    return -1;
}

int cuInit(unsigned flags)
{
    (void)flags;
    if (getenv("GPUINFRA_SHAM_INIT"))
        return atoi(getenv("GPUINFRA_SHAM_INIT"));
    return device_count() ? 0 : 100;
}

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }

int cuGetErrorName(int code, const char **text)
{
    *text = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE"
          : code == 222 ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : code == 217 ? "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" : code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
          : "CUDA_ERROR_UNKNOWN";
    return 0;
}

int cuDeviceGetCount(int *count)
{
    for (*count = 0; visible(*count) >= 0; ++*count)
        ;
    return 0;
}

int cuDeviceGet(int *device, int index)
{
    *device = visible(index);
    return *device < 0 ? 101 : 0;
}

int cuDeviceGetPCIBusId(char *text, int size, int device)
{
    snprintf(text, size, "0000:%02X:00.0", device * 16 + 1);
    return 0;
}

int cuDeviceGetName(char *text, int size, int device)
{
    snprintf(text, size, getenv("GPUINFRA_SHAM_MIG") ? "Sham GPU MIG 1g.5gb" : "Sham GPU");
    return device < 0;
}

int cuDeviceGetUuid_v2(u8 *uuid, int device)
{
    for (int i = 0; i < 16; i++)
        uuid[i] = device * 16 + i;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 16 ? 4 : 0;
    return 0;
}

int cuDeviceCanAccessPeer(int *able, int device, int peer)
{
    *able = 1;
    read_faults();
    for (int i = 0; i < fault_count; i++)
        if (!strcmp(faults[i].kind, "no_access") && faults[i].src == device && faults[i].dst == peer)
            *able = 0;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)(uintptr_t)(device + 1);
    return 0;
}

int cuCtxSetCurrent(void *context) { current = (int)(uintptr_t)context - 1; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = (void *)1; return 0; }

// Sums of the sham NCCL go on in a thread of their own.
int cuStreamSynchronize(void *stream)
{
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    void (*wait)(void) = nccl ? dlsym(nccl, "gpuinfra_wait") : NULL;
    (void)stream;
    if (wait)
        wait();
    return 0;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream, (void)event, (void)flags; return 0; }

int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(struct timespec));
    return 0;
}

int cuEventRecord(void *event, void *stream)
{
    cuStreamSynchronize(stream);
    return clock_gettime(CLOCK_MONOTONIC, event);
}

int cuEventElapsedTime(float *milliseconds, struct timespec *begin, struct timespec *end)
{
    *milliseconds = (end->tv_sec - begin->tv_sec) * 1e3f + (end->tv_nsec - begin->tv_nsec) / 1e6f;
    return 0;
}

int cuModuleLoadDataEx(void **module, const char *text, unsigned count, int *options, void **values)
{
    (void)count, (void)options;
    if (getenv("GPUINFRA_SHAM_REFUSES_PTX")) {
        snprintf(values[0], 2048, "ptxas fatal : Unsupported .version 6.4; current version is '6.0'");
        return 222;
    }
    *module = (void *)text;
    return strstr(text, ".entry fill_bytes(") ? 0 : 200;
}

static const char *names[] = {"fill_bytes", "copy_bytes", "check_bytes", "fill_elements", "check_elements"};

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    for (int i = 0; i < 5; i++)
        if (!strcmp(name, names[i])) {
            *function = (void *)names[i];
            return 0;
        }
    return 500;
}

static range *owner_of(u64 address)
{
    for (int i = 0; i < range_count; i++)
        if (address >= ranges[i].base && address < ranges[i].base + ranges[i].size)
            return &ranges[i];
    return NULL;
}

static u64 add_range(int fd, size_t size, int device, int ipc)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return 0;
    pthread_mutex_lock(&lock);
    ranges[range_count++] = (range){(u64)at, size, device, ipc, fd, NULL};
    pthread_mutex_unlock(&lock);
    return (u64)at;
}

int cuMemAlloc_v2(u64 *address, size_t size)
{
    fault *little = device_fault("little_memory", current);
    int fd = memfd_create("sham", 0);
    if ((little && size > little->free_bytes) || fd < 0 || ftruncate(fd, size))
        return 2;
    *address = add_range(fd, size, current, 0);
    return *address ? 0 : 2;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    fault *little = device_fault("little_memory", current);
    *total = 16ull << 30;
    *free_bytes = little ? little->free_bytes : 15ull << 30;
    return 0;
}

int cuIpcGetMemHandle(u64 *handle, u64 address)
{
    range *one = owner_of(address);
    handle[0] = getpid();
    handle[1] = one->fd;
    handle[2] = one->size;
    handle[3] = one->device;
    return 0;
}

typedef struct { u64 words[8]; } ipc_handle;

int cuIpcOpenMemHandle_v2(u64 *address, ipc_handle handle, unsigned flags)
{
    char path[64];
    int fd;
    (void)flags;
    if (getenv("GPUINFRA_SHAM_REFUSES_IPC"))
        return 217;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle.words[0], (int)handle.words[1]);
    fd = open(path, O_RDWR);
    *address = fd < 0 ? 0 : add_range(fd, handle.words[2], (int)handle.words[3], 1);
    return *address ? 0 : 201;
}

int cuCtxEnablePeerAccess(void *context, unsigned flags)
{
    int peer = (int)(uintptr_t)context - 1;
    (void)flags;
    if (getenv("GPUINFRA_SHAM_REFUSES_PEERS"))
        return 217;
    if (peers[current][peer])
        return 704;
    peers[current][peer] = 1;
    return 0;
}

int cuMemcpyHtoD_v2(u64 to, const void *from, size_t size)
{
    range *target = owner_of(to);
    fault *planted = target ? fault_alone(target->device, "host_memory", size) : NULL;
    if (planted && !strcmp(planted->kind, "error"))
        return 700;
    memcpy((void *)to, from, size);
    if (planted && !strcmp(planted->kind, "zeroed"))
        memset((void *)to, 0, size);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, u64 from, size_t size) { memcpy(to, (void *)from, size); return 0; }

// What only the interposing library asks for.
int cuPointerGetAttribute(int *value, int attribute, u64 address)
{
    range *one = owner_of(address);
    (void)attribute;
    *value = one ? one->device : -1;
    return one ? 0 : 1;
}

int cuMemGetAddressRange_v2(u64 *base, size_t *size, u64 address)
{
    range *one = owner_of(address);
    *base = one ? one->base : 0;
    *size = one ? one->size : 0;
    return one ? 0 : 1;
}

int cuCtxGetDevice(int *device) { *device = current; return 0; }

int cuMemsetD8Async(u64 to, u8 value, size_t size, void *stream)
{
    cuStreamSynchronize(stream);
    memset((void *)to, value, size);
    return 0;
}

static u8 *shadow_of(range *one)
{
    if (!one->shadow)
        one->shadow = calloc(1, one->size);
    return one->shadow;
}

// One copy between devices, by the calling thread's device, with whatever fault is planted.
static int transfer(u64 to, u64 from, u64 size, int by_kernel)
{
    range *target = owner_of(to), *origin = owner_of(from);
    char mechanism[32];
    fault *planted;
    u64 start = 0;
    if (!target || !origin)
        return 700;
    if (target->device == origin->device) {
        planted = fault_alone(target->device, "kernel_copy", size);
        if (planted && !strcmp(planted->kind, "error"))
            return 700;
        if (!planted || strcmp(planted->kind, "never_written"))
            copy_bytes((u8 *)to, (const u8 *)from, size);
        return 0;
    }
    snprintf(mechanism, sizeof mechanism, "%s%s", !by_kernel ? "copy_engine" : target->ipc ? "ipc_" : "kernel_",
             !by_kernel ? "" : current == origin->device ? "store" : "load");
    planted = copy_fault(origin->device, target->device, mechanism, size);
    if (planted && !strcmp(planted->kind, "error"))
        return 700;
    if (planted && !strcmp(planted->kind, "mirror")) {
        // the mapping of the remote device leads elsewhere, for writes and for reads
        if (current == origin->device)
            memcpy(shadow_of(target) + (to - target->base), (void *)from, size);
        else
            memcpy((void *)to, shadow_of(origin) + (from - origin->base), size);
        return 0;
    }
    if (planted && planted->last_bytes && planted->last_bytes < size)
        start = size - planted->last_bytes;
    if (planted && !strcmp(planted->kind, "never_written")) {
        copy_bytes((u8 *)to, (const u8 *)from, start);
        return 0;
    }
    copy_bytes((u8 *)to, (const u8 *)from, size);
    if (planted && !strcmp(planted->kind, "zeroed"))
        memset((u8 *)to + start, 0, size - start);
    if (planted && !strcmp(planted->kind, "scrambled"))
        memset((u8 *)to + start, 0x5a, size - start);
    if (planted && !strcmp(planted->kind, "outside"))
        memset((u8 *)to + size, 0x5a, 16);
    return 0;
}

int cuMemcpyPeerAsync(u64 to, void *to_context, u64 from, void *from_context, size_t size, void *stream)
{
    (void)to_context, (void)from_context, (void)stream;
    return transfer(to, from, size, 0);
}

#define ARGUMENT(type, n) (*(type *)arguments[n])

int cuLaunchKernel(const char *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    if (function == names[0])
        fill_bytes(ARGUMENT(u8 *, 0), ARGUMENT(u64, 1), ARGUMENT(u64, 2), ARGUMENT(u32, 3), ARGUMENT(u32, 4));
    else if (function == names[1])
        return transfer(ARGUMENT(u64, 0), ARGUMENT(u64, 1), ARGUMENT(u64, 2), 1);
    else if (function == names[2])
        check_bytes(ARGUMENT(u8 *, 0), ARGUMENT(u64, 1), ARGUMENT(u64, 2), ARGUMENT(u32, 3), ARGUMENT(u32, 4),
                    ARGUMENT(u64 *, 5));
    else if (function == names[3])
        fill_elements(ARGUMENT(void *, 0), ARGUMENT(u64, 1), ARGUMENT(u32, 2), ARGUMENT(u32, 3), ARGUMENT(u32, 4));
    else if (function == names[4])
        check_elements(ARGUMENT(void *, 0), ARGUMENT(u64, 1), ARGUMENT(u32, 2), ARGUMENT(u32, 3), ARGUMENT(u32, 4),
                       ARGUMENT(u32, 5), ARGUMENT(u64 *, 6));
    else
        return 500;
    return 0;
}
