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

// 16 groups: from[i] points at 32 inputs of group i, its bytes go to q + 32 * i. dx per group, and sum[h]: of the
// bytes of its first and second half.
static inline void quantize_16(const float* const from[16], int8_t* q, __m512& dx, __m512i sum[2]) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i most[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
        most[i] = _mm512_max_epu32(_mm512_and_si512(_mm512_loadu_si512(from[i]), magnitude),
                                   _mm512_and_si512(_mm512_loadu_si512(from[i] + 16), magnitude));
    const __m512i bits = max_of_each(most);  // a NaN is the largest
    const __m512 absmax = _mm512_castsi512_ps(bits), top = _mm512_set1_ps(127.0f);
    const __mmask16 finite = _mm512_cmplt_epu32_mask(bits, _mm512_set1_epi32(0x7f800000));
    const __mmask16 counts = finite & _mm512_cmp_ps_mask(absmax, _mm512_set1_ps(1e-30f), _CMP_GE_OQ);
    dx = _mm512_mask_mov_ps(_mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)), finite,
                            _mm512_maskz_div_ps(counts, absmax, top));
    alignas(64) float inverse[16];
    _mm512_store_ps(inverse, _mm512_maskz_div_ps(counts, top, absmax));

    const __m512i byte_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
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
        const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(part[0], part[1]), _mm512_packs_epi32(part[2], part[3]));
        const __m512i ordered = _mm512_permutexvar_epi32(byte_order, bytes);
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
    sum[0] = _mm512_permutex2var_epi32(quads[0], first, quads[1]);
    sum[1] = _mm512_permutex2var_epi32(quads[0], _mm512_add_epi32(first, _mm512_set1_epi32(4)), quads[1]);
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
        __m512 dx;
        __m512i sum[2];
        int8_t* q = reinterpret_cast<int8_t*>(tile) + size_t(first) * kGroup;
        alignas(64) int8_t spare[16 * kGroup];
        quantize_16(from, n == 16 ? q : spare, dx, sum);
        if (n < 16) std::memcpy(q, spare, size_t(n) * kGroup);
        _mm512_mask_storeu_ps(tile + layout.dx + 4 * size_t(first), __mmask16((1u << n) - 1), dx);
        write_aux(tile, layout, mask, first, n, dx, sum);
    }
}
