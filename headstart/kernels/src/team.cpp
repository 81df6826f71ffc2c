#include "team.hpp"

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace {

// Before a thread sleeps: half a millisecond within a run, twice what waking it takes. With less, threads that sleep once wake each other
// from then on, while one does the work of two. Between runs some tens of microseconds, for others want the processor.
constexpr int SPINS = 32000, IDLE_SPINS = 4000;

// Wait until the value is no longer `old`.
void await(std::atomic<uint32_t>& value, uint32_t old, int spins) {
    for (int i = 0; i < spins; i++) {
        if (value.load(std::memory_order_acquire) != old) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// The calling thread and `team.size - 1` workers. Invariant: between runs all workers wait for `start` to change.
struct Pool {
    Team team;
    const pid_t owner = getpid();
    std::atomic<uint32_t> start{0};
    void (*work)(Team&, void*, char*) = nullptr;  // null: workers end
    void* context = nullptr;
    char* scratch = nullptr;
    size_t room = 0;
    std::vector<std::thread> workers;

    explicit Pool(int threads) : team(threads) {
        for (int i = 1; i < threads; i++) workers.emplace_back(&Pool::serve, this);
    }

    ~Pool() {
        work = nullptr;
        begin();
        for (auto& worker : workers) worker.join();
        std::free(scratch);
    }

    void begin() {
        start.fetch_add(1, std::memory_order_release);
        start.notify_all();
    }

    void serve() {
        for (uint32_t seen = 0;; seen++) {
            await(start, seen, IDLE_SPINS);
            if (!work) return;
            work(team, context, scratch);
            team.barrier();
        }
    }

    bool reserve(size_t bytes) {
        if (bytes <= room) return true;
        std::free(scratch);
        room = (bytes + bytes / 4 + 4095) / 4096 * 4096;
        scratch = static_cast<char*>(std::aligned_alloc(4096, room));
        if (!scratch) room = 0;
        return scratch;
    }
};

std::mutex turn;
Pool* pool = nullptr;  // lives until the process ends: nobody may join threads while it does

}  // namespace

void Team::barrier() {
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) < size - 1) return await(round_, round, SPINS);
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    if (size > 1) round_.notify_all();
}

bool run_team(int threads, size_t scratch_bytes, void (*work)(Team&, void*, char*), void* context) {
    std::lock_guard<std::mutex> lock(turn);
    if (pool && pool->owner != getpid()) pool = nullptr;  // a forked child has none of its parent's threads: leave what was theirs
    if (pool && threads > 1 && pool->team.size != threads) {
        delete pool;
        pool = nullptr;
    }
    if (!pool) pool = new Pool(threads);
    if (!pool->reserve(scratch_bytes)) return false;
    if (threads == 1) {  // whatever the pool has sleeps on
        Team alone(1);
        work(alone, context, pool->scratch);
        return true;
    }
    pool->work = work;
    pool->context = context;
    pool->begin();
    work(pool->team, context, pool->scratch);
    pool->team.barrier();
    return true;
}
