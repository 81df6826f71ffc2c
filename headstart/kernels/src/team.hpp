// Threads that run one function together, with barriers and a counter to share work by. They spin for a moment between
// phases, then sleep, so that an idle engine takes no processor and a waiting one hardly any.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

class Team {
public:
    explicit Team(int threads) : size(threads) {}
    const int size;

    // Wait for all. What any thread wrote before is seen by all after.
    void barrier();

    // The next piece of work of this phase, 0, 1, 2, ...; starts anew behind every barrier.
    int64_t grab() { return next_.fetch_add(1, std::memory_order_relaxed); }

private:
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> round_{0};
};

// Run work(team, context, scratch) on `threads` threads, this one among them; scratch: memory that they share, aligned to a page.
// One run at a time; others wait. False when there is no memory.
bool run_team(int threads, size_t scratch_bytes, void (*work)(Team&, void* context, char* scratch), void* context);
