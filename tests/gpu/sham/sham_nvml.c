// A sham libnvidia-ml.so.1: free memory of the sham GPUs. For tests only.
#include "faults.h"

int gpuinfra_sham = 1;

typedef struct { unsigned long long total, free, used; } memory_info;

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **handle)
{
    unsigned bus = 0;
    if (sscanf(pci, "%*x:%x:", &bus) != 1)
        return 2;
    *handle = (void *)(unsigned long)bus;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_info *info)
{
    fault *little = device_fault("little_memory", (int)((unsigned long)handle / 16));
    info->total = 16ull << 30;
    info->free = little ? little->free_bytes : 15ull << 30;
    info->used = info->total - info->free;
    return 0;
}

int nvmlDeviceGetIndex(void *handle, unsigned *index)
{
    *index = (unsigned)((unsigned long)handle / 16);
    return 0;
}
