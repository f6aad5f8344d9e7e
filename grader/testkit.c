/* SPDX-License-Identifier: Apache-2.0
 * See testkit.h.  Built twice: plain, with pages that cannot be touched; and under a sanitizer, where every
 * buffer and block comes from malloc, so that the sanitizer knows its bounds.
 */
#define _GNU_SOURCE
#include "testkit.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

enum { MOST_BUFFERS = 64, CANARY = 0xA5, FRONT = 64, PAGE = 4096, FREED = 0xDD, FRESH = 0xCB };

/* ---- buffers ---- */

typedef struct {
    unsigned char *start; /* what the code under test gets */
    size_t n, align;
    unsigned char *mapping;
    size_t mapped; /* the page behind it not counted */
    char name[48];
} buffer;

static buffer buffers[MOST_BUFFERS];
static int n_buffers;

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

void *tk_buffer(size_t n, size_t align, int fill, const char *name)
{
    if (n_buffers == MOST_BUFFERS || n > (size_t)1 << 40)
        return NULL;
    buffer *b = &buffers[n_buffers];
    b->n = n;
    b->align = align;
    snprintf(b->name, sizeof b->name, "%s", name);
    if (SANITIZED) {
        size_t size = n ? round_up(n, align) : align;
        b->mapping = NULL;
        if (posix_memalign((void **)&b->mapping, align < sizeof(void *) ? sizeof(void *) : align, n ? n : 1))
            return NULL;
        b->mapped = size;
        b->start = b->mapping;
    } else {
        /* With the end against the guard the start is aligned only if the size is: the slack is a canary. */
        b->mapped = round_up(FRONT + round_up(n, align) + align, PAGE);
        b->mapping = mmap(NULL, b->mapped + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b->mapping == MAP_FAILED || mprotect(b->mapping + b->mapped, PAGE, PROT_NONE))
            return NULL;
        memset(b->mapping, CANARY, b->mapped);
        b->start = b->mapping + b->mapped - round_up(n, align);
    }
    memset(b->start, fill, n);
    n_buffers++;
    return b->start;
}

int64_t tk_damage(const void *start)
{
    for (int i = 0; i < n_buffers; i++) {
        buffer *b = &buffers[i];
        if (b->start != start || SANITIZED)
            continue;
        for (unsigned char *p = b->start - 1; p >= b->mapping && p >= b->start - FRONT; p--)
            if (*p != CANARY)
                return p - b->start;
        for (unsigned char *p = b->start + b->n; p < b->mapping + b->mapped; p++)
            if (*p != CANARY)
                return p - b->start;
    }
    return 0;
}

void tk_drop(const void *start)
{
    for (int i = 0; i < n_buffers; i++) {
        if (buffers[i].start != start)
            continue;
        if (SANITIZED)
            free(buffers[i].mapping);
        else
            munmap(buffers[i].mapping, buffers[i].mapped + PAGE);
        buffers[i] = buffers[--n_buffers];
        return;
    }
}

/* ---- the recording allocator ---- */

typedef struct {
    unsigned char *start; /* what was given; NULL for a request that failed */
    void *base;           /* what malloc gave; NULL once freed */
    size_t n;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks; /* in the order of the requests, the failed and the freed among them */
static int64_t n_blocks, room, live;
static int64_t fail_after = -1;
static size_t largest;
static char misuse[160];

static void blame(const char *what, int64_t order)
{
    if (misuse[0] == '\0' && order >= 0)
        snprintf(misuse, sizeof misuse, "%s block %lld", what, (long long)order);
    else if (misuse[0] == '\0')
        snprintf(misuse, sizeof misuse, "%s", what);
}

/* Whether there is room in the record for one more request. */
static int make_room(void)
{
    if (n_blocks < room)
        return 1;
    int64_t more = room ? 2 * room : 256;
    block *grown = realloc(blocks, (size_t)more * sizeof *blocks);
    if (grown) {
        blocks = grown;
        room = more;
    }
    return grown != NULL;
}

/* n bytes with canaries on both sides; start stays NULL where malloc has none. */
static block fresh(size_t n, size_t align)
{
    block b = {.n = n};
    size_t edge = SANITIZED ? 0 : round_up(FRONT, align);
    if (n > SIZE_MAX / 4 || posix_memalign(&b.base, align < sizeof(void *) ? sizeof(void *) : align, n + 2 * edge))
        return (block){.n = n};
    memset(b.base, CANARY, n + 2 * edge);
    b.start = (unsigned char *)b.base + edge;
    memset(b.start, FRESH, n);
    return b;
}

void *tk_alloc(void *user, size_t n, size_t align)
{
    (void)user;
    unsigned char *given = NULL;
    pthread_mutex_lock(&lock);
    int sound = n > 0 && align > 0 && (align & (align - 1)) == 0;
    if (!sound)
        blame("the hook was asked for 0 bytes or for a bad alignment", -1);
    else if (make_room()) {
        block b = fail_after == 0 ? (block){.n = n} : fresh(n, align);
        blocks[n_blocks++] = b;
        given = b.start;
        live += given != NULL;
        largest = n > largest ? n : largest;
        fail_after -= fail_after > 0;
    }
    pthread_mutex_unlock(&lock);
    return given;
}

static int torn(const block *b)
{
    for (size_t i = 0; i < FRONT && !SANITIZED; i++)
        if (b->start[b->n + i] != CANARY || *(b->start - 1 - i) != CANARY)
            return 1;
    return 0;
}

static void give_back(int64_t order)
{
    block *b = &blocks[order];
    if (torn(b))
        blame("a write beyond the bounds of", order);
    memset(b->start, FREED, b->n);
    free(b->base);
    b->base = NULL;
    live--;
}

void tk_release(void *user, void *p)
{
    (void)user;
    pthread_mutex_lock(&lock);
    int64_t order = n_blocks - 1; /* the newest that had this address: freed ones may have had it too */
    while (order >= 0 && (blocks[order].start != p || blocks[order].start == NULL))
        order--;
    if (p == NULL)
        blame("NULL was given to the hook's free", -1);
    else if (order < 0)
        blame("what the hook never gave was freed", -1);
    else if (blocks[order].base == NULL)
        blame("a second free of", order);
    else
        give_back(order);
    pthread_mutex_unlock(&lock);
}

void tk_fail_after(int64_t n)
{
    fail_after = n;
}

int64_t tk_allocs(void)
{
    return n_blocks;
}

int64_t tk_live(void)
{
    return live;
}

size_t tk_largest(void)
{
    return largest;
}

const char *tk_misuse(void)
{
    for (int64_t i = 0; i < n_blocks; i++)
        if (blocks[i].base && torn(&blocks[i]))
            blame("a write beyond the bounds of", i);
    return misuse;
}

int64_t tk_block_of(const void *p, size_t *at)
{
    const unsigned char *byte = p;
    for (int64_t i = n_blocks - 1; i >= 0; i--)
        if (blocks[i].base && byte >= blocks[i].start && byte < blocks[i].start + blocks[i].n) {
            *at = (size_t)(byte - blocks[i].start);
            return i;
        }
    return -1;
}

void tk_forget(void)
{
    for (int64_t i = 0; i < n_blocks; i++)
        free(blocks[i].base);
    n_blocks = live = 0;
    fail_after = -1;
    largest = 0;
    misuse[0] = '\0';
}

/* ---- memory as data ---- */

void tk_copy(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
}

/* ---- faults ---- */

static const char *library; /* where the library under test begins */

/* Where each frame of this thread is in the library under test, innermost first, as " 0x12ab 0x34cd". */
static int write_frames(char *text, size_t size)
{
    void *frames[64];
    int n = backtrace(frames, 64), used = 0;
    for (int i = 0, shown = 0; i < n && shown < 8; i++) {
        Dl_info at;
        if (!dladdr(frames[i], &at) || at.dli_fbase != library)
            continue;
        used += snprintf(text + used, size - (size_t)used, " 0x%zx", (size_t)((char *)frames[i] - library));
        shown++;
    }
    return used;
}

/* " =0x12ab", the instruction itself, where the library under test holds it. */
static int write_pc(char *text, size_t size, const void *context)
{
    const char *pc = NULL;
#if defined(__linux__) && defined(__x86_64__)
    pc = (const char *)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__linux__) && defined(__aarch64__)
    pc = (const char *)((const ucontext_t *)context)->uc_mcontext.pc;
#else
    (void)context;
#endif
    Dl_info at;
    if (!pc || !dladdr(pc, &at) || at.dli_fbase != library)
        return 0;
    return snprintf(text, size, " =0x%zx", (size_t)(pc - library));
}

static void write_line(const char *what, const char *about, const void *context)
{
    char text[512];
    int n = snprintf(text, sizeof text, "\n@tk %s %s", what, about);
    n += write_pc(text + n, sizeof text - (size_t)n, context);
    n += write_frames(text + n, sizeof text - (size_t)n - 2);
    text[n++] = '\n';
    if (write(2, text, (size_t)n) < 0)
        _exit(70);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    char about[96] = "- 0";
    const unsigned char *address = info->si_addr;
    if (signal == SIGSEGV && info->si_code == SEGV_MAPERR && (uintptr_t)address < PAGE)
        snprintf(about, sizeof about, "NULL %zu", (size_t)(uintptr_t)address);
    for (int i = 0; i < n_buffers && (signal == SIGSEGV || signal == SIGBUS); i++) {
        const buffer *b = &buffers[i];
        const unsigned char *end = b->mapping + b->mapped;
        if (address >= b->mapping - PAGE && address < end + PAGE)
            snprintf(about, sizeof about, "%s %td", b->name, address - (b->start + b->n));
    }
    write_line("fault", about, context);
    struct sigaction normal = {.sa_handler = SIG_DFL};
    sigaction(signal, &normal, NULL);
    raise(signal);
}

static void on_watch(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    write_line("still", "- 0", context);
}

void tk_catch(const void *inside)
{
    static char stack[1 << 16]; /* a fault may be that the stack has run out */
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    Dl_info at;
    library = dladdr(inside, &at) ? at.dli_fbase : NULL;
    void *first[2];
    backtrace(first, 2); /* its first call loads a library, which a handler must not */
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    struct sigaction on = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal && !SANITIZED; i++)
        sigaction(fatal[i], &on, NULL);
    sigaction(SIGALRM, &(struct sigaction){.sa_sigaction = on_watch, .sa_flags = SA_SIGINFO | SA_RESTART}, NULL);
}

void tk_watch(double seconds)
{
    struct itimerval when = {.it_value = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)}};
    setitimer(ITIMER_REAL, &when, NULL);
}
