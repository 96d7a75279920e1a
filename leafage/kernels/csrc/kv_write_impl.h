// K and V of a step's tokens into their slots. Layout: attention.h.
#pragma once
#include <cfloat>

#include "attention_rotate.h"
#include "kv_runs.h"
#include "simd16.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

static void write_bf16(const KVLayer& kv, const Runs& runs, const float* x, int at, uint8_t* to, bool is_v) {
    int hd = kv.head_dim;
    auto* run = reinterpret_cast<uint16_t*>(to);
    if (is_v && runs.tokens % 2 != 0) {
        for (int d = 0; d < hd; d += 16) simd::store_bf16(run + at * hd + d, simd::load(x + d));
        return;
    }
    uint16_t values[kMaxHeadDim];
    for (int d = 0; d < hd; d += 16) simd::store_bf16(values + d, simd::load(x + d));
    if (is_v) {
        run += at / 2 * hd * 2 + at % 2;
        for (int d = 0; d < hd; ++d) run[d * 2] = values[d];
    } else {
        for (int d = 0; d < hd; d += 2) std::memcpy(run + (d / 2 * runs.tokens + at) * 2, values + d, 4);
    }
}

// q and the scale of one head.
static float quantize_head(const float* x, int hd, int8_t (&q)[kMaxHeadDim]) {
    uint32_t most = 0;  // as bits: not finite is larger than finite
    for (int d = 0; d < hd; ++d) {
        uint32_t bits;
        std::memcpy(&bits, x + d, 4);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    float absmax;
    std::memcpy(&absmax, &most, 4);
    float scale = absmax / 127.0f;
    bool finite = most < 0x7f800000u;
    if (!finite || scale < FLT_MIN) {
        std::memset(q, 0, sizeof q);
        return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
    float inverse = 1.0f / scale;
    for (int d = 0; d < hd; ++d) {
        float rounded = x[d] * inverse + simd::kRound;
        uint32_t bits;
        std::memcpy(&bits, &rounded, 4);
        q[d] = int8_t(uint8_t(bits));
    }
    return scale;
}

static void write_int8(const KVLayer& kv, const Runs& runs, const float* x, int at, uint8_t* to, bool is_v) {
    int hd = kv.head_dim;
    float rotated[kMaxHeadDim];
    if (!is_v) {
        rotate_head(x, hd, 1.0f, [&](int d, const simd::V16& values) { simd::store(rotated + d, values); });
        x = rotated;
    }
    int8_t q[kMaxHeadDim];
    float scale = quantize_head(x, hd, q);
    std::memcpy(to + size_t(at) * sizeof scale, &scale, sizeof scale);
    auto* run = reinterpret_cast<int8_t*>(to + size_t(runs.tokens) * sizeof scale);
    if (!is_v)
        for (int d = 0; d < hd; ++d) run[d * runs.tokens + at] = q[d];
    else if (runs.tokens != kTile)
        std::memcpy(run + at * hd, q, size_t(hd));
    else
        for (int d = 0; d < hd; d += 16) std::memcpy(run + (at / 2 * hd + d) * 2 + at % 2 * 16, q + d, 16);
}

static void kv_write(const KVWriteArgs& a, Worker& worker) {
    const KVLayer& kv = a.kv;
    Runs runs(kv);
    auto write = kv.dtype == KVDtype::kInt8 ? write_int8 : write_bf16;
    int64_t tasks = int64_t(a.rows) * kv.num_kv_heads;
    int64_t begin = tasks * worker.index / worker.count, end = tasks * (worker.index + 1) / worker.count;
    for (int64_t i = begin; i < end; ++i) {
        int row = int(i / kv.num_kv_heads), head = int(i % kv.num_kv_heads);
        int32_t slot = a.slots[row];
        if (slot < 0) continue;
        int offset = slot % kv.block_size, run = offset / runs.tokens, at = offset % runs.tokens;
        uint8_t* block = kv.base + size_t(slot / kv.block_size) * kv.block_stride;
        const float* x = a.x + int64_t(row) * a.ldx + head * kv.head_dim;
        write(kv, runs, x + a.k_column, at, block + runs.k(head, run), false);
        write(kv, runs, x + a.v_column, at, block + runs.v(head, run), true);
    }
}

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
