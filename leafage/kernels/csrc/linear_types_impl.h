// The kernels of every weight type as a table. Included by linear_<isa>_impl.h, which defines
//   template <Dtype T> void direct_any(rows, panel, stream, tile, layout, acc);
//   template <Dtype T, bool Signed> const uint8_t* unpack(panel, k, begin, end, to);  // where they are now; Signed: for AMX
//   template <Dtype T> void tile_any(rows, weights, begin, end, tile, layout, ahead, acc);

//   void store_rows(args, first_row, rows, column, lanes, acc, two_chains);

// acc: [16 rows][16 lanes], and another such for the odd chain of float weights. begin, end: groups or inputs.
struct TypeKernels {
    void (*direct)(int rows, const uint8_t* panel, const Stream&, const uint8_t* tile, const TileLayout&, float* acc);
    const uint8_t* (*unpack)(const uint8_t* panel, int k, int begin, int end, uint8_t* to);
    const uint8_t* (*unpack_signed)(const uint8_t* panel, int k, int begin, int end, uint8_t* to);  // for AMX
    void (*tile)(int rows, const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout&,
                 const uint8_t* ahead, float* acc);
};

template <Dtype T>
static constexpr TypeKernels kernels_of() {
    return {direct_any<T>, unpack<T, false>, unpack<T, LEAFAGE_HAS_AMX>, tile_any<T>};
}

static const TypeKernels& type_kernels(Dtype dtype) {
    static constexpr TypeKernels table[kNumDtypes] = {
        kernels_of<Dtype::F32>(),  kernels_of<Dtype::F16>(),    kernels_of<Dtype::BF16>(),   kernels_of<Dtype::Q4_0>(),
        kernels_of<Dtype::Q4_1>(), kernels_of<Dtype::Q5_0>(),   kernels_of<Dtype::Q5_1>(),   kernels_of<Dtype::Q8_0>(),
        kernels_of<Dtype::Q2_K>(), kernels_of<Dtype::Q3_K>(),   kernels_of<Dtype::Q4_K>(),   kernels_of<Dtype::Q5_K>(),
        kernels_of<Dtype::Q6_K>(), kernels_of<Dtype::IQ4_NL>(), kernels_of<Dtype::IQ4_XS>(), kernels_of<Dtype::MXFP4>(),
    };
    return table[int(dtype)];
}
