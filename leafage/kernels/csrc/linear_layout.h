// How quantized activations and unpacked weights lie in scratch memory; the same on every instruction set.
#pragma once
#include "kernels.h"
#include "weights.h"

namespace leafage {

// The exact arithmetic of a quantized linear, per row and output, groups g of 32 inputs in ascending order:
//   dx[g] = absmax(x[g]) / 127, xq = round_half_even(x * (127 / absmax)), an int8 in [-127, 127];
//   for each subgroup (all 32, or 16 + 16) of the weight type: dot = sum of q * xq, an exact int32;
//   acc = fma(float(dot), d * dx, acc), then, for types with a minimum, acc = fma(min, dx * float(sum xq), acc).
// Float weights: two chains, even and odd inputs: acc[k % 2] = fma(w[k], x[k], acc[k % 2]); then acc[0] + acc[1].
// After that: acc + bias, then out + acc. The plain variant rounds the product instead of fusing.
// A group with a NaN or an infinity has dx = NaN; one with absmax < 1e-30 counts as zero.
// Precise: the quad (4 inputs, as in a panel) with the largest |x| reaches twice as far as the others, so an outlier
// coarsens them less: `range` = max(absmax of the other quads, absmax / 2) takes the place of absmax in dx and xq, and
// that quad's xq, in [-254, 254], is the sum of two int8: the nearest one and the `extra`. One accumulator, one dx.

// Besides xq and dx a weight type needs one more value per subgroup: -bias * sum(xq) (int32, where the dot
// product starts), or dx * sum(xq) (float).
enum Aux : int { kInit8, kInit16, kInit128, kSum, kInit4Half, kInit32Half, kSumHalf, kNumAux };
constexpr int kFloatRows = kNumAux;  // mask bit: the call has float weights
constexpr int kPrecise = kNumAux + 1;  // mask bit: quantized activations are precise
constexpr unsigned kQuantizedMask = (1u << kNumAux) - 1;

constexpr bool aux_is_half(int aux) { return aux >= kInit4Half; }
constexpr int kAuxBias[kNumAux] = {8, 16, 128, 0, 4, 32, 0};
constexpr int aux_of(const Format& f) {
    if (!f.quantized()) return kFloatRows;
    if (f.has_min) return f.subgroups == 2 ? kSumHalf : kSum;
    if (f.subgroups == 2) return f.bias() == 4 ? kInit4Half : kInit32Half;
    return f.bias() == 8 ? kInit8 : f.bias() == 16 ? kInit16 : kInit128;
}

// A tile of R rows: xq int8 [groups][R][32], dx float [groups][R], each aux [groups or 2 groups][R],
// and, for float weights, x float [k][R]. Precise: extra [groups][R], the four int8 of the widest quad, and
// extra_at int32 [groups][R], where the codes of that quad begin in an unpacked group.
struct TileLayout {
    int tile_rows, k, groups;
    bool precise;
    size_t dx, extra, extra_at, aux[kNumAux], floats, bytes;

    TileLayout(int tile_rows, int k, unsigned mask)
        : tile_rows(tile_rows), k(k), groups(0), precise((mask & (1u << kPrecise)) != 0) {
        size_t at = 0, rows = size_t(tile_rows);
        if (mask & kQuantizedMask) {
            groups = k / kGroup;
            at = size_t(groups) * rows * kGroup;
        }
        dx = at;
        at += size_t(groups) * rows * 4;
        const size_t extra_bytes = precise ? size_t(groups) * rows * 4 : 0;
        extra = at;
        extra_at = at + extra_bytes;
        at += 2 * extra_bytes;
        for (int a = 0; a < kNumAux; ++a) {
            aux[a] = at;
            if (mask & (1u << a)) at += size_t(groups) * rows * 4 * (aux_is_half(a) ? 2 : 1);
        }
        at = (at + 63) / 64 * 64;
        floats = at;
        if (mask & (1u << kFloatRows)) at += size_t(k) * rows * 4;
        bytes = (at + 63) / 64 * 64;
    }
};

constexpr int kTileRows = 16;
constexpr int kPrivateRows = 4;     // up to here every thread quantizes all rows itself
constexpr int kBlockTiles = 16;     // row tiles that share one unpacked panel
constexpr int kUnpackGroups = 24;   // groups unpacked at a time; a multiple of 8
constexpr int kUnpackFloats = 256;  // float inputs unpacked at a time; even

constexpr int kQuadBytes = 4 * kPanel;

// An unpacked group: codes [8 quads][16 lanes][4], then d [subgroups][16] and min [subgroups][16] as float.
constexpr int unpacked_bytes(int subgroups, bool has_min) { return 512 + 64 * subgroups * (has_min ? 2 : 1); }

// Worker scratch: unpacked weights, accumulators [tile][2][16 rows][16 lanes], and the private tile of a small call.
constexpr size_t kUnpackBytes = size_t(kUnpackGroups) * unpacked_bytes(2, true);
static_assert(kUnpackBytes >= size_t(kUnpackFloats) * kPanel * sizeof(float), "room for either kind");
constexpr size_t kAccBytes = size_t(kBlockTiles) * 2 * kTileRows * kPanel * 4;
constexpr size_t kPrivateBytes = size_t(256) << 10;
constexpr size_t kLinearScratch = kUnpackBytes + kAccBytes + kPrivateBytes;

}  // namespace leafage
