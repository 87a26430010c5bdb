/* GPU memory whose pages can be released while its addresses stay reserved.
 *
 * torch takes segments of a pool from here. A segment is a range of addresses and the pages behind
 * it. `memory_release` gives the pages of a pool back to the GPU; CUDA graphs keep the addresses.
 * `memory_restore` puts other pages behind them, whose content is undefined.
 *
 * The driver is looked up when the first segment is taken, so this library needs no CUDA. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

enum { PINNED = 1, ON_DEVICE = 1, READ_WRITE = 3, NO_DRIVER = 100 };

struct location {
    int kind, device;
};

struct properties { /* CUmemAllocationProp */
    int kind, handles;
    struct location location;
    void *metadata;
    unsigned char flags[8];
};

struct access { /* CUmemAccessDesc */
    struct location location;
    int flags;
};

struct segment {
    struct segment *next;
    uint64_t address, bytes, pages; /* pages: 0 while they are released */
    int pool, device;
};

static struct {
    int (*granularity)(size_t *, const struct properties *, int);
    int (*reserve)(uint64_t *, size_t, size_t, uint64_t, uint64_t);
    int (*create)(uint64_t *, size_t, const struct properties *, uint64_t);
    int (*map)(uint64_t, size_t, size_t, uint64_t, uint64_t);
    int (*allow)(uint64_t, size_t, const struct access *, size_t);
    int (*unmap)(uint64_t, size_t);
    int (*release)(uint64_t);
    int (*give_back)(uint64_t, size_t);
    int (*synchronize)(void);
} driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct segment *segments;
static int is_loaded;

static int load_driver(void) {
    if (is_loaded) return 0;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) return NO_DRIVER;
    const struct {
        void **function;
        const char *name;
    } wanted[] = {
        {(void **)&driver.granularity, "cuMemGetAllocationGranularity"},
        {(void **)&driver.reserve, "cuMemAddressReserve"},
        {(void **)&driver.create, "cuMemCreate"},
        {(void **)&driver.map, "cuMemMap"},
        {(void **)&driver.allow, "cuMemSetAccess"},
        {(void **)&driver.unmap, "cuMemUnmap"},
        {(void **)&driver.release, "cuMemRelease"},
        {(void **)&driver.give_back, "cuMemAddressFree"},
        {(void **)&driver.synchronize, "cuCtxSynchronize"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!(*wanted[i].function = dlsym(cuda, wanted[i].name))) return NO_DRIVER;
    is_loaded = 1;
    return 0;
}

static struct properties properties_of(int device) {
    return (struct properties){.kind = PINNED, .location = {ON_DEVICE, device}};
}

static int map_pages(struct segment *one) {
    struct properties wanted = properties_of(one->device);
    struct access access = {{ON_DEVICE, one->device}, READ_WRITE};
    uint64_t pages;
    int failure = driver.create(&pages, one->bytes, &wanted, 0);
    if (failure) return failure;
    failure = driver.map(one->address, one->bytes, 0, pages, 0);
    if (failure) {
        driver.release(pages);
        return failure;
    }
    one->pages = pages;
    return driver.allow(one->address, one->bytes, &access, 1);
}

static int unmap_pages(struct segment *one) {
    if (!one->pages) return 0;
    int failure = driver.unmap(one->address, one->bytes);
    if (!failure) failure = driver.release(one->pages);
    if (!failure) one->pages = 0;
    return failure;
}

static void *take(int pool, int64_t bytes, int device) {
    struct properties wanted = properties_of(device);
    size_t step;
    if (load_driver() || driver.granularity(&step, &wanted, 0)) return NULL;
    struct segment *one = calloc(1, sizeof *one);
    if (!one) return NULL;
    one->bytes = ((uint64_t)bytes + step - 1) / step * step;
    one->pool = pool, one->device = device;
    if (driver.reserve(&one->address, one->bytes, 0, 0, 0)) {
        free(one);
        return NULL;
    }
    if (map_pages(one)) {
        unmap_pages(one);
        driver.give_back(one->address, one->bytes);
        free(one);
        return NULL;
    }
    one->next = segments, segments = one;
    return (void *)(uintptr_t)one->address;
}

static void *taken(int pool, int64_t bytes, int device) {
    if (bytes <= 0) return NULL;
    pthread_mutex_lock(&lock);
    void *found = take(pool, bytes, device);
    pthread_mutex_unlock(&lock);
    return found;
}

/* What torch calls: one function for each pool. */
void *memory_take_weights(int64_t bytes, int device, void *stream) {
    (void)stream;
    return taken(0, bytes, device);
}

void *memory_take_kv(int64_t bytes, int device, void *stream) {
    (void)stream;
    return taken(1, bytes, device);
}

void memory_give_back(void *address, int64_t bytes, int device, void *stream) {
    (void)bytes, (void)device, (void)stream;
    pthread_mutex_lock(&lock);
    for (struct segment **at = &segments; *at; at = &(*at)->next) {
        struct segment *one = *at;
        if (one->address != (uint64_t)(uintptr_t)address) continue;
        driver.synchronize();
        unmap_pages(one);
        driver.give_back(one->address, one->bytes);
        *at = one->next;
        free(one);
        break;
    }
    pthread_mutex_unlock(&lock);
}

/* Of all segments of a pool; the first error of the driver, or 0. */
static int each(int pool, int (*change)(struct segment *)) {
    int failure = 0;
    pthread_mutex_lock(&lock);
    for (struct segment *one = segments; one; one = one->next)
        if (one->pool == pool && !failure) failure = change(one);
    pthread_mutex_unlock(&lock);
    return failure;
}

static int restore_pages(struct segment *one) { return one->pages ? 0 : map_pages(one); }

int memory_release(int pool) { return each(pool, unmap_pages); }

int memory_restore(int pool) { return each(pool, restore_pages); }

/* Addresses and bytes of at most `most` segments of a pool; how many there are. */
int memory_segments(int pool, int64_t *addresses, int64_t *bytes, int most) {
    int count = 0;
    pthread_mutex_lock(&lock);
    for (struct segment *one = segments; one; one = one->next) {
        if (one->pool != pool) continue;
        if (count < most) addresses[count] = (int64_t)one->address, bytes[count] = (int64_t)one->bytes;
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}
