// The C interface that Python calls (library.py).
#include "abi.hpp"
#include "team.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// The place in PATHS of library.py: 0 none, 1 AVX2. The compiler's own check asks the operating system too.
int best() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }

const Kernels& table(int) { return kernels_avx2; }  // one instruction set so far

struct Call {
    const Kernels& kernels;
    const Model* model = nullptr;
    const Pass* pass = nullptr;
    const Matrix* matrix = nullptr;
    const void* from = nullptr;
    int64_t count = 0;
    void* to = nullptr;
};

}  // namespace

EXPORT int headstart_best() { return best(); }

// The three below return 0, or 1 when there is no memory for what they need beside their arguments.

EXPORT int headstart_decode(int path, int threads, const Model* model, const Pass* pass) {
    Call call{table(path), model, pass};
    const auto work = [](Team& team, void* context, char* scratch) {
        const Call& c = *static_cast<Call*>(context);
        c.kernels.decode(team, *c.model, *c.pass, scratch);
    };
    return !run_team(threads, call.kernels.decode_bytes(*model, *pass), work, &call);
}

// y [rows][matrix.rows] = x [rows][matrix.inputs] times the weight transposed.
EXPORT int headstart_product(int path, int threads, const Matrix* matrix, const float* x, int64_t rows, float* y) {
    Call call{table(path), nullptr, nullptr, matrix, x, rows, y};
    const auto work = [](Team& team, void* context, char* scratch) {
        const Call& c = *static_cast<Call*>(context);
        c.kernels.product(team, *c.matrix, static_cast<const float*>(c.from), c.count, static_cast<float*>(c.to), scratch);
    };
    return !run_team(threads, call.kernels.product_bytes(*matrix, rows), work, &call);
}

// Read `size` bytes once, as fast as can be.
EXPORT int headstart_read(int path, int threads, const void* bytes, int64_t size) {
    int64_t sums[1];
    Call call{table(path), nullptr, nullptr, nullptr, bytes, size, sums};
    const auto work = [](Team& team, void* context, char*) {
        const Call& c = *static_cast<Call*>(context);
        c.kernels.read(team, static_cast<const char*>(c.from), c.count, static_cast<int64_t*>(c.to));
    };
    return !run_team(threads, 64, work, &call);
}

// The size of a structure, for the test that Python's are the same.
EXPORT int64_t headstart_size(int which) {
    const int64_t sizes[] = {sizeof(Matrix), sizeof(Layer), sizeof(Model), sizeof(Span), sizeof(Pass)};
    return sizes[which];
}
