// The functions of one instruction set; compiled once for each, with KERNELS naming the table.
#include "decoder.hpp"
#include "judging.hpp"

namespace {

int64_t product_bytes(const Matrix& m, int64_t rows) { return operand_bytes(rows, m.columns); }

void product_of(Team& team, const Matrix& m, const float* x, int64_t rows, float* y, char* scratch) {
    Operand a = operand_at(scratch, rows, m.columns);
    if (team.grab() == 0)
        for (int64_t r = 0; r < rows; r++) {
            memcpy(a.x + r * a.stride, x + r * m.inputs, m.inputs * sizeof(float));
            memset(a.x + r * a.stride + m.inputs, 0, (a.stride - m.inputs) * sizeof(float));
        }
    team.barrier();
    prepare(team, m, a, rows);
    product(team, m, a, rows, {y, m.rows, false});
}

int64_t decode_bytes(const Model& m, const Pass& p) {
    Room room;
    return lay_out(m, p, nullptr, &room);
}

void decode_in(Team& team, const Model& m, const Pass& p, char* scratch) {
    Room room;
    lay_out(m, p, scratch, &room);
    decode(team, m, p, room);
}

// The fastest plain read of a working set: what a pass over weights of that size can at best take.
void read_all(Team& team, const char* bytes, int64_t size, int64_t* sums) {
    constexpr int64_t piece = 1 << 20;
    vi total[4] = {};
    for (int64_t i; (i = team.grab() * piece) < size;) {
        const int64_t end = i + piece < size ? i + piece : size;
        for (int64_t at = i; at + 16 * LANES <= end; at += 16 * LANES)
            for (int j = 0; j < 4; j++) total[j] += *(const vi*)(bytes + at + j * 4 * LANES);
    }
    const vi t = total[0] + total[1] + total[2] + total[3];
    if (t[0] == 12345) sums[0] = t[1];  // or the compiler would leave it out
    team.barrier();
}

}  // namespace

extern const Kernels KERNELS;
const Kernels KERNELS = {
    product_bytes, product_of, decode_bytes, decode_in, read_all, law_bytes, law_of, race_of, choose_bytes, choose_of, judge_bytes, judge_of,
};
