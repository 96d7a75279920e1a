// `tile_any` for instruction sets that take up to four rows and 8 lanes of floats at a time. Included inside their
// namespace, which defines before it
//   template <Dtype T, int R> void tile_groups(weights, begin, end, tile, layout, row, acc);
//   template <int R> void tile_float(weights, begin, end, x, stride, acc);

template <Dtype T, int R>
static inline void tile_rows(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout& layout,
                             int row, float* acc) {
    if constexpr (format_of(T).quantized()) {
        tile_groups<T, R>(weights, begin, end, tile, layout, row, acc);
    } else {
        const auto* w = reinterpret_cast<const float*>(weights);
        const auto* x = reinterpret_cast<const float*>(tile + layout.floats) + row;
        for (int half = 0; half < 2; ++half)
            tile_float<R>(w + 8 * half, begin, end, x, layout.tile_rows, acc + 8 * half);
    }
}

template <Dtype T>
static void tile_any(int rows, const uint8_t* weights, int begin, int end, const uint8_t* tile,
                     const TileLayout& layout, const uint8_t*, float* acc) {
    if (begin == 0)
        for (int chain = 0; chain < (format_of(T).quantized() ? 1 : 2); ++chain)
            std::memset(acc + chain * kTileRows * kPanel, 0, sizeof(float) * size_t(rows) * kPanel);
    int row = 0;
    for (; row + 4 <= rows; row += 4) tile_rows<T, 4>(weights, begin, end, tile, layout, row, acc + row * kPanel);
    if (rows - row == 3) tile_rows<T, 3>(weights, begin, end, tile, layout, row, acc + row * kPanel);
    if (rows - row == 2) tile_rows<T, 2>(weights, begin, end, tile, layout, row, acc + row * kPanel);
    if (rows - row == 1) tile_rows<T, 1>(weights, begin, end, tile, layout, row, acc + row * kPanel);
}
