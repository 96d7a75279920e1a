// `direct` by unpacking to memory first. Included inside the namespace of an instruction set.

// A few groups at a time through a buffer near the core.
template <Dtype T>
static void direct_unpacked(int rows, const uint8_t* panel, const Stream&, const uint8_t* tile, const TileLayout& layout,
                            float* acc) {
    constexpr Format f = format_of(T);
    constexpr int step = f.quantized() ? 8 : 128;
    alignas(64) uint8_t buffer[8 * unpacked_bytes(2, true) > 128 * 64 ? 8 * unpacked_bytes(2, true) : 128 * 64];
    const int units = f.quantized() ? layout.groups : layout.k;
    for (int begin = 0; begin < units; begin += step) {
        int end = begin + step < units ? begin + step : units;
        tile_any<T>(rows, unpack<T, false>(panel, layout.k, begin, end, buffer), begin, end, tile, layout, nullptr,
                    acc);
    }
}
