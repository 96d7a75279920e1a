// Tile kernels on Intel AMX, for calls with many rows: the same bits as the AVX-512 VNNI ones.
#pragma once
#include "linear_layout.h"

namespace leafage {

struct AmxKernels {
    // Around the calls of `tile` on a thread: set up its tile registers; free them.
    void (*begin)();
    void (*end)();
    // As tile_groups for 16 rows, on unpacked weights: [precise][subgroups - 1][has_min]. Precise ones take the codes
    // that VNNI takes, the others signed codes.
    void (*tile[2][2][2])(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout&,
                          size_t aux_at, float* acc);
};

// Null when this build, the CPU or the operating system has no AMX, or when it is turned off.
const AmxKernels* amx_kernels();

// For tests. Returns whether AMX is in use now.
bool use_amx(bool on);

}  // namespace leafage
