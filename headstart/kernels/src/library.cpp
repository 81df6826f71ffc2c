// The C interface that Python calls (library.py).
#include "abi.hpp"
#include "processor.hpp"
#include "team.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern __attribute__((weak)) const Kernels kernels_avx2, kernels_avx512, kernels_amx;

namespace {

struct Path {
    const Kernels* kernels;  // null: the compiler did not know its instructions
    bool (*runs)();          // whether this processor does
};

// The place of a path is its place in PATHS of library.py, where the first is none of these.
const Path paths[] = {{}, {&kernels_avx2, has_avx2}, {&kernels_avx512, has_avx512}, {&kernels_amx, has_amx}};

const Kernels& table(int path) { return *paths[path].kernels; }

// Run `work` (team, scratch) on the threads. Returns 0, or 1 when there is no memory for what it needs beside its arguments.
template <class Work>
int run(int threads, int64_t scratch_bytes, const Work& work) {
    const auto call = [](Team& team, void* context, char* scratch) { (*static_cast<const Work*>(context))(team, scratch); };
    return !run_team(threads, scratch_bytes, call, const_cast<Work*>(&work));
}

// Few rows are sampled sooner than other threads wake.
int threads_for(int64_t rows, int threads) { return rows < 4 ? 1 : threads; }

}  // namespace

// What a path lacks: 0 nothing, 1 the instructions on this processor, 2 a compiler that knew them.
EXPORT int headstart_lack(int path) { return !paths[path].runs() ? 1 : !paths[path].kernels ? 2 : 0; }

EXPORT int headstart_decode(int path, int threads, const Model* model, const Pass* pass) {
    const Kernels& k = table(path);
    return run(threads, k.decode_bytes(*model, *pass), [&](Team& team, char* scratch) { k.decode(team, *model, *pass, scratch); });
}

// y [rows][matrix.rows] = x [rows][matrix.inputs] times the weight transposed.
EXPORT int headstart_product(int path, int threads, const Matrix* matrix, const float* x, int64_t rows, float* y) {
    const Kernels& k = table(path);
    return run(threads, k.product_bytes(*matrix, rows), [&](Team& team, char* scratch) { k.product(team, *matrix, x, rows, y, scratch); });
}

// Read `size` bytes once, as fast as can be.
EXPORT int headstart_read(int path, int threads, const char* bytes, int64_t size) {
    int64_t sums[1];
    return run(threads, 64, [&](Team& team, char*) { table(path).read(team, bytes, size, sums); });
}

// out [rows][size]: the laws of the next token.
EXPORT int headstart_law(int path, int threads, const Logits* logits, const Filters* filters, double* out) {
    const Kernels& k = table(path);
    const int useful = threads_for(logits->rows, threads);
    return run(useful, k.law_bytes(*logits, useful), [&](Team& team, char* scratch) { k.law(team, *logits, *filters, out, scratch); });
}

// The id that a law's race gives, -1 when it has no mass.
EXPORT int headstart_race(int path, int, const Race* race, int64_t* id) {
    return run(1, 64, [&](Team& team, char*) { table(path).race(team, *race, id); });
}

// ids [count]: the token of each row, -1 for one without.
EXPORT int headstart_choose(int path, int threads, const Choice* choices, int64_t count, int64_t* ids) {
    const Kernels& k = table(path);
    const int useful = threads_for(count, threads);
    const int64_t bytes = k.choose_bytes(choices, count, useful);
    return run(useful, bytes, [&](Team& team, char* scratch) { k.choose(team, choices, count, ids, scratch); });
}

// verdicts [count]. A sequence is one thread's: what is asked of a row depends on those before it.
EXPORT int headstart_judge(int path, int threads, const Trial* trials, int64_t count, Verdict* verdicts) {
    const Kernels& k = table(path);
    const int useful = count == 1 ? 1 : threads;
    const int64_t bytes = k.judge_bytes(trials, count, useful);
    return run(useful, bytes, [&](Team& team, char* scratch) { k.judge(team, trials, count, verdicts, scratch); });
}

// The size of a structure, for the test that Python's are the same.
EXPORT int64_t headstart_size(int which) {
    const int64_t sizes[] = {sizeof(Matrix), sizeof(Layer), sizeof(Model), sizeof(Span), sizeof(Pass),
                             sizeof(Logits), sizeof(Filters), sizeof(Race), sizeof(Choice), sizeof(Trial), sizeof(Verdict)};
    return sizes[which];
}
