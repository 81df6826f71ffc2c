// What Python (library.py) and every instruction set agree on: plain structs, pointers and sizes.
#pragma once
#include <cstdint>

constexpr int PANEL = 16;  // columns of a packed weight that lie side by side
constexpr int GROUP = 32;  // inputs that share a scale

enum Kind : int32_t { F32 = 0, BF16 = 1, INT8 = 2, INT4 = 3 };

// A weight of a product y = x W^T + b, packed (packing.py).
struct Matrix {
    int32_t kind, rows, inputs;
    int32_t columns;      // inputs, padded to whole pairs, or for integers to whole groups
    int32_t groups;       // columns / GROUP scales per row in fp16, or 0: one scale per row in fp32
    const void* codes;    // [panel][k / 2][16][2], int4: [panel][k / 8][16][4] with k..k + 3 in low and k + 4..k + 7 in high halves
    const void* scale;    // [panel][group][16], or [rows]
    const void* minimum;  // the same in fp16, or null
    const float* bias;    // [rows], or null
};

struct Layer {
    Matrix qkv, out, gate_up, down;
    const float *input_norm, *mlp_norm;
};

struct Model {
    int32_t layers, hidden, heads, kv_heads, head_dim, intermediate;
    int32_t kv_kind;  // F32 or BF16
    float eps, scale;
    const Layer* layer;
    Matrix embedding, head;
    const float *norm, *inv_freq;
    // A draft head: the norms of the two halves that enter its layer, of embeddings and of the states it is given; null in a decoder.
    const float *embed_norm, *state_norm;
    int32_t keeps_normed;  // whether a head adds to its states normed
};

// Rows of one sequence. Its keys 0..length-1 lie at `slots`, or from `base` on where slots is null.
struct Span {
    int64_t first_row, rows, length, base;
    const int64_t* slots;
};

struct Pass {
    int64_t rows, spans, logit_rows;
    const int64_t *tokens, *positions, *slots;
    const Span* span;
    const int64_t* wanted;  // [logit_rows]
    void* const* keys;      // [layers] of [slot][kv_heads][head_dim]
    void* const* values;
    float* logits;          // [logit_rows][head.rows]
    const float* given;     // [rows][hidden]: the states that a head reads
    int64_t taps;
    const int64_t* tapped;  // [taps]: layers whose input is wanted; their number for what leaves the last
    float* states;          // [rows][taps][hidden]
};

// Rows of logits [rows][size], `stride` numbers apart.
struct Logits {
    int64_t rows, size, stride;
    const float* at;
};

// What makes a law of logits (ops/sampling.py). Off: min_p = 0, top_k = 0 or the size of the vocabulary, top_p = 1.
struct Filters {
    double temperature, min_p, top_p;
    int64_t top_k;
};

// An entry of a law for each id, and the key of their noise (core/rand.py). `names`: the ids, or null for 0, 1, 2, ...
struct Race {
    int64_t size;
    uint64_t key;
    const double* law;
    const int64_t* names;
};

// A row of logits, and how its token is chosen: the largest when the temperature is 0, else by the race of this key.
struct Choice {
    int64_t size;
    const float* logits;
    uint64_t key;
    Filters filters;
};

// Drafts of one sequence, which came from laws: how many stand, by rejection or block verification, and the token after them.
struct Trial {
    int64_t drafts, size;     // k, and V entries in a row
    int64_t stride, law_stride;
    const float* logits;      // [k + 1], row i before draft i is fed
    const double* laws;       // [k]
    const int64_t* tokens;    // [k]
    const double* uniforms;   // [k + 1]: one for each draft, and one for the token after them
    Filters filters;
    int32_t block, checked;   // checked: every row is known to have a law, and -inf is what its options forbid
};

struct Verdict {
    int64_t accepted, tail;  // tail: -1 where a logit of its row is not finite
};

class Team;

// One instruction set's functions. Each of a team's threads calls them with the same arguments; `scratch` has the bytes asked for.
struct Kernels {
    int64_t (*product_bytes)(const Matrix&, int64_t rows);
    void (*product)(Team&, const Matrix&, const float* x, int64_t rows, float* y, char* scratch);
    int64_t (*decode_bytes)(const Model&, const Pass&);
    void (*decode)(Team&, const Model&, const Pass&, char* scratch);
    void (*read)(Team&, const char* bytes, int64_t size, int64_t* sums);
    int64_t (*law_bytes)(const Logits&, int threads);
    void (*law)(Team&, const Logits&, const Filters&, double* out, char* scratch);
    void (*race)(Team&, const Race&, int64_t* id);
    int64_t (*choose_bytes)(const Choice*, int64_t count, int threads);
    void (*choose)(Team&, const Choice*, int64_t count, int64_t* ids, char* scratch);
    int64_t (*judge_bytes)(const Trial*, int64_t count, int threads);
    void (*judge)(Team&, const Trial*, int64_t count, Verdict* verdicts, char* scratch);
};
