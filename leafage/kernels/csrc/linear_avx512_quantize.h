// Activations to int8 tiles, 16 groups of 32 inputs at a time: reductions over 16 vectors share their shuffles, and
// what belongs to 16 groups (dx, sums) is one vector. Included inside the namespace.

// Lane i: the largest (as unsigned) of v[i].
static inline __m512i max_of_each(const __m512i v[16]) {
    auto max = [](__m512i a, __m512i b) __attribute__((always_inline)) { return _mm512_max_epu32(a, b); };
    __m512i half[8], quarter[4], pair[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        half[i] = max(_mm512_mask_blend_epi64(0xf0, v[i], v[i + 8]), _mm512_shuffle_i32x4(v[i], v[i + 8], 0x4e));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        quarter[i] = max(_mm512_shuffle_i32x4(half[i], half[i + 4], 0xd8), _mm512_shuffle_i32x4(half[i], half[i + 4], 0x8d));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
        pair[i] = max(_mm512_unpacklo_epi64(quarter[i], quarter[i + 2]), _mm512_unpackhi_epi64(quarter[i], quarter[i + 2]));
    const __m512 a = _mm512_castsi512_ps(pair[0]), b = _mm512_castsi512_ps(pair[1]);
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_epi32(order, max(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                               _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd))));
}

// Of the 8 quads of group i, in lane i: the largest and the second largest absmax (bits), and which one has the largest.
static inline void widest_of_each(const float* const from[16], __m512i& first, __m512i& second, __m512i& widest) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    first = second = widest = _mm512_setzero_si512();
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        __m512i four[4];  // 128-bit lane j: of quad j of four groups
#pragma GCC unroll 4
        for (int a = 0; a < 4; ++a) {
            __m512i pair[2];
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                const __m512i v = _mm512_and_si512(_mm512_loadu_si512(from[4 * a + 2 * i] + 16 * half), magnitude);
                const __m512i w = _mm512_and_si512(_mm512_loadu_si512(from[4 * a + 2 * i + 1] + 16 * half), magnitude);
                pair[i] = _mm512_max_epu32(_mm512_unpacklo_epi32(v, w), _mm512_unpackhi_epi32(v, w));
            }
            four[a] = _mm512_max_epu32(_mm512_unpacklo_epi64(pair[0], pair[1]), _mm512_unpackhi_epi64(pair[0], pair[1]));
        }
        const __m512i even[2] = {_mm512_shuffle_i32x4(four[0], four[1], 0x88), _mm512_shuffle_i32x4(four[2], four[3], 0x88)};
        const __m512i odd[2] = {_mm512_shuffle_i32x4(four[0], four[1], 0xdd), _mm512_shuffle_i32x4(four[2], four[3], 0xdd)};
        const __m512i quad[4] = {_mm512_shuffle_i32x4(even[0], even[1], 0x88), _mm512_shuffle_i32x4(odd[0], odd[1], 0x88),
                                 _mm512_shuffle_i32x4(even[0], even[1], 0xdd), _mm512_shuffle_i32x4(odd[0], odd[1], 0xdd)};
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const __mmask16 wider = _mm512_cmpgt_epu32_mask(quad[j], first);
            second = _mm512_max_epu32(second, _mm512_min_epu32(quad[j], first));
            first = _mm512_max_epu32(first, quad[j]);
            widest = _mm512_mask_mov_epi32(widest, wider, _mm512_set1_epi32(4 * half + j));
        }
    }
}

// Four vectors of int32 to bytes, in order, the largest and smallest where they do not fit.
static inline __m512i to_bytes(const __m512i part[4]) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(part[0], part[1]), _mm512_packs_epi32(part[2], part[3]));
    return _mm512_permutexvar_epi32(order, bytes);
}

// What int8 leaves of the widest quads, four bytes for each group.
static inline __m512i extra_of_each(const float* const from[16], __m512i widest, __m512 inverse, __mmask16 counts) {
    alignas(64) int32_t at[16];
    _mm512_store_si512(at, widest);
    __m512i part[4];
#pragma GCC unroll 4
    for (int a = 0; a < 4; ++a) {
        const float* const* x = from + 4 * a;
        const int32_t* quad = at + 4 * a;
        const __m256 low = _mm256_loadu2_m128(x[1] + 4 * quad[1], x[0] + 4 * quad[0]);
        const __m256 high = _mm256_loadu2_m128(x[3] + 4 * quad[3], x[2] + 4 * quad[2]);
        const __m512i of = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        const __m512 scale = _mm512_permutexvar_ps(_mm512_add_epi32(of, _mm512_set1_epi32(4 * a)), inverse);
        const __m512 values = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
        const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(values, scale));
        const __m512i nearest = _mm512_min_epi32(_mm512_max_epi32(v, _mm512_set1_epi32(-127)), _mm512_set1_epi32(127));
        part[a] = _mm512_sub_epi32(v, nearest);
    }
    return _mm512_maskz_mov_epi32(counts, to_bytes(part));
}

// Of 16 groups: dx, sums of xq over the first and second half; extra and extra_at where precise.
struct Quantized {
    __m512 dx;
    __m512i sum[2], extra, extra_at;
};

// from[i] points at 32 inputs of group i, its bytes go to q + 32 * i.
template <bool Precise>
static inline void quantize_16(const float* const from[16], int8_t* q, Quantized& to) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i bits, widest;  // absmax: a NaN is the largest
    __m512 range;
    if constexpr (Precise) {
        __m512i others;
        widest_of_each(from, bits, others, widest);
        range = _mm512_max_ps(_mm512_castsi512_ps(others), _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.5f)));
    } else {
        __m512i most[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i)
            most[i] = _mm512_max_epu32(_mm512_and_si512(_mm512_loadu_si512(from[i]), magnitude),
                                       _mm512_and_si512(_mm512_loadu_si512(from[i] + 16), magnitude));
        bits = max_of_each(most);
        range = _mm512_castsi512_ps(bits);
    }
    const __m512 absmax = _mm512_castsi512_ps(bits), top = _mm512_set1_ps(127.0f);
    const __mmask16 finite = _mm512_cmplt_epu32_mask(bits, _mm512_set1_epi32(0x7f800000));
    const __mmask16 counts = finite & _mm512_cmp_ps_mask(absmax, _mm512_set1_ps(1e-30f), _CMP_GE_OQ);
    to.dx = _mm512_mask_mov_ps(_mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)), finite,
                               _mm512_maskz_div_ps(counts, range, top));
    const __m512 inverses = _mm512_maskz_div_ps(counts, top, range);
    alignas(64) float inverse[16];
    _mm512_store_ps(inverse, inverses);

    const __m512i ones = _mm512_set1_epi8(1);
    __m512i halves[8];  // of groups 2i and 2i + 1: four sums of each half
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        __m512i part[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const int g = 2 * i + j / 2;
            // Infinities and NaN times the factor 0 are no numbers: the mask makes them 0.
            const __mmask16 mask = __mmask16(-((counts >> g) & 1));
            const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(from[g] + 16 * (j % 2)), _mm512_set1_ps(inverse[g]));
            part[j] = _mm512_maskz_cvtps_epi32(mask, x);
        }
        __m512i ordered = to_bytes(part);
        if constexpr (Precise) ordered = _mm512_max_epi8(ordered, _mm512_set1_epi8(-127));
        _mm512_storeu_si512(q + 64 * i, ordered);
        halves[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, ordered);
    }
    __m512i quads[2];  // 128-bit lane l: half l % 2 of groups l / 2, 2 + l / 2, 4 + l / 2, 6 + l / 2 (+ 8)
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m512i* h = halves + 4 * i;
        const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(h[0], h[1]), _mm512_unpackhi_epi32(h[0], h[1]));
        const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(h[2], h[3]), _mm512_unpackhi_epi32(h[2], h[3]));
        quads[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    const __m512i first = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
    to.sum[0] = _mm512_permutex2var_epi32(quads[0], first, quads[1]);
    to.sum[1] = _mm512_permutex2var_epi32(quads[0], _mm512_add_epi32(first, _mm512_set1_epi32(4)), quads[1]);
    if constexpr (Precise) {
        to.extra = extra_of_each(from, widest, inverses, counts);
        to.extra_at = _mm512_mullo_epi32(widest, _mm512_set1_epi32(kQuadBytes));
        const __m512i total = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, to.extra);
        const __mmask16 early = _mm512_cmplt_epi32_mask(widest, _mm512_set1_epi32(4));
        to.sum[0] = _mm512_mask_add_epi32(to.sum[0], early, to.sum[0], total);
        to.sum[1] = _mm512_mask_add_epi32(to.sum[1], __mmask16(~early), to.sum[1], total);
    }
}

// The aux values of groups first .. first + n - 1, counted over [group][row] as the tile is.
static inline void write_aux(uint8_t* tile, const TileLayout& layout, unsigned mask, int first, int n, __m512 dx,
                             const __m512i sum[2]) {
    const __mmask16 some = __mmask16((1u << n) - 1);
    for (int a = 0; a < kNumAux; ++a) {
        if (!(mask & (1u << a))) continue;
        auto value_of = [&](__m512i s) {
            return kAuxBias[a] == 0 ? _mm512_castps_si512(_mm512_mul_ps(dx, _mm512_cvtepi32_ps(s)))
                                    : _mm512_mullo_epi32(s, _mm512_set1_epi32(-kAuxBias[a]));
        };
        uint8_t* to = tile + layout.aux[a];
        if (!aux_is_half(a)) {
            _mm512_mask_storeu_epi32(to + 4 * size_t(first), some, value_of(_mm512_add_epi32(sum[0], sum[1])));
            continue;
        }
        alignas(64) int32_t values[2][16];  // the tile has [group][half][row]
        for (int h = 0; h < 2; ++h) _mm512_store_si512(values[h], value_of(sum[h]));
        const int rows = layout.tile_rows;
        for (int i = 0; i < n; ++i)
            for (int h = 0; h < 2; ++h) {
                const size_t at = size_t((first + i) / rows * 2 + h) * size_t(rows) + size_t((first + i) % rows);
                std::memcpy(to + 4 * at, &values[h][i], 4);
            }
    }
}

constexpr int kAheadGroups = 3;

// Groups begin .. end - 1 of the tile; see fill_tile.
static void fill_groups(const float* x, int ldx, int rows, unsigned mask, const TileLayout& layout, int begin, int end,
                        uint8_t* tile) {
    alignas(64) static constexpr float zeros[kGroup] = {};
    const int tile_rows = layout.tile_rows;
    int group = begin, row = 0;
    for (int first = begin * tile_rows, last = end * tile_rows; first < last; first += 16) {
        const int n = last - first < 16 ? last - first : 16;
        const float* from[16];
        for (int i = 0; i < 16; ++i) {
            from[i] = i < n && row < rows ? x + size_t(row) * size_t(ldx) + size_t(group) * kGroup : zeros;
            if (++row == tile_rows) row = 0, ++group;
        }
        if (tile_rows == kTileRows && group + kAheadGroups < layout.groups)  // 16 streams are too many to be followed
            for (int i = 0; i < 16; ++i)
                for (int line = 0; line < kGroup; line += 16) __builtin_prefetch(from[i] + kAheadGroups * kGroup + line);
        Quantized of_groups;
        int8_t* q = reinterpret_cast<int8_t*>(tile) + size_t(first) * kGroup;
        alignas(64) int8_t spare[16 * kGroup];
        (layout.precise ? quantize_16<true> : quantize_16<false>)(from, n == 16 ? q : spare, of_groups);
        if (n < 16) std::memcpy(q, spare, size_t(n) * kGroup);
        const __mmask16 some = __mmask16((1u << n) - 1);
        _mm512_mask_storeu_ps(tile + layout.dx + 4 * size_t(first), some, of_groups.dx);
        if (layout.precise) {
            _mm512_mask_storeu_epi32(tile + layout.extra + 4 * size_t(first), some, of_groups.extra);
            _mm512_mask_storeu_epi32(tile + layout.extra_at + 4 * size_t(first), some, of_groups.extra_at);
        }
        write_aux(tile, layout, mask, first, n, of_groups.dx, of_groups.sum);
    }
}
