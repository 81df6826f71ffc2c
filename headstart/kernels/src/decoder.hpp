// One pass of a decoder of the Llama family, or of a draft head (models/head.py), one such layer with a wider input. All threads
// together: phases with a barrier behind each. Activations are fp32.
#pragma once
#include "attention.hpp"
#ifdef AMX
#include "amx.hpp"
#endif

namespace {

constexpr int SHARED_ROWS = 64;

// Where the activations of a pass lie in the scratch memory.
struct Room {
    float *x, *qkv, *gate_up, *turns, *parts;
    int64_t qkv_width;
    bool shared;
    Operand joined, normed, attended, active, last;
};

static int64_t lay_out(const Model& m, const Pass& p, char* memory, Room* room) {
    const int64_t rows = p.rows, kept = p.logit_rows, wide = (m.heads + 2 * m.kv_heads) * m.head_dim;
    int64_t used = 0;
    auto take = [&](int64_t bytes) {
        char* at = memory + used;
        used += ceil_div(bytes, 256) * 256;
        return at;
    };
    auto operand = [&](int64_t n, int64_t columns) { return operand_at(take(operand_bytes(n, columns)), n, columns); };
    room->x = (float*)take(rows * m.hidden * 4);
    room->qkv = (float*)take(rows * wide * 4);
    room->qkv_width = wide;
    room->gate_up = (float*)take(rows * m.intermediate * 8);
    room->turns = (float*)take(rows * m.head_dim * 4);
    room->joined = operand(m.state_norm ? rows : 0, 2 * m.hidden);
    room->normed = operand(rows, m.hidden);
    room->attended = operand(rows, m.heads * m.head_dim);
    room->active = operand(rows, m.intermediate);
    room->last = operand(kept, m.hidden);
    // Sharing pieces between threads takes a state for each of them: for few rows only.
    room->shared = rows <= SHARED_ROWS;
    int64_t states = 0;
    for (int64_t s = 0; s < p.spans; s++) states += p.span[s].rows * (room->shared ? ceil_div(p.span[s].length, CHUNK * PIECE) : 2);
    room->parts = (float*)take(states * m.heads * state_size(m.head_dim) * 4);
    return used;
}

INLINE void clear_padding(const Operand& a, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r++) memset(a.x + r * a.stride + columns, 0, (a.stride - columns) * sizeof(float));
}

// Root mean square norm of a row [n] times the weight (Zhang & Sennrich 1910.07467).
static void norm_row(const float* x, const float* weight, float eps, int64_t n, float* out) {
    vf squares = {};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) squares = fma(load(x + i), load(x + i), squares);
    float total = sum(squares);
    for (; i < n; i++) total += x[i] * x[i];
    const float factor = 1.0f / std::sqrt(total / (float)n + eps);
    for (i = 0; i < n; i++) out[i] = x[i] * factor * weight[i];
}

// Of the rows `which`, or all, for a product with `by`.
static void norm(Team& team, const Model& m, const float* x, const float* weight, int64_t rows, const int64_t* which, const Matrix& by,
                 const Operand& out) {
    for (int64_t r; (r = team.grab()) < rows;) {
        norm_row(x + (which ? which[r] : r) * m.hidden, weight, m.eps, m.hidden, out.x + r * out.stride);
        quantise(by, out, r, 0, m.hidden);
    }
    team.barrier();
}

// What enters a head at a row: the norm of its embedding beside that of its state. Its sum begins with the state.
static void join_row(const Model& m, const float* state, float* x, float* out) {
    norm_row(x, m.embed_norm, m.eps, m.hidden, out);
    norm_row(state, m.state_norm, m.eps, m.hidden, out + m.hidden);
    memcpy(x, m.keeps_normed ? out + m.hidden : state, m.hidden * sizeof(float));
}

// Embeddings of the tokens, and cos and sin of their positions.
static void begin(Team& team, const Model& m, const Pass& p, const Room& room) {
    const int64_t half = m.head_dim / 2;
    for (int64_t r; (r = team.grab()) <= p.rows;) {
        if (r == p.rows) {
            if (m.state_norm) clear_padding(room.joined, p.rows, 2 * m.hidden);
            clear_padding(room.normed, p.rows, m.hidden);
            clear_padding(room.attended, p.rows, m.heads * m.head_dim);
            clear_padding(room.active, p.rows, m.intermediate);
            clear_padding(room.last, p.logit_rows, m.hidden);
            break;
        }
        row_of(m.embedding, p.tokens[r], room.x + r * m.hidden, m.hidden);
        if (m.state_norm) join_row(m, p.given + r * m.hidden, room.x + r * m.hidden, room.joined.x + r * room.joined.stride);
        for (int64_t i = 0; i < half; i++) {
            const float angle = (float)p.positions[r] * m.inv_freq[i];
            room.turns[r * m.head_dim + i] = std::cos(angle);
            room.turns[r * m.head_dim + half + i] = std::sin(angle);
        }
    }
    team.barrier();
}

// Rotate queries and keys of a row (Su et al. 2104.09864, halves as in Hugging Face's layout); keys and values go to their slot.
static void turn_and_keep(Team& team, const Model& m, const Pass& p, int layer, const Room& room) {
    const int64_t dim = m.head_dim, half = dim / 2, keys = m.kv_heads * dim;
    for (int64_t r; (r = team.grab()) < p.rows;) {
        float* row = room.qkv + r * room.qkv_width;
        const float *cosine = room.turns + r * dim, *sine = cosine + half;
        for (int64_t h = 0; h < m.heads + m.kv_heads; h++) {
            float* x = row + h * dim;
            for (int64_t i = 0; i < half; i++) {
                const float a = x[i], b = x[i + half];
                x[i] = a * cosine[i] - b * sine[i];
                x[i + half] = b * cosine[i] + a * sine[i];
            }
        }
        const float* k = row + m.heads * dim;
        if (m.kv_kind == BF16) {
            uint16_t *to_k = (uint16_t*)p.keys[layer] + p.slots[r] * keys, *to_v = (uint16_t*)p.values[layer] + p.slots[r] * keys;
            for (int64_t i = 0; i < keys; i++) to_k[i] = narrow(k[i]);
            for (int64_t i = 0; i < keys; i++) to_v[i] = narrow(k[keys + i]);
        } else {
            memcpy((float*)p.keys[layer] + p.slots[r] * keys, k, keys * sizeof(float));
            memcpy((float*)p.values[layer] + p.slots[r] * keys, k + keys, keys * sizeof(float));
        }
    }
    team.barrier();
}

// silu(gate) * up, for a product with `by`
static void activate(Team& team, const Model& m, const Pass& p, const Room& room, const Matrix& by) {
    const int64_t n = m.intermediate, piece = 256, pieces = ceil_div(n, piece);
    for (int64_t i; (i = team.grab()) < p.rows * pieces;) {
        const int64_t r = i / pieces, from = i % pieces * piece, to = from + piece < n ? from + piece : n;
        const float *gate = room.gate_up + r * 2 * n, *up = gate + n;
        float* out = room.active.x + r * room.active.stride;
        int64_t c = from;
        for (; c + LANES <= to; c += LANES) store(out + c, load(gate + c) / (1.0f + exponential(-load(gate + c))) * load(up + c));
        for (; c < to; c++) out[c] = gate[c] / (1.0f + exponential(all(-gate[c]))[0]) * up[c];
        quantise(by, room.active, r, from, to);
    }
    team.barrier();
}

// Hand out the states that enter a layer, where they are wanted.
static void show(Team& team, const Model& m, const Pass& p, int layer, const float* x) {
    for (int64_t t = 0; t < p.taps; t++) {
        if (p.tapped[t] != layer) continue;
        for (int64_t r; (r = team.grab()) < p.rows;)
            memcpy(p.states + (r * p.taps + t) * m.hidden, x + r * m.hidden, m.hidden * sizeof(float));
        team.barrier();
    }
}

static void decode(Team& team, const Model& m, const Pass& p, const Room& room) {
    const int64_t rows = p.rows;
    begin(team, m, p, room);
    if (m.state_norm) prepare(team, m.layer[0].qkv, room.joined, rows);
    for (int i = 0; i < m.layers; i++) {
        const Layer& layer = m.layer[i];
        show(team, m, p, i, room.x);
        if (!m.state_norm) norm(team, m, room.x, layer.input_norm, rows, nullptr, layer.qkv, room.normed);
        product(team, layer.qkv, m.state_norm ? room.joined : room.normed, rows, {room.qkv, room.qkv_width, false});
        turn_and_keep(team, m, p, i, room);
        attend(team, {m, p, i, room.qkv, room.qkv_width, room.attended, room.parts, room.shared});
        if (heads_split_groups(m)) prepare(team, layer.out, room.attended, rows);
        product(team, layer.out, room.attended, rows, {room.x, m.hidden, true});
        norm(team, m, room.x, layer.mlp_norm, rows, nullptr, layer.gate_up, room.normed);
        product(team, layer.gate_up, room.normed, rows, {room.gate_up, 2 * m.intermediate, false});
        activate(team, m, p, room, layer.down);
        product(team, layer.down, room.active, rows, {room.x, m.hidden, true});
    }
    show(team, m, p, m.layers, room.x);
    norm(team, m, room.x, m.norm, p.logit_rows, p.wanted, m.head, room.last);
    product(team, m.head, room.last, p.logit_rows, {p.logits, m.head.rows, false});
}

}  // namespace
