// Repacking: four codes at a time in one 32-bit word.
#include "weights_pack.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace leafage {

namespace {

uint32_t load32(const uint8_t* p) {
    uint32_t u;
    std::memcpy(&u, p, 4);
    return u;
}

void store32(uint8_t* p, uint32_t u) { std::memcpy(p, &u, 4); }

// Bits 0-3 of n into bit 0 of four bytes.
uint32_t spread4(uint32_t n) { return ((n & 15) * 0x00204081u) & 0x01010101u; }

constexpr uint32_t kLow4 = 0x0f0f0f0fu, kLow2 = 0x03030303u, kLow1 = 0x01010101u;

// ---- codes of group g of a file block: byte t of q[j] is the code of input 4j + t of the group

// 16 bytes: low nibbles are inputs 0-15, high ones 16-31.
void nibbles(const uint8_t* p, uint32_t q[8]) {
    for (int i = 0; i < 4; ++i) {
        uint32_t v = load32(p + 4 * i);
        q[i] = v & kLow4;
        q[i + 4] = v >> 4 & kLow4;
    }
}

template <Dtype T>
inline void file_codes(const uint8_t* b, int g, uint32_t q[8]) {
    if constexpr (T == Dtype::Q4_0 || T == Dtype::IQ4_NL) {
        nibbles(b + 2, q);
    } else if constexpr (T == Dtype::Q4_1) {
        nibbles(b + 4, q);
    } else if constexpr (T == Dtype::MXFP4) {
        nibbles(b + 1, q);
    } else if constexpr (T == Dtype::Q5_0 || T == Dtype::Q5_1) {
        const uint8_t* high = b + (T == Dtype::Q5_0 ? 2 : 4);
        nibbles(high + 4, q);
        uint32_t h = load32(high);
        for (int j = 0; j < 8; ++j) q[j] |= spread4(h >> (4 * j)) << 4;
    } else if constexpr (T == Dtype::Q8_0) {
        for (int j = 0; j < 8; ++j) q[j] = load32(b + 2 + 4 * j) ^ 0x80808080u;
    } else if constexpr (T == Dtype::Q2_K) {
        for (int j = 0; j < 8; ++j) q[j] = load32(b + 16 + 32 * (g / 4) + 4 * j) >> (2 * (g % 4)) & kLow2;
    } else if constexpr (T == Dtype::Q3_K) {
        for (int j = 0; j < 8; ++j)
            q[j] = (load32(b + 32 + 32 * (g / 4) + 4 * j) >> (2 * (g % 4)) & kLow2) |
                   (load32(b + 4 * j) >> g & kLow1) << 2;
    } else if constexpr (T == Dtype::Q4_K) {
        for (int j = 0; j < 8; ++j) q[j] = load32(b + 16 + 32 * (g / 2) + 4 * j) >> (4 * (g % 2)) & kLow4;
    } else if constexpr (T == Dtype::Q5_K) {
        for (int j = 0; j < 8; ++j)
            q[j] = (load32(b + 48 + 32 * (g / 2) + 4 * j) >> (4 * (g % 2)) & kLow4) |
                   (load32(b + 16 + 4 * j) >> g & kLow1) << 4;
    } else if constexpr (T == Dtype::Q6_K) {
        const uint8_t* low = b + 64 * (g / 4) + 32 * (g % 2);
        const uint8_t* high = b + 128 + 32 * (g / 4);
        const int low_shift = g % 4 / 2 * 4, high_shift = 2 * (g % 4);
        for (int j = 0; j < 8; ++j)
            q[j] = (load32(low + 4 * j) >> low_shift & kLow4) | (load32(high + 4 * j) >> high_shift & kLow2) << 4;
    } else {
        static_assert(T == Dtype::IQ4_XS);
        nibbles(b + 8 + 16 * g, q);
    }
}

// ---- planes of a group in a panel (weights.h)

template <int Bits>
inline void write_codes(uint8_t* group, int lane, const uint32_t q[8]) {
    uint8_t* at = group + 4 * lane;
    if constexpr (Bits == 8) {
        for (int j = 0; j < 8; ++j) store32(at + 64 * j, q[j]);
    } else if constexpr (Bits == 2 || Bits == 3) {
        for (int i = 0; i < 2; ++i) {
            uint32_t v = 0;
            for (int j = 0; j < 4; ++j) v |= (q[4 * i + j] & kLow2) << (2 * j);
            store32(at + 64 * i, v);
        }
        if constexpr (Bits == 3) {
            uint32_t v = 0;
            for (int j = 0; j < 8; ++j) v |= (q[j] >> 2 & kLow1) << j;
            store32(at + 128, v);
        }
    } else {
        for (int i = 0; i < 4; ++i) store32(at + 64 * i, (q[i] & kLow4) | (q[i + 4] & kLow4) << 4);
        if constexpr (Bits == 5) {
            uint32_t v = 0;
            for (int j = 0; j < 8; ++j) v |= (q[j] >> 4 & kLow1) << j;
            store32(at + 256, v);
        }
        if constexpr (Bits == 6) {
            for (int i = 0; i < 2; ++i) {
                uint32_t v = 0;
                for (int j = 0; j < 4; ++j) v |= (q[4 * i + j] >> 4 & kLow2) << (2 * j);
                store32(at + 256 + 64 * i, v);
            }
        }
    }
}

// ---- scale records

// Scales of a group of 256 inputs, 6 bits each: 8 for d, then 8 for dmin.
void six_bit_pairs(const uint8_t* s, uint8_t scale[8], uint8_t min[8]) {
    for (int i = 0; i < 4; ++i) {
        scale[i] = s[i] & 63;
        min[i] = s[i + 4] & 63;
        scale[i + 4] = uint8_t((s[i + 8] & 15) | (s[i] >> 6) << 4);
        min[i + 4] = uint8_t(s[i + 8] >> 4 | (s[i + 4] >> 6) << 4);
    }
}

template <Dtype T>
inline void write_scales(uint8_t* record, int group, int lane, const uint8_t* b) {
    constexpr Scales kind = format_of(T).scales;
    if constexpr (kind == Scales::kF16) {
        std::memcpy(record + 2 * (group * kPanel + lane), b, 2);
    } else if constexpr (kind == Scales::kF16Min) {
        std::memcpy(record + 2 * lane, b, 2);
        std::memcpy(record + 32 + 2 * lane, b + 2, 2);
    } else if constexpr (kind == Scales::kE8M0) {
        // A block of zeros may have any exponent: not one whose scale is subnormal and slow.
        uint32_t codes = 0;
        for (int i = 1; i < 17; i += 4) codes |= load32(b + i);
        record[group * kPanel + lane] = (codes & 0x77777777u) == 0 ? 127 : b[0];
    } else if constexpr (kind == Scales::kSub8Min) {
        uint8_t scale[8], min[8];
        six_bit_pairs(b + 4, scale, min);
        for (int i = 0; i < 8; ++i) {
            record[16 * i + lane] = scale[i];
            record[128 + 16 * i + lane] = min[i];
        }
        std::memcpy(record + 256 + 2 * lane, b, 2);
        std::memcpy(record + 288 + 2 * lane, b + 2, 2);
    } else if constexpr (kind == Scales::kSub4Min) {
        for (int i = 0; i < 16; ++i) record[16 * i + lane] = b[i];
        std::memcpy(record + 256 + 2 * lane, b + 80, 2);
        std::memcpy(record + 288 + 2 * lane, b + 82, 2);
    } else if constexpr (kind == Scales::kSub16) {
        if constexpr (T == Dtype::Q6_K) {
            for (int i = 0; i < 16; ++i) record[16 * i + lane] = b[192 + i];
            std::memcpy(record + 256 + 2 * lane, b + 208, 2);
        } else {
            const uint8_t* s = b + 96;  // 16 x 6 bits: 8 bytes of low nibbles, 4 of upper pairs
            for (int i = 0; i < 16; ++i) {
                int low = s[i % 8] >> (4 * (i / 8)) & 15, high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
                record[16 * i + lane] = uint8_t(int8_t((low | high << 4) - 32));
            }
            std::memcpy(record + 256 + 2 * lane, b + 108, 2);
        }
    } else {
        static_assert(kind == Scales::kSub8);
        uint32_t high = uint32_t(b[2]) | uint32_t(b[3]) << 8;
        for (int i = 0; i < 8; ++i) {
            int low = b[4 + i / 2] >> (4 * (i % 2)) & 15;
            record[16 * i + lane] = uint8_t(int8_t((low | int(high >> (2 * i) & 3) << 4) - 32));
        }
        std::memcpy(record + 128 + 2 * lane, b, 2);
    }
}

template <Dtype T>
void pack_panel(const PackedWeight& w, uint8_t* panel, const uint8_t* raw, int lanes) {
    constexpr Format f = format_of(T);
    constexpr int groups_per_block = f.block / kGroup;
    const int blocks = w.cols / f.block;
    const int groups = w.groups();
    if (f.scales == Scales::kE8M0 && lanes < kPanel)  // lanes without a row: see write_scales
        for (int g = 0; g < groups; g += f.scale_groups) std::memset(panel + f.scales_at(g, groups), 127, f.scale_bytes);
    const size_t row_bytes = size_t(blocks) * f.block_bytes;
    for (int s = 0; s < blocks; ++s)
        for (int lane = 0; lane < lanes; ++lane) {
            const uint8_t* block = raw + size_t(lane) * row_bytes + size_t(s) * f.block_bytes;
            const int first = s * groups_per_block;
            write_scales<T>(panel + f.scales_at(first, groups), f.group_of_record(first), lane, block);
            for (int g = 0; g < groups_per_block; ++g) {
                uint32_t q[8];
                file_codes<T>(block, g, q);
                write_codes<f.bits>(panel + f.codes_at(first + g), lane, q);
            }
        }
}

// Element (lane, k) to k-major; BF16 in pairs of k.
template <typename Element, int Pair>
void pack_float_panel(const PackedWeight& w, uint8_t* panel, const uint8_t* raw, int lanes) {
    for (int k = 0; k < w.cols; ++k)
        for (int lane = 0; lane < lanes; ++lane)
            std::memcpy(panel + (size_t(k / Pair) * kPanel * Pair + size_t(lane * Pair + k % Pair)) * sizeof(Element),
                        raw + (size_t(lane) * w.cols + k) * sizeof(Element), sizeof(Element));
}

using PackPanel = void (*)(const PackedWeight&, uint8_t*, const uint8_t*, int);

PackPanel pack_panel_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::F32: return pack_float_panel<uint32_t, 1>;
        case Dtype::F16: return pack_float_panel<uint16_t, 1>;
        case Dtype::BF16: return pack_float_panel<uint16_t, 2>;
        case Dtype::Q4_0: return pack_panel<Dtype::Q4_0>;
        case Dtype::Q4_1: return pack_panel<Dtype::Q4_1>;
        case Dtype::Q5_0: return pack_panel<Dtype::Q5_0>;
        case Dtype::Q5_1: return pack_panel<Dtype::Q5_1>;
        case Dtype::Q8_0: return pack_panel<Dtype::Q8_0>;
        case Dtype::Q2_K: return pack_panel<Dtype::Q2_K>;
        case Dtype::Q3_K: return pack_panel<Dtype::Q3_K>;
        case Dtype::Q4_K: return pack_panel<Dtype::Q4_K>;
        case Dtype::Q5_K: return pack_panel<Dtype::Q5_K>;
        case Dtype::Q6_K: return pack_panel<Dtype::Q6_K>;
        case Dtype::IQ4_NL: return pack_panel<Dtype::IQ4_NL>;
        case Dtype::IQ4_XS: return pack_panel<Dtype::IQ4_XS>;
        case Dtype::MXFP4: return pack_panel<Dtype::MXFP4>;
    }
    return nullptr;
}

}  // namespace

void pack_panels(const std::vector<PackJob>& jobs, int num_threads) {
    constexpr int kChunk = 8;  // panels that a thread takes at a time
    std::vector<int64_t> first_chunk{0};
    for (const PackJob& job : jobs) first_chunk.push_back(first_chunk.back() + ceil_div(job.weight->panels, kChunk));
    std::atomic<int64_t> next{0};
    auto work = [&] {
        size_t j = 0;
        for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < first_chunk.back();) {
            while (chunk >= first_chunk[j + 1]) ++j;
            const PackedWeight& w = *jobs[j].weight;
            const PackPanel pack = pack_panel_of(w.dtype);
            const size_t row_bytes = file_bytes(w.dtype, 1, w.cols);
            const int begin = int(chunk - first_chunk[j]) * kChunk, end = std::min(begin + kChunk, w.panels);
            for (int p = begin; p < end; ++p)
                pack(w, jobs[j].data + size_t(p) * w.panel_bytes, jobs[j].raw + size_t(p) * kPanel * row_bytes,
                     std::min(kPanel, w.rows - p * kPanel));
        }
    };
    std::vector<std::thread> threads;
    for (int64_t i = 1; i < std::min<int64_t>(num_threads, first_chunk.back()); ++i) threads.emplace_back(work);
    work();
    for (auto& thread : threads) thread.join();
}

void read_codes(int bits, const uint8_t* group, int lane, uint32_t q[8]) {
    const uint8_t* at = group + 4 * lane;
    for (int j = 0; j < 8; ++j) {
        if (bits == 8) {
            q[j] = load32(at + 64 * j);
        } else if (bits <= 3) {
            q[j] = load32(at + 64 * (j / 4)) >> (2 * (j % 4)) & kLow2;
            if (bits == 3) q[j] |= (load32(at + 128) >> j & kLow1) << 2;
        } else {
            q[j] = load32(at + 64 * (j % 4)) >> (4 * (j / 4)) & kLow4;
            if (bits == 5) q[j] |= (load32(at + 256) >> j & kLow1) << 4;
            if (bits == 6) q[j] |= (load32(at + 256 + 64 * (j / 4)) >> (2 * (j % 4)) & kLow2) << 4;
        }
    }
}

}  // namespace leafage
