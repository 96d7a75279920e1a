// Ops between the matrix products: norms, rotary embedding, gated activations. They move little memory; a step
// of one row runs them on one thread, larger steps split by rows.
#include <cmath>
#include <cstring>

#include "kernels.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

#include "vec.h"

struct Rows {
    int begin, end;
};

static inline Rows my_rows(int rows, const Worker& worker) {
    // Rounded up, so that a single row falls to the calling thread.
    return {int(ceil_div(int64_t(rows) * worker.index, worker.count)),
            int(ceil_div(int64_t(rows) * (worker.index + 1), worker.count))};
}

// Apply op(lane values, number of valid lanes) -> Vec along n floats.
template <class F>
static inline void for_lanes(int n, F&& f) {
    int i = 0;
    for (; i + 16 <= n; i += 16) f(i, 16);
    if (i < n) f(i, n - i);
}

static void norm_slice(const float* x, float* out, const float* weight, int width, float eps) {
    Vec a = {}, b = {};
    int i = 0;
    for (; i + 32 <= width; i += 32) {
        Vec u = vload(x + i), v = vload(x + i + 16);
        a += u * u;
        b += v * v;
    }
    for (; i < width; i += 16) {
        Vec u = vload_part(x + i, width - i < 16 ? width - i : 16);
        a += u * u;
    }
    float scale = 1.0f / std::sqrt(vsum(a + b) / float(width) + eps);
    for (i = 0; i + 16 <= width; i += 16) vstore(out + i, vload(x + i) * scale * vload(weight + i));
    if (i < width) {
        int n = width - i;
        vstore_part(out + i, vload_part(x + i, n) * scale * vload_part(weight + i, n), n);
    }
}

static void rms_norm(const NormArgs& a, Worker& worker) {
    Rows rows = my_rows(a.rows, worker);
    for (int r = rows.begin; r < rows.end; ++r)
        for (int h = 0; h < a.num_heads; ++h)
            norm_slice(a.x + int64_t(r) * a.ldx + h * a.width, a.out + int64_t(r) * a.ldo + h * a.width, a.weight,
                       a.width, a.eps);
}

static void rotate_halves(float* x, const float* c, const float* s, int half) {
    int i = 0;
    for (; i + 16 <= half; i += 16) {
        Vec u = vload(x + i), v = vload(x + half + i), cv = vload(c + i), sv = vload(s + i);
        vstore(x + i, u * cv - v * sv);
        vstore(x + half + i, v * cv + u * sv);
    }
    for (; i < half; ++i) {
        float u = x[i], v = x[half + i];
        x[i] = u * c[i] - v * s[i];
        x[half + i] = v * c[i] + u * s[i];
    }
}

static void rope(const RopeArgs& a, Worker& worker) {
    Rows rows = my_rows(a.rows, worker);
    int half = a.rotary_dim / 2;
    for (int r = rows.begin; r < rows.end; ++r) {
        const float* c = a.table + int64_t(a.positions[r]) * a.rotary_dim;
        const float* s = c + half;
        for (int h = 0; h < a.num_heads; ++h) {
            float* x = a.x + int64_t(r) * a.ldx + h * a.head_dim;
            if (!a.interleaved) {
                rotate_halves(x, c, s, half);
                continue;
            }
            for (int i = 0; i < half; ++i) {
                float u = x[2 * i], v = x[2 * i + 1];
                x[2 * i] = u * c[i] - v * s[i];
                x[2 * i + 1] = v * c[i] + u * s[i];
            }
        }
    }
}

static inline Vec activate(Vec g, Activation activation) {
    if (activation == Activation::kSilu) return g * vsigmoid(g);
    // gelu_tanh(x) = x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
    Vec u = 0.79788456f * (g + 0.044715f * g * g * g);
    return g * vsigmoid(2.0f * u);
}

static void act_mul_row(const float* gate, const float* up, float* out, int width, Activation activation) {
    for_lanes(width, [&](int i, int n) {
        Vec y = activate(vload_part(gate + i, n), activation) * vload_part(up + i, n);
        vstore_part(out + i, y, n);
    });
}

// The one op here with work enough in a single row to be split over its columns.
static void act_mul(const ActMulArgs& a, Worker& worker) {
    constexpr int run = 64;
    const int runs = int(ceil_div(a.width, run));
    const bool by_rows = a.rows >= worker.count;
    const Rows rows = by_rows ? my_rows(a.rows, worker) : Rows{0, a.rows};
    const Rows columns = by_rows ? Rows{0, runs} : my_rows(runs, worker);
    const int begin = columns.begin * run, end = columns.end == runs ? a.width : columns.end * run;
    for (int r = rows.begin; r < rows.end && begin < end; ++r) {
        const float* gate = a.x + int64_t(r) * a.ldx + begin;
        act_mul_row(gate, gate + a.width, a.out + int64_t(r) * a.ldo + begin, end - begin, a.activation);
    }
}

static void add(const AddArgs& a, Worker& worker) {
    Rows rows = my_rows(a.rows, worker);
    float* x = a.x + int64_t(rows.begin) * a.width;
    const float* y = a.y + int64_t(rows.begin) * a.width;
    int64_t n = int64_t(rows.end - rows.begin) * a.width;
    for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

static void softcap(const SoftcapArgs& a, Worker& worker) {
    Rows rows = my_rows(a.rows, worker);
    for (int r = rows.begin; r < rows.end; ++r) {
        float* x = a.x + int64_t(r) * a.width;
        for_lanes(a.width, [&](int i, int n) {
            vstore_part(x + i, a.cap * vtanh(vload_part(x + i, n) / a.cap), n);
        });
    }
}

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
