// Sizes of the scratch memory of `linear`.
#include <algorithm>

#include "linear_layout.h"

namespace leafage {

size_t linear_shared_bytes(int rows, int max_k) {
    const unsigned all = kQuantizedMask | 1u << kFloatRows | 1u << kPrecise;
    return size_t(ceil_div(std::max(rows, 1), kTileRows)) * TileLayout(kTileRows, max_k, all).bytes;
}

// worker_scratch_bytes (attention.cpp) promises at least this much.
static_assert(kLinearScratch <= size_t(1) << 20, "linear needs more scratch per thread");

}  // namespace leafage
