// Portable quantization of activation rows into a tile, and scales of a group as float. Included inside the
// namespace of an instruction set.

static inline uint32_t float_bits(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    return u;
}

static inline float bits_float(uint32_t u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

// dx of a group and the factor to quantize by, from its largest magnitude (as bits: NaN is the largest).
static inline void group_factor(uint32_t absmax_bits, float& dx, float& inverse) {
    float absmax = bits_float(absmax_bits);
    dx = absmax / 127.0f;
    inverse = 127.0f / absmax;
    if (!(absmax >= 1e-30f)) dx = inverse = 0.0f;
    if (absmax_bits >= 0x7f800000u) {
        dx = bits_float(0x7fc00000u);
        inverse = 0.0f;
    }
}

// Everything but xq of row r, group g, from the sums of xq over the two halves.
static inline void write_aux(uint8_t* tile, const TileLayout& layout, unsigned mask, int g, int r, float dx, int sum_low,
                             int sum_high) {
    const size_t at = size_t(g) * layout.tile_rows + r, at2 = size_t(2 * g) * layout.tile_rows + r;
    std::memcpy(tile + layout.dx + 4 * at, &dx, 4);
    for (int a = 0; a < kNumAux; ++a) {
        if (!(mask & (1u << a))) continue;
        uint8_t* to = tile + layout.aux[a];
        if (aux_is_half(a)) {
            for (int h = 0; h < 2; ++h) {
                int sum = h ? sum_high : sum_low;
                float scaled = dx * float(sum);
                int32_t init = -aux_bias(a) * sum;
                std::memcpy(to + 4 * (at2 + size_t(h) * layout.tile_rows), a == kSumHalf ? (const void*)&scaled : (const void*)&init, 4);
            }
        } else {
            float scaled = dx * float(sum_low + sum_high);
            int32_t init = -aux_bias(a) * (sum_low + sum_high);
            std::memcpy(to + 4 * at, a == kSum ? (const void*)&scaled : (const void*)&init, 4);
        }
    }
}

// x [rows, k] into the tile; rows up to tile_rows become zero.
static void fill_tile_portable(const float* x, int ldx, int rows, unsigned mask, const TileLayout& layout, uint8_t* tile) {
    for (int r = 0; r < layout.tile_rows; ++r) {
        const float* row = x + size_t(r) * size_t(ldx);
        for (int g = 0; g < layout.groups; ++g) {
            auto* q = reinterpret_cast<int8_t*>(tile) + (size_t(g) * layout.tile_rows + r) * kGroup;
            if (r >= rows) {
                std::memset(q, 0, kGroup);
                write_aux(tile, layout, mask, g, r, 0.0f, 0, 0);
                continue;
            }
            const float* from = row + g * kGroup;
            uint32_t absmax = 0;
            for (int i = 0; i < kGroup; ++i) {
                uint32_t bits = float_bits(from[i]) & 0x7fffffffu;
                absmax = bits > absmax ? bits : absmax;
            }
            float dx, inverse;
            group_factor(absmax, dx, inverse);
            int sum[2] = {0, 0};
            for (int i = 0; i < kGroup; ++i) {
                int v = inverse == 0.0f ? 0 : int(lrintf(from[i] * inverse));
                q[i] = int8_t(v);
                sum[i / 16] += v;
            }
            write_aux(tile, layout, mask, g, r, dx, sum[0], sum[1]);
        }
    }
    if (mask & (1u << kFloatRows)) {
        auto* to = reinterpret_cast<float*>(tile + layout.floats);
        for (int r = 0; r < layout.tile_rows; ++r)
            for (int i = 0; i < layout.k; ++i)
                to[size_t(i) * layout.tile_rows + r] = r < rows ? x[size_t(r) * size_t(ldx) + i] : 0.0f;
    }
}

static void fill_tile(const float* x, int ldx, int rows, unsigned mask, const TileLayout& layout, uint8_t* tile) {
    fill_tile_portable(x, ldx, rows, mask, layout, tile);
}

// d and min [subgroups][16] of a group, with the roundings of dequantize_row.
static inline void group_scales(const Format& f, const uint8_t* scales, int g, float* d, float* min) {
    const uint8_t* record = scales + size_t(g / f.scale_groups) * f.scale_bytes;
    auto half = [&](int at, int lane) {
        uint16_t h;
        std::memcpy(&h, record + at + 2 * lane, 2);
        return f16_to_f32(h);
    };
    const int sub = g % f.scale_groups * f.subgroups;
    for (int l = 0; l < kPanel; ++l) switch (f.scales) {
            case Scales::kNone: break;
            case Scales::kF16: d[l] = half(0, l); break;
            case Scales::kF16Min:
                d[l] = half(0, l);
                min[l] = half(32, l);
                break;
            case Scales::kE8M0: {
                uint32_t e = record[l];
                d[l] = bits_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
                break;
            }
            case Scales::kSub8Min:
                d[l] = half(256, l) * float(record[sub * 16 + l]);
                min[l] = -(half(288, l) * float(record[128 + sub * 16 + l]));
                break;
            case Scales::kSub4Min:
                for (int h = 0; h < 2; ++h) {
                    uint8_t both = record[(sub + h) * 16 + l];
                    d[h * kPanel + l] = half(256, l) * float(both & 15);
                    min[h * kPanel + l] = -(half(288, l) * float(both >> 4));
                }
                break;
            case Scales::kSub16:
                for (int h = 0; h < 2; ++h)
                    d[h * kPanel + l] = half(256, l) * float(int8_t(record[(sub + h) * 16 + l]));
                break;
            case Scales::kSub8: d[l] = half(128, l) * float(int8_t(record[sub * 16 + l])); break;
        }
}
