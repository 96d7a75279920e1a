// `store_rows` without intrinsics: compilers vectorize it. Included inside the namespace of an instruction set.

// acc (both chains of it) plus bias into the output, or added to it.
static inline void store_rows(const LinearArgs& a, int first_row, int rows, int column, int lanes, const float* acc,
                              bool two_chains) {
    for (int r = 0; r < rows; ++r) {
        float value[kPanel];
        for (int l = 0; l < kPanel; ++l) value[l] = acc[r * kPanel + l];
        if (two_chains)
            for (int l = 0; l < kPanel; ++l) value[l] += acc[(kTileRows + r) * kPanel + l];
        float* out = a.out + size_t(first_row + r) * size_t(a.ldo) + column;
        if (lanes == kPanel) {
            if (a.bias)
                for (int l = 0; l < kPanel; ++l) value[l] += a.bias[column + l];
            if (a.accumulate)
                for (int l = 0; l < kPanel; ++l) value[l] = out[l] + value[l];
            std::memcpy(out, value, sizeof value);
        } else {
            for (int l = 0; l < lanes; ++l) {
                float v = value[l];
                if (a.bias) v += a.bias[column + l];
                out[l] = a.accumulate ? out[l] + v : v;
            }
        }
    }
}
