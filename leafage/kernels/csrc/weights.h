// Weight formats and their packed form: panels of 16 output rows, at the file's own precision.
//
// A panel of a quantized matrix holds 16 lanes (output rows) as a sequence of records: the codes of a few groups
// of 32 inputs, then their scales. So a matrix is one stream of memory, which the CPU's prefetchers follow at the
// full rate (codes and scales apart, two streams, got 60 % of it). Codes are ordered in quads: word (quad j, lane l) holds the codes of inputs
// 4j .. 4j+3 of lane l, one byte each, which is what a 4-way byte dot product eats. Codes below 8 bits are
// split over planes of 64 bytes ([16 lanes][4]):
//   bits  planes (byte b of a plane belongs to lane b/4, input b%4 of a quad)
//   2     2: quads 0-3 and 4-7, two bits each
//   3     2 as for 2 bits, then 1 with the third bit of quad j in bit j
//   4     4: plane i has quad i in the low nibble, quad i+4 in the high one
//   5     4 as for 4 bits, then 1 with the fifth bit of quad j in bit j
//   6     4 as for 4 bits, then 2: the upper two bits of quads 0-3 and 4-7
//   8     8: plane j is quad j
// A record has `scale_groups` groups, the last one of a panel perhaps fewer, and `scale_bytes` of scales, padded to
// cache lines; see Scales.
#pragma once
#include "common.h"

#include <memory>
#include <string>
#include <vector>

namespace leafage {

enum class Dtype : int {
    F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4
};
constexpr int kNumDtypes = 16;

// How the scales of a record are laid out, for 16 lanes.
enum class Scales : int {
    kNone,
    kF16,       // d: half [2 groups][16]
    kF16Min,    // d: half [16], min: half [16]
    kE8M0,      // exponent: u8 [4 groups][16]
    kSub8Min,   // 256 inputs: scale u8 [8][16], min u8 [8][16], d half [16], dmin half [16]
    kSub4Min,   // 256 inputs: scale | min << 4: u8 [16][16], d half [16], dmin half [16]
    kSub16,     // 256 inputs: scale i8 [16][16], d half [16]
    kSub8,      // 256 inputs: scale i8 [8][16], d half [16]
};

// A code becomes a signed integer q by `code - offset` or by a table of 16 values; the weight is
// d * q (+ min), with d and min per lane and 32 / subgroups inputs.
enum class Table : int { kNone, kIQ4, kMXFP4 };

struct Format {
    const char* name;
    int block, block_bytes;  // of the file
    int bits;                // 0: not quantized
    int subgroups;           // 1 or 2 dot products per group of 32
    bool has_min;
    int offset;
    Table table;
    Scales scales;
    int scale_groups, scale_bytes;

    constexpr bool quantized() const { return bits != 0; }
    constexpr int group_bytes() const { return kPanel * kGroup * bits / 8; }
    constexpr int record_bytes() const { return scale_groups * group_bytes() + scale_bytes; }
    // Where in a panel of `groups` groups the codes of group g lie, and the scales of its record.
    constexpr size_t codes_at(int g) const {
        return size_t(unsigned(g) / scale_groups) * record_bytes() + size_t(unsigned(g) % scale_groups) * group_bytes();
    }
    constexpr size_t scales_at(int g, int groups) const {
        const int first = g - int(unsigned(g) % scale_groups), left = groups - first;
        return codes_at(first) + size_t(left < scale_groups ? left : scale_groups) * group_bytes();
    }
    // Group g within its record.
    constexpr int group_of_record(int g) const { return int(unsigned(g) % scale_groups); }
    // Unsigned bytes that the dot product sees are q + bias(); what it adds is taken back exactly.
    constexpr int bias() const { return has_min ? 0 : table == Table::kNone ? offset : 128; }
};

constexpr Format kFormats[kNumDtypes] = {
    {"F32", 1, 4, 0, 1, false, 0, Table::kNone, Scales::kNone, 1, 0},
    {"F16", 1, 2, 0, 1, false, 0, Table::kNone, Scales::kNone, 1, 0},
    {"BF16", 1, 2, 0, 1, false, 0, Table::kNone, Scales::kNone, 1, 0},
    {"Q4_0", 32, 18, 4, 1, false, 8, Table::kNone, Scales::kF16, 2, 64},
    {"Q4_1", 32, 20, 4, 1, true, 0, Table::kNone, Scales::kF16Min, 1, 64},
    {"Q5_0", 32, 22, 5, 1, false, 16, Table::kNone, Scales::kF16, 2, 64},
    {"Q5_1", 32, 24, 5, 1, true, 0, Table::kNone, Scales::kF16Min, 1, 64},
    {"Q8_0", 32, 34, 8, 1, false, 128, Table::kNone, Scales::kF16, 2, 64},
    {"Q2_K", 256, 84, 2, 2, true, 0, Table::kNone, Scales::kSub4Min, 8, 320},
    {"Q3_K", 256, 110, 3, 2, false, 4, Table::kNone, Scales::kSub16, 8, 320},
    {"Q4_K", 256, 144, 4, 1, true, 0, Table::kNone, Scales::kSub8Min, 8, 320},
    {"Q5_K", 256, 176, 5, 1, true, 0, Table::kNone, Scales::kSub8Min, 8, 320},
    {"Q6_K", 256, 210, 6, 2, false, 32, Table::kNone, Scales::kSub16, 8, 320},
    {"IQ4_NL", 32, 18, 4, 1, false, 0, Table::kIQ4, Scales::kF16, 2, 64},
    {"IQ4_XS", 256, 136, 4, 1, false, 0, Table::kIQ4, Scales::kSub8, 8, 192},
    {"MXFP4", 32, 17, 4, 1, false, 0, Table::kMXFP4, Scales::kE8M0, 4, 64},
};

constexpr const Format& format_of(Dtype dtype) { return kFormats[int(dtype)]; }

// Values of the 4-bit codes: llama.cpp's non-linear quantiles; OCP e2m1, doubled.
constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMXFP4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// A matrix [rows, cols] in packed form. Lanes beyond `rows` are zero. Float panels are [cols][16]; BF16 is
// [cols / 2][16][2] with cols rounded up to even.
struct PackedWeight {
    Dtype dtype;
    int rows, cols;
    int panels;
    size_t panel_bytes;  // a multiple of 64
    const uint8_t* data;  // 64-byte aligned
    std::shared_ptr<void> owner;

    const Format& format() const { return format_of(dtype); }
    const uint8_t* panel(int index) const { return data + size_t(index) * panel_bytes; }
    int groups() const { return cols / kGroup; }
    size_t nbytes() const { return size_t(panels) * panel_bytes; }
};

// Throws std::invalid_argument for an unknown name.
Dtype dtype_from_name(const std::string& name);

// Bytes of the file for [rows, cols]; throws std::invalid_argument when cols is not a multiple of the block.
size_t file_bytes(Dtype dtype, int rows, int cols);

// A matrix as the file has it: raw is file_bytes(...) bytes, row by row.
struct RawWeight {
    Dtype dtype;
    int rows, cols;
    const uint8_t* raw;
};

// All of them, in order; the threads share out the panels of all. The panels do not depend on num_threads.
std::vector<PackedWeight> pack(const std::vector<RawWeight>& raw, int num_threads);

// Row `row` as float32, with the roundings of the `gguf` package's dequantization.
void dequantize_row(const PackedWeight& weight, int row, float* out);

}  // namespace leafage
